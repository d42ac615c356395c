// Rows cut into blocks of a few vectors, and their first and last lanes.
#pragma once

#include "simd.h"

namespace {

constexpr int MAX_VECTORS = 4;  // vectors in a row of a block: what fits in 16 registers
constexpr int64_t BLOCK = MAX_VECTORS * LANES;

inline int64_t blocks_of(int64_t size) { return (size + BLOCK - 1) / BLOCK; }
inline int64_t padded(int64_t size) { return (size + LANES - 1) / LANES * LANES; }

// The part of a dimension that one block covers.
struct Block {
  int64_t start;
  int vectors;
  int64_t last;  // lanes of the last vector that exist

  Block(int64_t index, int64_t size) : start(index * BLOCK) {
    int64_t left = size - start < BLOCK ? size - start : BLOCK;
    vectors = static_cast<int>((left + LANES - 1) / LANES);
    last = left - (vectors - 1) * LANES;
  }
  int64_t width() const { return int64_t(vectors) * LANES; }  // with padding
  int64_t count() const { return (vectors - 1) * LANES + last; }
};

template <int NV>
inline void load_row(vf* x, const float* p, int64_t last) {
  for (int i = 0; i < NV - 1; ++i) x[i] = load(p + i * LANES);
  x[NV - 1] = load_first(p + (NV - 1) * LANES, last);
}

template <int NV>
inline void store_row(float* p, const vf* x, int64_t last) {
  for (int i = 0; i < NV - 1; ++i) store(p + i * LANES, x[i]);
  store_first(p + (NV - 1) * LANES, x[NV - 1], last);
}

// To GCC a function that only prefetches has no effect: it drops calls that are not inlined before.
#define PREFETCHES __attribute__((always_inline)) inline

PREFETCHES void prefetch(const float* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(p + i);
}

PREFETCHES void prefetch_write(float* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(p + i, 1);
}

}  // namespace
