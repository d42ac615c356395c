#pragma once

#include "recurrence.h"

namespace {

// Inputs and results of two steps for the columns of a block. If there is no second, its u is 0.
struct StepPair {
  const float *k[2] = {}, *q[2] = {};  // of these steps
  const float* k_next[2] = {};         // of those that follow
  bool out[2] = {};                    // whether o is asked for
  vf u[2][MOST], o[2][MOST];
  vf p[2][MOST];  // S^T k_next, after both steps
};

// One pass over the state: write k u^T and read with q for both steps, then read with the next
// steps' keys (DELTA).
template <bool DELTA, bool OUT1, bool OUT2>
struct ForwardPass {
  float* S;
  int64_t K;
  StepPair& x;
  int first;  // vector

  template <int NV>
  void run() const {
    float* S_j = S;
    const float *k1 = x.k[0], *k2 = x.k[1], *q1 = x.q[0], *q2 = x.q[1];
    const float *k3 = x.k_next[0], *k4 = x.k_next[1];
    vf u1[NV], u2[NV], o1[NV] = {}, o2[NV] = {}, p1[NV] = {}, p2[NV] = {};
    for (int i = 0; i < NV; ++i) u1[i] = x.u[0][first + i], u2[i] = x.u[1][first + i];
    for (int64_t j = 0; j < K; ++j, S_j += NV * LANES) {
      vf s[NV];
      const vf k1j = splat(k1[j]);
      for (int i = 0; i < NV; ++i) s[i] = fma(k1j, u1[i], load(S_j + i * LANES));
      if (OUT1) {
        const vf q1j = splat(q1[j]);
        for (int i = 0; i < NV; ++i) o1[i] = fma(q1j, s[i], o1[i]);
      }
      const vf k2j = splat(k2[j]);
      for (int i = 0; i < NV; ++i) {
        s[i] = fma(k2j, u2[i], s[i]);
        store(S_j + i * LANES, s[i]);
      }
      if (OUT2) {
        const vf q2j = splat(q2[j]);
        for (int i = 0; i < NV; ++i) o2[i] = fma(q2j, s[i], o2[i]);
      }
      if (DELTA) {
        const vf k3j = splat(k3[j]), k4j = splat(k4[j]);
        for (int i = 0; i < NV; ++i) p1[i] = fma(k3j, s[i], p1[i]), p2[i] = fma(k4j, s[i], p2[i]);
      }
    }
    for (int i = 0; i < NV; ++i) {
      x.o[0][first + i] = o1[i], x.o[1][first + i] = o2[i];
      x.p[0][first + i] = p1[i], x.p[1][first + i] = p2[i];
    }
  }
};

template <bool DELTA, class Block>
inline void forward_pass(const Block& block, float* S, StepPair& x) {
  for (int i = 0; i < block.vectors(); i += block.part) {
    float* part = S + block.at(0, i);
    const int width = block.width(i);
    if (x.out[0] && x.out[1])
      with_width(width, ForwardPass<DELTA, true, true>{part, block.rows, x, i});
    else if (x.out[0])
      with_width(width, ForwardPass<DELTA, true, false>{part, block.rows, x, i});
    else if (x.out[1])
      with_width(width, ForwardPass<DELTA, false, true>{part, block.rows, x, i});
    else
      with_width(width, ForwardPass<DELTA, false, false>{part, block.rows, x, i});
  }
}

// The forward pass over one sequence and head, for the columns of a block.
template <bool DELTA, bool CHANNEL, class Block>
struct ForwardHead {
  const Recurrence& x;
  const Row row;
  const Block& block;
  float* S;      // [K] rows
  float* c;      // running products of gates on channels, after either step
  float* k_buf;  // k / c
  float* q_buf;  // q c
  int64_t K = x.K, V = x.V, n = x.factors, Kp = padded(x.K);
  bool gated = x.gate.data;
  bool alone;  // one head by itself: its rows lie apart, which hardware does not predict
  int64_t s = 0, t[2] = {}, factor[2] = {};  // the step to come, and the one after it
  float product = 1.0f;
  StepPair pair;

