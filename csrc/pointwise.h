// Shared by the elementwise and row-wise kernels: a loop over vectors, exp, softplus, SiLU.
#pragma once

#include "kernels.h"
#include "memory.h"
#include "parallel.h"

namespace {

// f(i, n) for the n numbers from i on, vector by vector; n < LANES for what is left at the end.
// Two at once, so that they share the loads of constants.
template <class F>
INLINE inline void each_vector(int64_t count, const F& f) {
  int64_t i = 0;
  for (; i + 2 * LANES <= count; i += 2 * LANES) f(i, int64_t(LANES)), f(i + LANES, int64_t(LANES));
  if (i + LANES <= count) f(i, int64_t(LANES)), i += LANES;
  if (i < count) f(i, count - i);
}

// The first n lanes; the others are `fill`.
inline vf load_filled(const float* p, int64_t n, float fill) {
  if (n >= LANES) return load(p);
  float x[LANES];
  for (int64_t i = 0; i < LANES; ++i) x[i] = i < n ? p[i] : fill;
  return load(x);
}

// e^x, for -inf too.
inline vf exp(vf x) {
  const vf low = splat(-200.0f);
  return exp2((x < low ? low : x) * LOG2_E);
}

// 2 artanh(s) / s for s in [0, 1/3]: log(1 + y) is 2 artanh(y / (2 + y)).
inline vf log1p_series(vf s) {
  const vf square = s * s;
  vf series = splat(2.0f / 13);
  series = fma(series, square, splat(2.0f / 11));
  series = fma(series, square, splat(2.0f / 9));
  series = fma(series, square, splat(2.0f / 7));
  series = fma(series, square, splat(2.0f / 5));
  series = fma(series, square, splat(2.0f / 3));
  return fma(series, square, splat(2.0f));
}

// log(1 + e^x)
inline vf softplus(vf x) {
  const vf y = exp(x < vf{} ? x : -x), s = y / (y + 2.0f);
  return fma(s, log1p_series(s), x < vf{} ? vf{} : x);
}

// d silu(z) / dz, for s = sigmoid(z).
inline vf d_silu(vf z, vf s) { return s * fma(z, 1.0f - s, splat(1.0f)); }

inline void fill_zero(float* p, int64_t count) {
  std::memset(p, 0, static_cast<size_t>(count) * 4);
}

inline int64_t at_least(int64_t x, int64_t limit) { return x > limit ? x : limit; }
inline int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Rows in a unit of work. Each unit sums its own gradient of the weight.
inline int64_t rows_in_block(int64_t row_size) {
  return at_most(at_least(32768 / row_size, 1), 1024);
}

}  // namespace
