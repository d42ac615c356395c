#pragma once

#include "recurrence.h"

namespace {

// One pass over the state [K][NV vectors], which stays in the first-level cache: write k u^T, read
// with q, and read with the next step's key, which that step's error needs. DELTA without the
// second reading is plain linear attention; OUT is false for all but a token's last step.
template <int NV, bool DELTA, bool OUT>
inline void pass(float* S, int64_t K, const float* k, const float* q, const float* k_next,
                 const vf* u_, vf* o_, vf* p_) {
  vf u[NV], o[NV], p[NV];
  for (int i = 0; i < NV; ++i) u[i] = u_[i], o[i] = vf{}, p[i] = vf{};
  for (int64_t j = 0; j < K; ++j, S += NV * LANES) {
    const vf kj = splat(k[j]);
    vf qj{}, nj{};
    if (OUT) qj = splat(q[j]);
    if (DELTA) nj = splat(k_next[j]);
    for (int i = 0; i < NV; ++i) {
      vf s = fma(kj, u[i], load(S + i * LANES));
      store(S + i * LANES, s);
      if (OUT) o[i] = fma(qj, s, o[i]);
      if (DELTA) p[i] = fma(nj, s, p[i]);
    }
  }
  for (int i = 0; i < NV; ++i) o_[i] = o[i], p_[i] = p[i];
}

// The columns of `block` of one sequence and head, from its first token to its last.
template <bool DELTA, bool CHANNEL>
struct ForwardBlock {
  const Row& row;
  const Block& block;
  float* S;      // scratch [K][width]
  float* c;      // scratch [K]: the running products of gates on channels
  float* k_buf;  // scratch [K]: k / c
  float* q_buf;  // scratch [K]: q c

  template <int NV>
  void run() const {
    const Recurrence& x = row.x;
    const int64_t K = x.K, V = x.V, n = x.factors, last = block.last, width = block.width();
    const float scale = static_cast<float>(x.scale);
    const bool gated = x.gate.data;
    const float* initial = x.initial ? x.initial + row.state() + block.start : nullptr;
    for (int64_t j = 0; j < K; ++j) {
      vf s[NV] = {};
      if (initial) load_row<NV>(s, initial + j * V, last);
      store_row<NV>(S + j * width, s, LANES);
      c[j] = 1.0f;
    }
    vf p[NV] = {};  // S'^T k of the step to come
    if (DELTA)
      for (int64_t j = 0; j < K; ++j)
        for (int i = 0; i < NV; ++i)
          p[i] = fma(splat(row.k(0)[j]), load(S + j * width + i * LANES), p[i]);

    float product = 1.0f;
    for (int64_t s = 0, t = 0, factor = 0; s < row.steps; ++s) {
      const bool final_factor = factor + 1 == n;
      prefetch_step(s, t);
      if (gated && factor == 0) {
        const float* a = row.gate(t);
        if (CHANNEL) {
          multiply_channels(a, width);
        } else {
          product *= *a;
          if (out_of_range(product)) {
            for (int64_t i = 0; i < K * width; i += LANES) store(S + i, product * load(S + i));
            for (int i = 0; i < NV; ++i) p[i] *= product;
            product = 1.0f;
          }
        }
      }
      const float* k = row.k(s);
      const float* q = row.q(t);
      if (CHANNEL) {
        for (int64_t j = 0; j < K; ++j) k_buf[j] = k[j] / c[j], q_buf[j] = q[j] * c[j];
        k = k_buf, q = q_buf;
      }
      vf u[NV], o[NV];
      load_row<NV>(u, row.v(s) + block.start, last);
      if (DELTA) {
        for (int i = 0; i < NV; ++i) u[i] -= product * p[i];
        if (x.error) store_row<NV>(x.error + row.step(s) * V + block.start, u, last);
        const float beta = gated ? row.beta(s) / product : row.beta(s);
        for (int i = 0; i < NV; ++i) u[i] *= beta;
      } else if (gated && !CHANNEL) {
        const float inverse = 1.0f / product;
        for (int i = 0; i < NV; ++i) u[i] *= inverse;
      }
      const float* k_next = DELTA ? row.k(s + 1 < row.steps ? s + 1 : s) : nullptr;
      if (final_factor) {
        pass<NV, DELTA, true>(S, K, k, q, k_next, u, o, p);
        for (int i = 0; i < NV; ++i) o[i] *= scale * product;
        store_row<NV>(x.o + row.token(t) * V + block.start, o, last);
        ++t, factor = 0;
      } else {
        pass<NV, DELTA, false>(S, K, k, q, k_next, u, o, p);
        ++factor;
      }
    }
    float* final = x.final + row.state() + block.start;
    for (int64_t j = 0; j < K; ++j) {
      vf s[NV];
      for (int i = 0; i < NV; ++i) s[i] = (CHANNEL ? c[j] : product) * load(S + j * width + i * LANES);
      store_row<NV>(final + j * V, s, last);
    }
  }

  void multiply_channels(const float* a, int64_t width) const {
    for (int64_t j = 0; j < row.x.K; ++j) {
      c[j] *= a[j];
      if (!out_of_range(c[j])) continue;
      float* S_j = S + j * width;
      for (int64_t i = 0; i < width; i += LANES) store(S_j + i, c[j] * load(S_j + i));
      c[j] = 1.0f;
    }
  }

  PREFETCHES void prefetch_step(int64_t s, int64_t t) const {
    const Recurrence& x = row.x;
    if (s + AHEAD < row.steps) {
      prefetch(row.k(s + AHEAD), x.K);
      prefetch(row.v(s + AHEAD) + block.start, block.count());
      if (DELTA && x.error)
        prefetch_write(x.error + row.step(s + AHEAD) * x.V + block.start, block.count());
    }
    if (t + AHEAD < row.tokens) {
      prefetch(row.q(t + AHEAD), x.K);
      prefetch_write(x.o + row.token(t + AHEAD) * x.V + block.start, block.count());
    }
  }
};

template <bool DELTA, bool CHANNEL>
void forward_block(const Recurrence& x, int64_t sequence, int64_t head, int64_t index) {
  const Block block(index, x.V);
  const Row row(x, sequence, head);
  const int64_t K = padded(x.K);
  Scratch scratch(x.K * block.width() + 3 * K);
  float* S = scratch.get();
  float* c = S + x.K * block.width();
  with_vectors(block.vectors, ForwardBlock<DELTA, CHANNEL>{row, block, S, c, c + K, c + 2 * K});
}

void recurrence_forward(const Recurrence& x) {
  const int64_t blocks = blocks_of(x.V);
  auto run = !x.beta.data && x.gate.data && x.gate_channels > 1 ? forward_block<false, true>
             : x.beta.data                                       ? forward_block<true, false>
                                                                 : forward_block<false, false>;
  parallel_for(x.N * x.H * blocks, x.threads, [&](int64_t i) {
    run(x, i / blocks / x.H, i / blocks % x.H, i % blocks);
  });
}

}  // namespace
