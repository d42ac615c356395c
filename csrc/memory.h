// Padding to whole vectors, and prefetching.
#pragma once

#include "simd.h"

namespace {

#define INLINE __attribute__((always_inline))

// Before a loop of a few turns: GCC keeps an array that it indexes in memory unless it unrolls it.
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

inline int64_t at_most(int64_t x, int64_t limit) { return x < limit ? x : limit; }

inline int64_t padded(int64_t size) { return (size + LANES - 1) / LANES * LANES; }

// Always inlined: GCC removes calls of a function that only prefetches, as without effect.
INLINE inline void prefetch(const float* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(p + i);
}

INLINE inline void prefetch_write(float* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(p + i, 1);
}

}  // namespace
