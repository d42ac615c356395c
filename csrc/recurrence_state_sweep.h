// The sweep of the backward pass that runs forwards in time and computes the states S again, two steps
// at once: see recurrence_backward.h. Lanes lie along K.
#pragma once

#include "recurrence_segment.h"

namespace {

struct StatePair {
  const float *u[2] = {}, *dv[2] = {}, *d_o[2] = {};
  bool out[2] = {};
  vf k[2][MOST], dk[2][MOST], dq[2][MOST];
};

// With a gate, dq is what the output reads of the state before its own token's last step.
template <bool DELTA, bool OUT1, bool OUT2, bool GATED>
struct StatePass {
  float* S;
  int64_t V;
  StatePair& x;
  int first;

  template <int NV>
  void run() const {
    float* S_m = S;
    const float *u1 = x.u[0], *u2 = x.u[1], *dv1 = x.dv[0], *dv2 = x.dv[1];
    const float *do1 = x.d_o[0], *do2 = x.d_o[1];
    vf k1[NV], k2[NV], dk1[NV] = {}, dk2[NV] = {}, dq1[NV] = {}, dq2[NV] = {};
    for (int i = 0; i < NV; ++i) k1[i] = x.k[0][first + i], k2[i] = x.k[1][first + i];
    for (int64_t m = 0; m < V; ++m, S_m += NV * LANES) {
      vf s[NV];
      for (int i = 0; i < NV; ++i) s[i] = load(S_m + i * LANES);
      if (DELTA) {
        const vf d = splat(dv1[m]);
        for (int i = 0; i < NV; ++i) dk1[i] = fma(d, s[i], dk1[i]);
      }
      if (OUT1 && GATED) {
        const vf d = splat(do1[m]);
        for (int i = 0; i < NV; ++i) dq1[i] = fma(d, s[i], dq1[i]);
      }
      const vf u1m = splat(u1[m]);
      for (int i = 0; i < NV; ++i) s[i] = fma(u1m, k1[i], s[i]);
      if (OUT1 && !GATED) {
        const vf d = splat(do1[m]);
        for (int i = 0; i < NV; ++i) dq1[i] = fma(d, s[i], dq1[i]);
      }
      if (DELTA) {
        const vf d = splat(dv2[m]);
        for (int i = 0; i < NV; ++i) dk2[i] = fma(d, s[i], dk2[i]);
      }
      if (OUT2 && GATED) {
        const vf d = splat(do2[m]);
        for (int i = 0; i < NV; ++i) dq2[i] = fma(d, s[i], dq2[i]);
      }
      const vf u2m = splat(u2[m]);
      for (int i = 0; i < NV; ++i) {
        s[i] = fma(u2m, k2[i], s[i]);
        store(S_m + i * LANES, s[i]);
      }
      if (OUT2 && !GATED) {
        const vf d = splat(do2[m]);
        for (int i = 0; i < NV; ++i) dq2[i] = fma(d, s[i], dq2[i]);
      }
    }
    for (int i = 0; i < NV; ++i) {
      x.dk[0][first + i] = dk1[i], x.dk[1][first + i] = dk2[i];
      x.dq[0][first + i] = dq1[i], x.dq[1][first + i] = dq2[i];
    }
  }
};

// Takes S from the start of the segment to its end, one or two steps at a time; gives dq and the rest
// of dk, or only S if GRAD is false.
template <bool DELTA, bool CHANNEL, bool GRAD, class Block>
struct StateSweep {
  const Segment& segment;
  const Block& block;
  float* S;    // of this block
  float* buf;  // 2 padded V
  const Row& row = segment.row;
  const Recurrence& x = row.x;
  int64_t K = x.K, V = x.V, n = x.factors, end = segment.end * n;
  bool gated = x.gate.data;
  int64_t s = segment.start * n, t[2] = {segment.start, 0}, factor[2] = {};
  float product = 1.0f;
  vf c[MOST];
  StatePair pair;

  StateSweep(const Segment& segment, const Block& block, float* S, float* buf)
      : segment(segment), block(block), S(S), buf(buf) {
    for (int i = 0; i < block.vectors(); ++i) c[i] = splat(1.0f);
  }

  bool done() const { return s == end; }

