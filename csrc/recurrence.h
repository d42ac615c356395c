// What the forward and the backward pass of the recurrence share.
//
// Gates are not multiplied into the state. The state is kept as c S' with a running product c of
// gates (one number, or one for each key channel), so that a step costs no more than without a
// gate; when c gets small or large, c is multiplied into S' and starts again from 1. That holds for
// gates that are 0 or negative too, and is exact for gates 1, -1 and powers of 2.
#pragma once

#include "blocks.h"
#include "kernels.h"
#include "parallel.h"

namespace {

constexpr int AHEAD = 4;  // steps to prefetch ahead: heads lie strided, which hardware misses

inline bool out_of_range(float c) {
  float size = c < 0 ? -c : c;
  return !(size > 0x1p-30f && size < 0x1p30f);
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