  static int64_t scratch(const Recurrence& x, const Block& block) {
    return block.size() + 6 * padded(x.K);
  }

  ForwardHead(const Recurrence& x, int64_t sequence, int64_t head, const Block& block, float* buf,
              bool alone)
      : x(x), row(x, sequence, head), block(block), S(buf), c(buf + block.size()), alone(alone) {
    k_buf = c + 2 * Kp, q_buf = c + 4 * Kp;
    const float* initial = x.initial ? x.initial + row.state() + block.start : nullptr;
    for (int64_t j = 0; j < K; ++j) {
      vf s[MOST] = {};
      if (initial) block.load_row(s, initial + j * V);
      for (int i = 0; i < block.vectors(); ++i) store(S + block.at(j, i), s[i]);
    }
    for (int64_t j = 0; j < 2 * Kp; ++j) c[j] = 1.0f;
    if (!DELTA) return;
    for (int i = 0; i < block.vectors(); ++i) pair.p[0][i] = pair.p[1][i] = vf{};
    if (!initial) return;
    pair.k[0] = pair.k[1] = key(0);  // a pass that writes nothing, to read with the first keys
    pair.k_next[0] = key(0), pair.k_next[1] = key(1);
    pair.out[0] = pair.out[1] = false;
    for (int i = 0; i < block.vectors(); ++i) pair.u[0][i] = pair.u[1][i] = vf{};
    forward_pass<true>(block, S, pair);
  }

  const float* key(int64_t s) const { return row.k(s < row.steps ? s : row.steps - 1); }

  bool done() const { return s == row.steps; }

  void advance() {
    const bool wraps = factor[0] + 1 == n;
    t[1] = t[0] + wraps, factor[1] = wraps ? 0 : factor[0] + 1;
    if (alone) prefetch_ahead();
    float after[2];  // the product of gates after either step
    const bool both = gates(after);
    const int steps = both ? 2 : 1;
    if (both && DELTA) {
      const vf between = splat(dot(key(s), key(s + 1), K));
      prepare(0, after[0]);
      for (int i = 0; i < block.vectors(); ++i)
        pair.p[1][i] = fma(between, pair.u[0][i], pair.p[1][i]);
      prepare(1, after[1]);
    } else {
      prepare(0, after[0]);
      if (both) prepare(1, after[1]);
    }
    if (!both) {
      for (int i = 0; i < block.vectors(); ++i) pair.u[1][i] = vf{};
      pair.k[1] = pair.k[0], pair.out[1] = false;
    }
    pair.k_next[0] = key(s + steps), pair.k_next[1] = key(s + steps + 1);
    forward_pass<DELTA>(block, S, pair);
    for (int m = 0; m < steps; ++m) {
      if (!pair.out[m]) continue;
      const float scale = static_cast<float>(x.scale) * after[m];
      for (int i = 0; i < block.vectors(); ++i) pair.o[m][i] *= scale;
      block.store_row(x.o + row.token(t[m]) * V + block.start, pair.o[m]);
    }
    product = after[steps - 1];
    if (CHANNEL && both) std::memcpy(c, c + Kp, Kp * 4);
    s += steps;
    const bool ends = factor[steps - 1] + 1 == n;
    t[0] = t[steps - 1] + ends, factor[0] = ends ? 0 : factor[steps - 1] + 1;
  }

  void finish() const {
    float* final = x.final + row.state() + block.start;
    for (int64_t j = 0; j < K; ++j) {
      vf s[MOST];
      for (int i = 0; i < block.vectors(); ++i)
        s[i] = (CHANNEL ? c[j] : product) * load(S + block.at(j, i));
      block.store_row(final + j * V, s);
    }
  }

