// Vectors of LANES floats in the compiler's own vector types: one source for every instruction set.
// kernels.cpp is compiled once a level with LANES and the level's flags; no intrinsics needed.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef LANES
#error "LANES (4, 8 or 16 floats) comes from the build"
#endif

namespace {

typedef float vf __attribute__((vector_size(LANES * 4), aligned(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4), aligned(LANES * 4)));

inline vf load(const float* p) {
  vf x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

inline void store(float* p, vf x) { std::memcpy(p, &x, sizeof x); }

// The first n lanes; the others are 0, and nothing behind p + n is touched.
inline vf load_first(const float* p, int64_t n) {
  if (n >= LANES) return load(p);
  float x[LANES] = {};
  for (int64_t i = 0; i < n; ++i) x[i] = p[i];
  return load(x);
}

inline void store_first(float* p, vf v, int64_t n) {
  if (n >= LANES) return store(p, v);
  float x[LANES];
  store(x, v);
  for (int64_t i = 0; i < n; ++i) p[i] = x[i];
}

inline vf splat(float x) { return x - vf{}; }

// Contracted to one instruction where the level has it (-ffp-contract=fast).
inline vf fma(vf a, vf b, vf c) { return a * b + c; }

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLE 1
#endif
#endif

// sum(v) is that of all lanes; sums(r[0..LANES)) the vector whose lane i is sum(r[i]).
#ifdef HAS_SHUFFLE
// The lanes FIRST of (a, b) plus those that lie BY lanes further on.
template <int BY, int... FIRST>
inline vf fold(vf a, vf b) {
  return __builtin_shufflevector(a, b, FIRST...) + __builtin_shufflevector(a, b, (FIRST + BY)...);
}
#endif
#if defined(HAS_SHUFFLE) && LANES == 4
inline vf pairs(vf a, vf b) { return fold<2, 0, 4, 1, 5>(a, b); }
inline vf quads(vf a, vf b) { return fold<2, 0, 1, 4, 5>(a, b); }
inline vf sums(const vf* r) { return quads(pairs(r[0], r[1]), pairs(r[2], r[3])); }
inline float sum(vf v) {
  v = pairs(v, v);
  return v[0] + v[2];
}
#elif defined(HAS_SHUFFLE) && LANES == 8
inline vf pairs(vf a, vf b) { return fold<2, 0, 8, 1, 9, 4, 12, 5, 13>(a, b); }
inline vf quads(vf a, vf b) { return fold<2, 0, 1, 8, 9, 4, 5, 12, 13>(a, b); }
inline vf halves(vf a, vf b) { return fold<4, 0, 1, 2, 3, 8, 9, 10, 11>(a, b); }
inline vf sums(const vf* r) {
  return halves(quads(pairs(r[0], r[1]), pairs(r[2], r[3])),
                quads(pairs(r[4], r[5]), pairs(r[6], r[7])));
}
inline float sum(vf v) {
  v = halves(v, v);
  v = pairs(v, v);
  return v[0] + v[2];
}
#elif defined(HAS_SHUFFLE) && LANES == 16
inline vf pairs(vf a, vf b) {
  return fold<2, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29>(a, b);
}
inline vf quads(vf a, vf b) {
  return fold<2, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29>(a, b);
}
inline vf octets(vf a, vf b) {
  return fold<4, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27>(a, b);
}
inline vf halves(vf a, vf b) {
  return fold<8, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23>(a, b);
}
inline vf sums(const vf* r) {
  vf q[4];
  for (int i = 0; i < 4; ++i)
    q[i] = quads(pairs(r[4 * i], r[4 * i + 1]), pairs(r[4 * i + 2], r[4 * i + 3]));
  return halves(octets(q[0], q[1]), octets(q[2], q[3]));
}
inline float sum(vf v) {
  v = halves(v, v);
  v = octets(v, v);
  v = pairs(v, v);
  return v[0] + v[2];
}
#else
inline float sum(vf v) {
  for (int n = LANES / 2; n; n /= 2)
    for (int i = 0; i < n; ++i) v[i] += v[i + n];
  return v[0];
}
inline vf sums(const vf* r) {
  vf out;
  for (int i = 0; i < LANES; ++i) out[i] = sum(r[i]);
  return out;
}
#endif

inline vf as_float(vi x) {
  vf y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

inline vi as_int(vf x) {
  vi y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

// 2^(x + MORE) = scale (1 + r) with |r| < 1/2, as two numbers.
template <int MORE = 0>
struct PowerOf2 {
  vf scale, f, slope;  // r = slope f

  explicit PowerOf2(vf x) {
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
    const vf magic = splat(shift + 127 + MORE);
    const vf rounded = x + magic;
    f = x - (rounded - magic);  // in [-1/2, 1/2]
    slope = splat(0.0013264727f);
    slope = fma(slope, f, splat(0.009671513f));
    slope = fma(slope, f, splat(0.055507336f));
    slope = fma(slope, f, splat(0.24022242f));
    slope = fma(slope, f, splat(0.693147f));
    // those bits are the exponent of a power of 2; exponent 0 is the number 0 and 255 infinity
    const vi low = as_int(splat(shift)), high = as_int(splat(shift + 255));
    vi exponent = as_int(rounded);
    exponent = exponent < low ? low : exponent;
    exponent = exponent > high ? high : exponent;
    scale = as_float(exponent << 23);
  }
};

// 2^(x + MORE) with a relative error below 2e-7, exact for whole x. What is below 2^-126.5 is 0,
// and what is above 2^127.5 infinite.
template <int MORE = 0>
inline vf exp2(vf x) {
  const PowerOf2<MORE> power(x);
  return fma(power.slope, power.f, splat(1.0f)) * power.scale;
}

constexpr float LOG2_E = 1.44269504f;

// Clip to [-limit, limit]: beyond it the functions below are constant in float32, and exp2 would
// amplify the rounding error of its argument.
inline vf within(vf x, float limit) {
  const vf low = splat(-limit), high = splat(limit);
  return x < low ? low : x > high ? high : x;
}

inline vf sigmoid(vf x) { return 1.0f / (1.0f + exp2(within(x, 200.0f) * -LOG2_E)); }

// From e^2x - 1, computed without cancellation, so that tanh is exact to rounding for small x.
inline vf tanh(vf x) {
  const PowerOf2<> power(within(x, 20.0f) * (2 * LOG2_E));
  const vf expm1 = fma(power.scale, power.slope * power.f, power.scale - 1.0f);
  return expm1 / (expm1 + 2.0f);
}

}  // namespace
