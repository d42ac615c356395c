// The sweep of the backward pass that runs backwards in time and carries G = dL/dS: see
// recurrence_backward.h. Lanes lie along V.
#pragma once

#include "recurrence_segment.h"

namespace {

struct GradientStep {
  const float *k_next, *q, *k;
  bool out;
  vf dv_next[MOST], d_o[MOST], u[MOST], du[MOST];
};

// With a gate, r is read before the token's output adds q do^T to G: see recurrence_backward.h.
template <bool DELTA, bool OUT, bool GATED>
struct GradientPass {
  float* G;
  int64_t K;
  GradientStep& x;
  vf* r;  // [K]: what dk gets, lane by lane, summed over the parts
  int first;

  template <int NV>
  void run() const {
    float* G_j = G;
    const float *k_next = x.k_next, *q = x.q, *k = x.k;
    vf dv_next[NV], d_o[NV], u[NV], du[NV] = {};
    for (int i = 0; i < NV; ++i)
      dv_next[i] = x.dv_next[first + i], d_o[i] = x.d_o[first + i], u[i] = x.u[first + i];
    for (int64_t j = 0; j < K; ++j, G_j += NV * LANES) {
      vf nj{}, qj{};
      if (DELTA) nj = splat(k_next[j]);
      if (OUT) qj = splat(q[j]);
      const vf kj = splat(k[j]);
      vf rj = first ? r[j] : vf{};
      for (int i = 0; i < NV; ++i) {
        vf g = load(G_j + i * LANES);
        if (DELTA) g -= nj * dv_next[i];
        if (GATED) rj = fma(g, u[i], rj);
        if (OUT) g = fma(qj, d_o[i], g);
        if (DELTA || OUT) store(G_j + i * LANES, g);
        du[i] = fma(kj, g, du[i]);
        if (!GATED) rj = fma(g, u[i], rj);
      }
      r[j] = rj;
    }
    for (int i = 0; i < NV; ++i) x.du[first + i] = du[i];
  }
};

// Takes G from the end of the segment to its start, token by token; gives dv, dbeta and the part of dk
// that depends on G.
template <bool DELTA, bool CHANNEL, class Block>
struct GradientSweep {
  const Segment& segment;
  const Block& block;
  float* G;    // of this block
  float* buf;  // 3 padded K for numbers, K vectors behind them
  const Row& row = segment.row;
  const Recurrence& x = row.x;
  int64_t K = x.K, V = x.V, n = x.factors, Kp = padded(K);
  bool gated = x.gate.data, first_block = block.start == 0;
  float *c = buf, *k_buf = buf + Kp, *q_buf = buf + 2 * Kp;
  vf* r = reinterpret_cast<vf*>(buf + 3 * Kp);
  int64_t t = segment.end - 1;
  float product = 1.0f;
  GradientStep step;

  GradientSweep(const Segment& segment, const Block& block, float* G, float* buf)
      : segment(segment), block(block), G(G), buf(buf) {
    for (int64_t j = 0; j < Kp; ++j) c[j] = 1.0f;
    for (int64_t j = K; j < Kp; ++j) r[j] = vf{};
    step.k_next = row.k(segment.start * n);
    for (int i = 0; i < block.vectors(); ++i) step.dv_next[i] = vf{};  // of the step that follows
  }

  bool done() const { return t < segment.start; }

  void advance() {
    if (gated && t + 1 < segment.end) pass_gate(t + 1);
    step.q = row.q(t);
    if (CHANNEL) over(q_buf, step.q, c, K), step.q = q_buf;
    block.load_row(step.d_o, x.d_o + row.token(t) * V + block.start);
    const float scale = static_cast<float>(x.scale) / product;
    for (int i = 0; i < block.vectors(); ++i) step.d_o[i] *= scale;
    for (int64_t factor = n - 1; factor >= 0; --factor) one_step(t * n + factor, factor == n - 1);
    --t;
  }

  void finish() {
    if (gated) {
      const float* a = row.gate(segment.start);
      keep(segment.start);
      product *= *a;
      if (CHANNEL) multiply_gates(c, a, K);
    }
    take_off();
  }

