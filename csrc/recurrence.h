// What the forward and the backward pass of the recurrence share.
//
// Gates are not multiplied into the state. The state is kept as c S' with a running product c of
// gates (one number, or one for each key channel), so that a step costs no more than without a
// gate; when c gets small or large, c is multiplied into S' and starts again from 1. That holds for
// gates that are 0 or negative too, and is exact for gates 1, -1 and powers of 2.
#pragma once

#include "kernels.h"
#include "parallel.h"
#include "simd.h"

namespace {

constexpr int MAX_VECTORS = 4;  // vectors in a row of a block: what fits in 16 registers
constexpr int64_t BLOCK = MAX_VECTORS * LANES;
constexpr int AHEAD = 4;  // steps to prefetch ahead: heads lie strided, which hardware misses

inline bool out_of_range(float c) {
  float size = c < 0 ? -c : c;
  return !(size > 0x1p-30f && size < 0x1p30f);
}

inline bool any(vi mask) {
  int64_t x[LANES / 2];
  std::memcpy(x, &mask, sizeof mask);
  int64_t all = 0;
  for (int i = 0; i < LANES / 2; ++i) all |= x[i];
  return all;
}

inline vi out_of_range(vf c) {
  const vf square = c * c;
  return ~((square > splat(0x1p-60f)) & (square < splat(0x1p60f)));
}

// c *= a for n channels, c padded with ones; whether some product is out of range now.
inline bool multiply_gates(float* c, const float* a, int64_t n) {
  vi bad{};
  for (int64_t j = 0; j < n; j += LANES) {
    vf product = load(c + j) * (n - j >= LANES ? load(a + j) : load_first(a + j, n - j));
    if (n - j < LANES)
      for (int64_t i = n - j; i < LANES; ++i) product[i] = 1.0f;
    store(c + j, product);
    bad |= out_of_range(product);
  }
  return any(bad);
}

// to = from * c or from / c, for n channels; `to` is padded.
inline void times(float* to, const float* from, const float* c, int64_t n) {
  for (int64_t j = 0; j < n; j += LANES) store(to + j, load_first(from + j, n - j) * load(c + j));
}
inline void over(float* to, const float* from, const float* c, int64_t n) {
  for (int64_t j = 0; j < n; j += LANES) store(to + j, load_first(from + j, n - j) / load(c + j));
}

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

inline void prefetch(const float* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(p + i);
}

inline void prefetch_write(float* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(p + i, 1);
}

// One sequence and head.
struct Row {
  const Recurrence& x;
  int64_t sequence, head, first, tokens, steps;

  Row(const Recurrence& x, int64_t sequence, int64_t head) : x(x), sequence(sequence), head(head) {
    first = x.bounds ? x.bounds[sequence] : sequence * x.T;
    tokens = x.bounds ? x.bounds[sequence + 1] - first : x.T;
    steps = tokens * x.factors;
  }

  const float* at(const View& view, int64_t start, int64_t i) const {
    return view.data + (start + i) * view.token + head * view.head;
  }
  const float* q(int64_t t) const { return at(x.q, first, t); }
  const float* k(int64_t s) const { return at(x.k, first * x.factors, s); }
  const float* v(int64_t s) const { return at(x.v, first * x.factors, s); }
  float beta(int64_t s) const { return *at(x.beta, first * x.factors, s); }
  const float* gate(int64_t t) const { return at(x.gate, first, t); }

  int64_t token(int64_t t) const { return (first + t) * x.H + head; }  // in contiguous tensors
  int64_t step(int64_t s) const { return (first * x.factors + s) * x.H + head; }
  int64_t state() const { return (sequence * x.H + head) * x.K * x.V; }
};

// f.template operator()<NV>() with NV = vectors.
template <class F>
inline void with_vectors(int vectors, const F& f) {
  switch (vectors) {
    case 1: return f.template run<1>();
    case 2: return f.template run<2>();
    case 3: return f.template run<3>();
    default: return f.template run<4>();
  }
}

}  // namespace