 private:
  // The products of gates after the next two steps; whether both can go at once. Where the second
  // would make a product leave its range, only the first is done now.
  bool gates(float* after) {
    bool both = s + 1 < row.steps;
    after[0] = after[1] = product;
    if (!gated) return both;
    if (CHANNEL) {
      if (multiply_gates(c, row.gate(t[0]), K))  // all channels, so that the next is far off
        for (int64_t j = 0; j < K; ++j) scale_state(j, c[j]), c[j] = 1.0f;
      std::memcpy(c + Kp, c, Kp * 4);
      return both && !multiply_gates(c + Kp, row.gate(t[1]), K);
    }
    if (factor[0] == 0) product *= *row.gate(t[0]);
    if (out_of_range(product)) {
      for (int64_t j = 0; j < K; ++j) scale_state(j, product);
      if (DELTA)
        for (int i = 0; i < block.vectors(); ++i) pair.p[0][i] *= product, pair.p[1][i] *= product;
      product = 1.0f;
    }
    after[0] = after[1] = product;
    if (both && factor[1] == 0) after[1] *= *row.gate(t[1]);
    return both && !out_of_range(after[1]);
  }

  void scale_state(int64_t j, float by) const {
    for (int i = 0; i < block.vectors(); ++i) {
      float* s = S + block.at(j, i);
      store(s, by * load(s));
    }
  }

  // u of step s + m, over the product of gates.
  INLINE inline void prepare(int m, float after) {
    const int64_t step = s + m;
    vf* u = pair.u[m];
    block.load_row(u, row.v(step) + block.start);
    if (DELTA) {
      for (int i = 0; i < block.vectors(); ++i) u[i] -= after * pair.p[m][i];
      if (x.error) block.store_row(x.error + row.step(step) * V + block.start, u);
      const float beta = gated ? row.beta(step) / after : row.beta(step);
      for (int i = 0; i < block.vectors(); ++i) u[i] *= beta;
    } else if (gated && !CHANNEL) {
      const float inverse = 1.0f / after;
      for (int i = 0; i < block.vectors(); ++i) u[i] *= inverse;
    }
    pair.k[m] = row.k(step), pair.q[m] = row.q(t[m]);
    pair.out[m] = factor[m] + 1 == n;
    if (CHANNEL) {
      over(k_buf + m * Kp, pair.k[m], c + m * Kp, K);
      times(q_buf + m * Kp, pair.q[m], c + m * Kp, K);
      pair.k[m] = k_buf + m * Kp, pair.q[m] = q_buf + m * Kp;
    }
  }

  INLINE inline void prefetch_ahead() const {
    for (int64_t i = s + AHEAD; i < s + AHEAD + 2 && i < row.steps; ++i) {
      prefetch(row.k(i), K);
      prefetch(row.v(i) + block.start, block.count());
      if (DELTA && x.error) prefetch_write(x.error + row.step(i) * V + block.start, block.count());
      if (n > 1 && i % n) continue;
      prefetch(row.q(i / n), K);
      prefetch_write(x.o + row.token(i / n) * V + block.start, block.count());
    }
  }
};

template <bool DELTA, bool CHANNEL>
struct ForwardUnits {
  const Recurrence& x;
  Blocks<PAIR_PART> blocks{x.K, x.V};
  HeadGroups heads_of{x, blocks[0].size()};

  int64_t count() const { return x.N * heads_of.groups * blocks.count(); }

  void operator()(int64_t i) const {
    const int64_t group = i / blocks.count();
    with_constants(blocks[i % blocks.count()], [&](const auto& block) {
      run(group / heads_of.groups, group % heads_of.groups, block);
    });
  }

  template <class Block>
  void run(int64_t sequence, int64_t group, const Block& block) const {
    using Head = ForwardHead<DELTA, CHANNEL, Block>;
    const int64_t size = Head::scratch(x, block);
    Scratch scratch(heads_of.together * size);
    PerHead<Head> heads;
    const bool alone = heads_of.together == 1 || heads_of.turn > 1;
    each_head(heads_of, group, [&](int64_t head, int i) {
      heads.add(x, sequence, head, block, scratch.get() + i * size, alone);
    });
    heads.run(heads_of.turn);
  }
};

void recurrence_forward(const Recurrence& x) {
  if (!x.beta.data && x.gate.data && x.gate_channels > 1)
    run_all<ForwardUnits<false, true>>(x);
  else if (x.beta.data)
    run_all<ForwardUnits<true, false>>(x);
  else
    run_all<ForwardUnits<false, false>>(x);
}

}  // namespace
