// One token for decoding: the state is updated where it lies.
#pragma once

#include "recurrence.h"

namespace {

// Columns of one head's state, [K][V] in memory, through one step.
template <bool DELTA, bool FULL>
struct StepBlock {
  const RecurrenceStep& x;
  const Block& block;
  const float *k, *v, *a;  // a null: no gate; else one number, or one a channel
  float beta;
  const float* q;  // null for all but a token's last factor
  float *S, *o;

  template <int NV>
  void run() const {
    const int64_t last = FULL ? LANES : block.last;  // a constant keeps tails out of the loops
    const int64_t stride = x.gate_channels > 1 ? 1 : 0;
    vf u[NV], out[NV] = {};
    load_row<NV>(u, v + block.start, last);
    if (DELTA) {
      vf p[NV] = {};
      for (int64_t j = 0; j < x.K; ++j) {
        const vf kj = splat(a ? k[j] * a[j * stride] : k[j]);
        vf s[NV];
        load_row<NV>(s, S + j * x.V + block.start, last);
        for (int i = 0; i < NV; ++i) p[i] = fma(kj, s[i], p[i]);
      }
      for (int i = 0; i < NV; ++i) u[i] = beta * (u[i] - p[i]);
    }
    for (int64_t j = 0; j < x.K; ++j) {
      vf s[NV];
      load_row<NV>(s, S + j * x.V + block.start, last);
      if (a)
        for (int i = 0; i < NV; ++i) s[i] *= a[j * stride];
      for (int i = 0; i < NV; ++i) s[i] = fma(splat(k[j]), u[i], s[i]);
      store_row<NV>(S + j * x.V + block.start, s, last);
      if (q)
        for (int i = 0; i < NV; ++i) out[i] = fma(splat(q[j]), s[i], out[i]);
    }
    if (!q) return;
    for (int i = 0; i < NV; ++i) out[i] *= static_cast<float>(x.scale);
    store_row<NV>(o + block.start, out, last);
  }
};

template <bool DELTA>
void step_head(const RecurrenceStep& x, int64_t i) {
  const int64_t sequence = i / x.H, head = i % x.H;
  float* S = x.state + i * x.K * x.V;
  for (int64_t f = 0; f < x.factors; ++f) {
    const int64_t row = (sequence * x.factors + f) * x.H + head;
    const bool last = f + 1 == x.factors;
    for (int64_t b = 0; b < blocks_of(x.V); ++b) {
      const Block block(b, x.V);
      const float* a = x.gate && f == 0 ? x.gate + i * x.gate_channels : nullptr;
      const float* q = last ? x.q + i * x.K : nullptr;
      const float beta = DELTA ? x.beta[row] : 1.0f;
      const float *k = x.k + row * x.K, *v = x.v + row * x.V;
      float* o = x.o + i * x.V;
      if (block.last == LANES)
        with_vectors(block.vectors, StepBlock<DELTA, true>{x, block, k, v, a, beta, q, S, o});
      else
        with_vectors(block.vectors, StepBlock<DELTA, false>{x, block, k, v, a, beta, q, S, o});
    }
  }
}

void recurrence_step(const RecurrenceStep& x) {
  // Below this a second thread takes longer to wake than to help.
  const bool small = x.B * x.H * x.K * x.V < (int64_t(1) << 18);
  auto run = x.beta ? step_head<true> : step_head<false>;
  parallel_for(x.B * x.H, small ? 1 : x.threads, [&](int64_t i) { run(x, i); });
}

}  // namespace