  void advance() {
    const int nv = block.vectors();
    const bool wraps = factor[0] + 1 == n;
    t[1] = t[0] + wraps, factor[1] = wraps ? 0 : factor[0] + 1;
    if (GRAD)
      for (int64_t i = s + AHEAD; i < s + AHEAD + 2 && i < row.steps; ++i) prefetch_step(i);

    bool both = s + 1 < end;
    vf after[2][MOST];  // the products of gates after either step
    if (gated) {
      if (factor[0] == 0) {
        if (GRAD) direct_gates(t[0], nullptr);
        if (multiply(t[0], product, c)) rescale();
      }
      for (int i = 0; i < nv; ++i) after[0][i] = after[1][i] = CHANNEL ? c[i] : splat(product);
      if (both && factor[1] == 0) {
        float next = product;
        // with gates on channels the first step's writing is easily accounted for
        if ((GRAD && !CHANNEL && segment.has_direct(t[1])) || multiply(t[1], next, after[1])) both = false;
        if (!CHANNEL)
          for (int i = 0; i < nv; ++i) after[1][i] = splat(next);
      }
    }
    const int steps = both ? 2 : 1;
    for (int m = 0; m < steps; ++m) {
      block.load_row(pair.k[m], row.k(s + m) + block.start);
      if (CHANNEL)
        for (int i = 0; i < nv; ++i) pair.k[m][i] /= after[m][i];
      pair.u[m] = written(s + m, gated && !CHANNEL ? after[m][0][0] : 1.0f, buf + m * padded(V));
      pair.dv[m] = x.dv + row.step(s + m) * V;
      pair.d_o[m] = x.d_o + row.token(t[m]) * V;
      pair.out[m] = GRAD && factor[m] + 1 == n;
    }
    if (GRAD && CHANNEL && both) direct_gates(t[1], after[0]);
    if (!both) {
      for (int i = 0; i < nv; ++i) pair.k[1][i] = vf{};
      pair.u[1] = pair.u[0], pair.dv[1] = pair.dv[0], pair.out[1] = false;
    }
    pass();
    if (GRAD)
      for (int m = 0; m < steps; ++m) gradients(s + m, t[m], m, gated ? after[m] : nullptr);
    if (gated) {
      product = after[steps - 1][0][0];
      for (int i = 0; i < nv; ++i) c[i] = after[steps - 1][i];
    }
    s += steps;
    const bool ends = factor[steps - 1] + 1 == n;
    t[0] = t[steps - 1] + ends, factor[0] = ends ? 0 : factor[steps - 1] + 1;
  }

  void finish() { rescale(); }

 private:
  // u over the product of gates: what was written into S.
  const float* written(int64_t s, float product, float* to) const {
    if (!DELTA && product == 1.0f) return row.v(s);
    const float* from = DELTA ? x.error + row.step(s) * V : row.v(s);
    float weight = DELTA ? row.beta(s) : 1.0f;
    if (product != 1.0f) weight /= product;
    for (int64_t m = 0; m < V; m += LANES) store(to + m, weight * load_first(from + m, V - m));
    return to;
  }

  INLINE inline void pass() { gated ? pass_with<true>() : pass_with<false>(); }

  template <bool GATED>
  INLINE inline void pass_with() {
    for (int i = 0; i < block.vectors(); i += block.part) {
      float* part = S + block.at(0, i);
      const int width = block.width(i);
      constexpr bool reads = DELTA && GRAD;
      if (pair.out[0] && pair.out[1])
        with_width(width, StatePass<reads, true, true, GATED>{part, V, pair, i});
      else if (pair.out[0])
        with_width(width, StatePass<reads, true, false, GATED>{part, V, pair, i});
      else if (pair.out[1])
        with_width(width, StatePass<reads, false, true, GATED>{part, V, pair, i});
      else
        with_width(width, StatePass<reads, false, false, false>{part, V, pair, i});
    }
  }

