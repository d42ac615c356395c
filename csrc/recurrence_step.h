// One token, for decoding. The next state may overwrite the old one or go elsewhere.
#pragma once

#include "recurrence.h"

namespace {

// Up to STEP_PART vectors of columns of one head's state, [K][V] in memory, through one step.
// FULL: the last vector has all its lanes, which keeps tails out of the loops.
template <bool DELTA, bool FULL>
struct StepColumns {
  const RecurrenceStep& x;
  int64_t tail;            // lanes of the last vector that exist
  const float *k, *v, *a;  // a null: no gate; else one number, or one a channel
  float beta;
  const float* q;  // null for all but a token's last factor
  const float* before;
  float *S, *o;

  template <int NV>
  void run() const {
    const int64_t last = FULL ? LANES : tail;
    auto load_row = [&](vf* s, const float* p) {
      for (int i = 0; i < NV - 1; ++i) s[i] = load(p + i * LANES);
      s[NV - 1] = load_first(p + (NV - 1) * LANES, last);
    };
    auto store_row = [&](float* p, const vf* s) {
      for (int i = 0; i < NV - 1; ++i) store(p + i * LANES, s[i]);
      store_first(p + (NV - 1) * LANES, s[NV - 1], last);
    };
    const int64_t stride = x.gate_channels > 1 ? 1 : 0;
    vf u[NV], out[NV] = {};
    load_row(u, v);
    if (DELTA) {
      vf p[NV] = {};
      for (int64_t j = 0; j < x.K; ++j) {
        const vf kj = splat(a ? k[j] * a[j * stride] : k[j]);
        vf s[NV];
        load_row(s, before + j * x.V);
        for (int i = 0; i < NV; ++i) p[i] = fma(kj, s[i], p[i]);
      }
      for (int i = 0; i < NV; ++i) u[i] = beta * (u[i] - p[i]);
    }
    for (int64_t j = 0; j < x.K; ++j) {
      vf s[NV];
      load_row(s, before + j * x.V);
      if (a)
        for (int i = 0; i < NV; ++i) s[i] *= a[j * stride];
      for (int i = 0; i < NV; ++i) s[i] = fma(splat(k[j]), u[i], s[i]);
      store_row(S + j * x.V, s);
      if (q)
        for (int i = 0; i < NV; ++i) out[i] = fma(splat(q[j]), s[i], out[i]);
    }
    if (!q) return;
    for (int i = 0; i < NV; ++i) out[i] *= static_cast<float>(x.scale);
    store_row(o, out);
  }
};

template <bool DELTA>
void step_head(const RecurrenceStep& x, int64_t i) {
  const int64_t sequence = i / x.H, head = i % x.H, key_head = head / (x.H / x.key_heads);
  for (int64_t f = 0; f < x.factors; ++f) {
    const int64_t row = (sequence * x.factors + f) * x.H + head;
    const float* k = x.k + ((sequence * x.factors + f) * x.key_heads + key_head) * x.K;
    const float* a = x.gate && f == 0 ? x.gate + i * x.gate_channels : nullptr;
    const float* q = x.q + (sequence * x.key_heads + key_head) * x.K;
    if (f + 1 < x.factors) q = nullptr;
    const float beta = DELTA ? x.beta[row] : 1.0f;
    for (int64_t start = 0; start < x.V; start += STEP_PART * LANES) {
      const int64_t left = x.V - start;
      const int64_t columns = left < STEP_PART * LANES ? left : STEP_PART * LANES;
      const int vectors = static_cast<int>((columns + LANES - 1) / LANES);
      const int64_t tail = columns - (vectors - 1) * LANES;
      const float* v = x.v + row * x.V + start;
      float *S = x.state + i * x.K * x.V + start, *o = x.o + i * x.V + start;
      const float* before = f ? S : x.before + i * x.K * x.V + start;
      if (tail == LANES)
        with_width(vectors, StepColumns<DELTA, true>{x, tail, k, v, a, beta, q, before, S, o});
      else
        with_width(vectors, StepColumns<DELTA, false>{x, tail, k, v, a, beta, q, before, S, o});
    }
  }
}

void recurrence_step(const RecurrenceStep& x) {
  auto run = x.beta ? step_head<true> : step_head<false>;
  share(x.B * x.H, x.K * x.V, x.threads, [&](int64_t i) { run(x, i); });
}

}  // namespace