 private:
  void one_step(int64_t s, bool out) {
    const int nv = block.vectors();
    prefetch_step(s);
    step.k = row.k(s);
    if (CHANNEL) times(k_buf, step.k, c, K), step.k = k_buf;
    vf e[MOST];  // the error, without beta the value
    block.load_row(e, (DELTA ? x.error + row.step(s) * V : row.v(s)) + block.start);
    const float beta = DELTA ? row.beta(s) : 1.0f;
    for (int i = 0; i < nv; ++i) step.u[i] = beta * e[i];
    step.out = out;
    pass();

    vf along_e{}, along_u{};
    const float inverse = gated ? 1.0f / product : 1.0f;
    for (int i = 0; i < nv; ++i) {
      if (gated && out) along_u = fma(step.d_o[i], step.u[i], along_u);
      const vf du = product * step.du[i];
      if (DELTA) along_e = fma(du, e[i], along_e);
      step.du[i] = beta * du;  // dv
      step.dv_next[i] = inverse * step.du[i];
    }
    block.store_row(x.dv + row.step(s) * V + block.start, step.du);
    if (DELTA) {
      float* dbeta = x.dbeta + row.step(s);
      *dbeta = (first_block ? 0.0f : *dbeta) + sum(along_e);
    }
    const float own = gated && out ? sum(along_u) : 0.0f;
    if (gated && out) segment.own[t - segment.start] += product * own;
    float* dk = x.dk + row.step(s) * K;
    vf along_k{};
    for (int64_t j = 0; j < K; j += LANES) {
      vf d = sums(r + j);
      if (CHANNEL) {
        float* to = segment.terms + (t - segment.start) * K + j;
        vf term = -load(k_buf + j) * d;
        if (!first_block) term += load_first(to, K - j);
        store_first(to, term, K - j);
      } else if (gated) {
        along_k = fma(load_first(step.k + j, K - j), d, along_k);
      }
      if (gated && out) d = fma(load_first(step.q + j, K - j), splat(own), d);
      d *= CHANNEL ? load(c + j) : splat(product);
      if (!first_block) d += load_first(dk + j, K - j);
      store_first(dk + j, d, K - j);
    }
    if (gated && !CHANNEL) {  // <k u^T, a_{t+1} dX_{t+1}>
      const float term = product * sum(along_k);
      segment.terms[t - segment.start] -= term;
      segment.noise[t - segment.start] += term < 0 ? -term : term;
    }
    step.k_next = row.k(s);
  }

  INLINE inline void pass() {
    for (int i = 0; i < block.vectors(); i += block.part) {
      float* part = G + block.at(0, i);
      if (!step.out)
        with_width(block.width(i), GradientPass<DELTA, false, false>{part, K, step, r, i});
      else if (gated)
        with_width(block.width(i), GradientPass<DELTA, true, true>{part, K, step, r, i});
      else
        with_width(block.width(i), GradientPass<DELTA, true, false>{part, K, step, r, i});
    }
  }

  // The gate of token u, between its first step and the last of the token before it.
  void pass_gate(int64_t u) {
    const float* a = row.gate(u);
    keep(u);
    if (CHANNEL) {
      if (!multiply_gates(c, a, K)) return;
      take_off();
      for (int64_t j = 0; j < K; ++j) c[j] = 1.0f;
      return;
    }
    product *= *a;
    if (!out_of_range(product)) return;
    take_off();
    for (int i = 0; i < block.vectors(); ++i) step.dv_next[i] = vf{};
    product = 1.0f;
  }

  // The true G: with the pending k dv^T subtracted, times the product of gates.
  vf whole(int64_t j, int i) const {
    vf g = load(G + block.at(j, i));
    if (DELTA) g -= step.k_next[j] * step.dv_next[i];
    return (CHANNEL ? c[j] : product) * g;
  }
  void take_off() const {
    for (int64_t j = 0; j < K; ++j)
      for (int i = 0; i < block.vectors(); ++i) store(G + block.at(j, i), whole(j, i));
  }
  // dX for the gates of token u whose gradients are formed directly.
  void keep(int64_t u) const {
    segment.each_direct(u, [&](int64_t channel, float* dX) {
      for (int64_t j = 0; j < (CHANNEL ? 1 : K); ++j)
        for (int i = 0; i < block.vectors(); ++i)
          store(dX + j * padded(V) + block.start + i * LANES, whole(channel + j, i));
    });
  }

  INLINE inline void prefetch_step(int64_t s) const {
    if (s < AHEAD) return;
    const int64_t ahead = s - AHEAD;
    prefetch(row.k(ahead), K);
    if (DELTA) prefetch(x.error + row.step(ahead) * V + block.start, block.count());
    if (!DELTA) prefetch(row.v(ahead) + block.start, block.count());
    prefetch_write(x.dk + row.step(ahead) * K, K);
    prefetch_write(x.dv + row.step(ahead) * V + block.start, block.count());
    if (n > 1 && ahead % n) return;
    prefetch(row.q(ahead / n), K);
    prefetch(x.d_o + row.token(ahead / n) * V + block.start, block.count());
  }
};

}  // namespace