  INLINE inline void gradients(int64_t s, int64_t t, int m, const vf* product) {
    const int nv = block.vectors();
    const bool out = pair.out[m];
    const int64_t place = t - segment.start;
    vf along{};  // what the gate's running sum gets: <X, q do^T - k dv^T>
    if (DELTA) {
      float* to = x.dk + row.step(s) * K + block.start;
      vf dk[MOST];
      block.load_row(dk, to);
      for (int i = 0; i < nv; ++i) {
        const vf read = product ? product[i] * pair.dk[m][i] : pair.dk[m][i];
        if (gated) along -= pair.k[m][i] * read;
        dk[i] -= read;
      }
      block.store_row(to, dk);
    }
    if (out) {
      vf* dq = pair.dq[m];
      const float scale = static_cast<float>(x.scale);
      for (int i = 0; i < nv; ++i) dq[i] *= product ? scale * product[i] : splat(scale);
      if (gated) {
        vf q[MOST];
        block.load_row(q, row.q(t) + block.start);
        const vf own = splat(segment.own[place]);
        for (int i = 0; i < nv; ++i) {
          q[i] *= dq[i];
          if (!CHANNEL) along += q[i];
          dq[i] = fma(own, CHANNEL ? product[i] * pair.k[m][i] : pair.k[m][i], dq[i]);
        }
        if (CHANNEL) {
          float* terms = segment.terms + place * K + block.start;
          vf before[MOST];
          block.load_row(before, terms);
          for (int i = 0; i < nv; ++i) q[i] += before[i];
          block.store_row(terms, q);
        }
      }
      block.store_row(x.dq + row.token(t) * K + block.start, dq);
    }
    if (!gated || CHANNEL || !(DELTA || out)) return;
    const float term = sum(along);
    segment.terms[place] += term;
    segment.noise[place] += term < 0 ? -term : term;
  }

  // The gate of token t into the products; whether one of them is out of range now.
  bool multiply(int64_t t, float& product, vf* c) const {
    const float* a = row.gate(t);
    if (!CHANNEL) {
      product *= *a;
      return out_of_range(product);
    }
    vi bad{};
    for (int i = 0; i < block.vectors(); ++i) {
      vf gates = load_first(a + block.start + i * LANES, block.lanes(i));
      for (int64_t j = block.lanes(i); j < LANES; ++j) gates[j] = 1.0f;
      c[i] *= gates;
      bad |= out_of_range(c[i]);
    }
    return any(bad);
  }

  void rescale() {
    for (int64_t m = 0; m < V; ++m)
      for (int i = 0; i < block.vectors(); ++i) {
        float* s = S + block.at(m, i);
        store(s, (CHANNEL ? c[i] : splat(product)) * load(s));
      }
    product = 1.0f;
    for (int i = 0; i < block.vectors(); ++i) c[i] = splat(1.0f);
  }

  // <dX_t, S_{t-1}> where it is asked for, of this block's channels. If token t is the second of a
  // pair, S in memory is that before the first; `after` are the products of gates behind the first.
  void direct_gates(int64_t t, const vf* after) const {
    float* dgate = x.dgate + row.token(t) * x.gate_channels;
    segment.each_direct(t, [&](int64_t channel, const float* dX) {
      if (!CHANNEL) {
        double along = block.start ? *dgate : 0.0;
        for (int64_t j = 0; j < block.count(); ++j)
          along += double(product) * along_state(dX + (block.start + j) * padded(V), j);
        *dgate = static_cast<float>(along);
        return;
      }
      const int64_t j = channel - block.start;
      if (j < 0 || j >= block.count()) return;
      float along = (after ? after : c)[j / LANES][j % LANES] * along_state(dX, j);
      if (after) along += row.k(t - 1)[channel] * dot(dX, row.v(t - 1), V);
      dgate[channel] = along;
    });
  }
  // <dX, S> of channel j, which lies strided.
  float along_state(const float* dX, int64_t j) const {
    constexpr int CHAINS = 8;  // independent sums, so that additions do not wait for each other
    const float* s = S + block.element(0, j);
    const int64_t stride = block.element(1, j) - block.element(0, j);
    float along[CHAINS] = {};
    int64_t m = 0;
    for (; m + CHAINS <= V; m += CHAINS, s += CHAINS * stride)
      for (int i = 0; i < CHAINS; ++i) along[i] += dX[m + i] * s[i * stride];
    for (; m < V; ++m, s += stride) along[0] += dX[m] * *s;
    for (int n = CHAINS / 2; n; n /= 2)
      for (int i = 0; i < n; ++i) along[i] += along[i + n];
    return along[0];
  }

  INLINE inline void prefetch_step(int64_t s) const {
    prefetch(row.k(s) + block.start, block.count());
    prefetch_write(x.dk + row.step(s) * K + block.start, block.count());
    if (DELTA) prefetch(x.dv + row.step(s) * V, V);
    prefetch(DELTA ? x.error + row.step(s) * V : row.v(s), V);
    if (n > 1 && s % n) return;
    prefetch(x.d_o + row.token(s / n) * V, V);
    prefetch_write(x.dq + row.token(s / n) * K + block.start, block.count());
  }
};

}  // namespace
