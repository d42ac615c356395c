// The backward pass in two sweeps, without stored states.
//
// The gradient sweep runs backwards in time and carries only G = dL/dS: it gives dv, dbeta and the
// part of dk that comes from what was written. The state sweep runs forwards and computes S again
// from the saved errors: it gives dq and the part of dk that comes from what was read. In the first
// the lanes lie along V, in the second along K, so little is summed across lanes, and each sweep
// holds one state in the cache.
//
// The gradient of log a_t is a running sum, for X_t = a_t S_{t-1} and dX_t = dL/dX_t:
//     <dX_t, X_t> = <dX_{t+1}, X_{t+1}> + <q_t do_t^T - k_t dv_t^T, X_t> - <k_t u_t^T, a_{t+1} dX_{t+1}>
// (channel by channel if there is a gate for each). Neither term contains what a token reads of its own
// write, so both are as small as the gates they pass through, and so are their rounding errors. Only
// in a token of several steps do such parts remain, and cancel.
// The sum loses digits for small gates (it is divided by a_t) and in tokens of several steps. There
// <dX_t, S_{t-1}>, the gradient of a_t, is computed directly, from dX that the gradient sweep keeps
// until the state sweep has S; so it is for all gates of every 256th token, which stops errors from
// accumulating. Long sequences are cut into segments. One extra pass keeps the state at each segment's
// start, from which S is computed again.
#pragma once

#include "pointwise.h"
#include "recurrence_gradient_sweep.h"
#include "recurrence_state_sweep.h"

namespace {

constexpr int64_t SEGMENT = 4096, SHORTEST_SEGMENT = 256;  // tokens
constexpr int64_t MILESTONE = 256;                         // tokens between restarts of the running sums
constexpr int64_t MOST_KEPT = int64_t(1) << 20;  // floats of dX for small gates, unless segments get too short

struct Sum {
  double value, noise;  // squared
};

// Gates so small that the rounding errors of a running sum hide their gradients. The gradient of
// log a needs no division by a, and is 0 where a = 0.
struct SmallGates {
  bool log_gate;
  float size;

  explicit SmallGates(const Recurrence& x)
      : log_gate(x.log_gate), size(x.factors > 1 ? 0x1p-4f : log_gate ? 0.0f : 0x1p-6f) {}
  bool operator()(float a) const { return -size < a && a < size && !(log_gate && a == 0); }
};

// One sequence and head: its scratch memory and what happens between the sweeps.
template <bool DELTA, bool CHANNEL>
struct BackwardHead {
  const Row row;
  const Recurrence& x = row.x;
  int64_t K = x.K, V = x.V, channels = x.gate_channels;
  Blocks<STEP_PART> v_blocks{K, V};
  Blocks<PAIR_PART> k_blocks{V, K};
  bool gated = x.gate.data;
  SmallGates is_small{x};
  int64_t state = V * padded(K), gradient = K * padded(V);
  int64_t per_gate = CHANNEL ? padded(V) : gradient;  // floats of dX that a gate stands for
  int64_t most_small = 0;                             // of a segment's gates
  int64_t length = segment_length(), segments = (row.tokens + length - 1) / length;
  int64_t tokens = gated ? padded(length) : 0, gates = tokens * channels;
  // With one key channel a state is short: all gradients are formed directly.
  int64_t milestone = K == 1 ? 1 : MILESTONE;
  int64_t direct_gates = gated ? most_small + divide_up(length, milestone) * channels : 0;
  int64_t indices = direct_gates ? length + 1 + direct_gates + 1 : 0;
  int64_t buf_size = (3 + LANES) * padded(K) + 2 * padded(V);
  Scratch scratch{state + 2 * gradient + buf_size + segments * state + direct_gates * per_gate +
                  gates + 6 * tokens + padded(channels) + 2 * indices};
  float* S = scratch.get();  // blocks along K
  float* G = S + state;      // blocks along V
  float* G_end = G + gradient;
  float* buf = G_end + gradient;
  float* checkpoints = buf + buf_size;  // S where segments start
  float* dX = checkpoints + segments * state;
  float* terms = dX + direct_gates * per_gate;
  float* noise = terms + gates;
  float* own = noise + tokens;
  float* totals = own + tokens;
  Sum* from_end = reinterpret_cast<Sum*>(totals + padded(channels));
  int64_t* direct = reinterpret_cast<int64_t*>(from_end + tokens);
  int64_t* channel = direct + length + 1;
  Segment segment{row, 0, 0, terms, noise, own, direct_gates ? direct : nullptr, channel, dX};

  BackwardHead(const Recurrence& x, int64_t sequence, int64_t head) : row(x, sequence, head) {
    load_state(checkpoints);
    load_gradient(G);
  }

  void enter(int64_t i) {
    segment.start = i * length;
    segment.end = (i + 1) * length < row.tokens ? (i + 1) * length : row.tokens;
    std::memcpy(S, checkpoints + i * state, state * 4);
  }
  void keep_state(int64_t i) { std::memcpy(checkpoints + i * state, S, state * 4); }

  void before_sweeps() {
    if (!gated) return;
    int64_t used = direct[0] = 0;
    for (int64_t t = segment.start; t < segment.end; ++t) {
      if (most_small || is_milestone(t))
        for (int64_t j = 0; j < channels; ++j) channel[used] = j, used += is_direct(t, j);
      direct[t - segment.start + 1] = used;
    }
    for (float* p = CHANNEL ? own : terms; p < own + tokens; ++p) *p = 0;
    if (!CHANNEL) std::memcpy(G_end, G, gradient * 4);
  }
  void after_sweeps() {
    if (!gated) return;
    CHANNEL ? write_dgates() : write_dgate();
  }

  // Whether a gate's gradient is formed directly.
  bool is_direct(int64_t t, int64_t j) const {
    return (is_milestone(t) || is_small(row.gate(t)[j])) && !begins_empty(t);
  }
  bool is_milestone(int64_t t) const { return (t & (milestone - 1)) == 0; }  // a power of 2
  bool begins_empty(int64_t t) const { return t == 0 && !x.initial; }  // no state to be gated

  // In tokens: halved until what is kept for small gates, at most `most_small`, fits MOST_KEPT.
  int64_t segment_length() {
    if (!gated) return row.tokens;
    int64_t tokens = row.tokens < SEGMENT ? row.tokens : SEGMENT;
    while (count_small(tokens) * per_gate > MOST_KEPT && tokens > SHORTEST_SEGMENT) tokens /= 2;
    return tokens;
  }
  int64_t count_small(int64_t tokens) {
    most_small = 0;
    if (is_small.size == 0) return 0;
    for (int64_t start = 0; start < row.tokens; start += tokens) {
      int64_t count = 0;
      for (int64_t t = start; t < row.tokens && t < start + tokens; ++t)
        for (int64_t j = 0; j < channels; ++j) count += is_small(row.gate(t)[j]);
      if (count > most_small) most_small = count;
    }
    return most_small;
  }

  // f(block) for all blocks.
  template <class B, class F>
  static void each(const B& blocks, const F& f) {
    for (int64_t i = 0, n = blocks.count(); i < n; ++i) f(blocks[i]);
  }

  void load_state(float* S) const {
    for (int64_t i = 0; i < V * padded(K); ++i) S[i] = 0;
    if (!x.initial) return;
    const float* from = x.initial + row.state();
    each(k_blocks, [&](const auto& block) {
      for (int64_t j = 0; j < block.count(); ++j)
        for (int64_t m = 0; m < V; ++m)
          S[block.start * V + block.element(m, j)] = from[(block.start + j) * V + m];
    });
  }

  void load_gradient(float* G) const {
    for (int64_t i = 0; i < K * padded(V); ++i) G[i] = 0;
    if (!x.d_final) return;
    const float* from = x.d_final + row.state();
    each(v_blocks, [&](const auto& block) {
      for (int64_t j = 0; j < K; ++j)
        for (int i = 0; i < block.vectors(); ++i)
          store(G + block.start * K + block.at(j, i),
                load_first(from + j * V + block.start + i * LANES, block.lanes(i)));
    });
  }

  void store_gradient() const {
    if (!x.d_initial) return;
    float* to = x.d_initial + row.state();
    each(v_blocks, [&](const auto& block) {
      for (int64_t j = 0; j < K; ++j)
        for (int i = 0; i < block.vectors(); ++i)
          store_first(to + j * V + block.start + i * LANES,
                      load(G + block.start * K + block.at(j, i)), block.lanes(i));
    });
  }

  // <G, S> at the segment's end.
  double product_at_end() const {
    double total = 0;
    if (segment.end == row.tokens && !x.d_final) return total;
    each(v_blocks, [&](const auto& v) {
      each(k_blocks, [&](const auto& k) {
        for (int64_t j = 0; j < k.count(); ++j)
          for (int64_t m = 0; m < v.count(); ++m)
            total += double(G_end[v.start * K + v.element(k.start + j, m)]) *
                     S[k.start * V + k.element(v.start + m, j)];
      });
    });
    return total;
  }

  // Gradients of a gate per channel: running sums from the segment's start, where they are known.
  void write_dgates() {
    const vf zero{};
    for (int64_t t = segment.start; t < segment.end; ++t) {
      const float* a = row.gate(t);
      const float* term = terms + (t - segment.start) * K;
      float* out = x.dgate + row.token(t) * K;
      if (begins_empty(t))
        for (int64_t j = 0; j < K; ++j) totals[j] = 0;
      segment.each_direct(t, [&](int64_t j, float* dX) { totals[j] = a[j] * out[j], *dX = out[j]; });
      for (int64_t j = 0; j < K; j += LANES) {
        const vf gate = load_filled(a + j, K - j, 1.0f), total = load(totals + j);
        const vf along = gate == zero ? zero : total;
        store(totals + j, along - load_first(term + j, K - j));
        store_first(out + j, x.log_gate ? along : along / gate, K - j);
      }
      if (x.log_gate) continue;
      if (begins_empty(t))
        for (int64_t j = 0; j < K; ++j) out[j] = 0;
      segment.each_direct(t, [&](int64_t j, const float* dX) { out[j] = *dX; });
    }
  }

  // Gradients of one gate for all channels: a sum from the segment's end and one from its start, each
  // restarted where <a dX, S> is known. Every token takes the one with less noise.
  void write_dgate() {
    const int64_t tokens = segment.end - segment.start;
    float* out = x.dgate + row.token(segment.start);
    Sum sum{product_at_end(), 0};
    for (int64_t i = tokens - 1; i >= 0; --i) {
      const float a = *row.gate(segment.start + i);
      const bool direct = segment.has_direct(segment.start + i);
      if (direct || a == 0 || begins_empty(segment.start + i))
        sum = {direct ? double(a) * out[i * x.H] : 0.0, 0};
      else
        sum = {sum.value + terms[i], sum.noise + double(noise[i]) * noise[i]};
      from_end[i] = sum;
    }
    for (int64_t i = 0; i < tokens; ++i) {  // the first one is known
      if (i == 0 || from_end[i].noise <= sum.noise) sum = from_end[i];
      if (x.log_gate || !segment.has_direct(segment.start + i))
        out[i * x.H] = gradient_of_gate(sum.value, *row.gate(segment.start + i));
      sum = {sum.value - terms[i], sum.noise + double(noise[i]) * noise[i]};
    }
  }
  float gradient_of_gate(double along, float a) const {
    return static_cast<float>(x.log_gate || along == 0 ? along : along / a);
  }
};

template <bool DELTA, bool CHANNEL>
struct BackwardUnits {
  using Head = BackwardHead<DELTA, CHANNEL>;
  const Recurrence& x;
  HeadGroups heads_of{x, x.K * x.V};

  int64_t count() const { return x.N * heads_of.groups; }

  void operator()(int64_t i) const {
    PerHead<Head> heads;
    each_head(heads_of, i % heads_of.groups, [&](int64_t head, int) {
      heads.add(x, i / heads_of.groups, head);
    });
    run(heads.items, heads.count);
  }

  void run(Head** heads, int n) const {
    // heads with small gates are cut into other segments: then each goes by itself
    for (int i = 1; i < n; ++i)
      if (heads[i]->length != heads[0]->length) {
        for (int j = 0; j < n; ++j) run(heads + j, 1);
        return;
      }
    const int64_t segments = heads[0]->segments;
    for (int64_t i = 0; i + 1 < segments; ++i) {  // the states at which segments start
      for (int j = 0; j < n; ++j) heads[j]->enter(i);
      state_sweep<false>(heads, n);
      for (int j = 0; j < n; ++j) heads[j]->keep_state(i + 1);
    }
    for (int64_t i = segments - 1; i >= 0; --i) {
      for (int j = 0; j < n; ++j) heads[j]->enter(i), heads[j]->before_sweeps();
      gradient_sweep(heads, n);
      state_sweep<true>(heads, n);
      for (int j = 0; j < n; ++j) heads[j]->after_sweeps();
    }
    for (int j = 0; j < n; ++j) heads[j]->store_gradient();
  }

  void gradient_sweep(Head** heads, int n) const {
    Head::each(heads[0]->v_blocks, [&](const auto& some) {
      with_constants(some, [&](const auto& block) { gradient_sweep_block(heads, n, block); });
    });
  }
  template <bool GRAD>
  void state_sweep(Head** heads, int n) const {
    Head::each(heads[0]->k_blocks, [&](const auto& some) {
      with_constants(some, [&](const auto& block) { state_sweep_block<GRAD>(heads, n, block); });
    });
  }
  template <class Block>
  void gradient_sweep_block(Head** heads, int n, const Block& block) const {
    PerHead<GradientSweep<DELTA, CHANNEL, Block>> sweeps;
    for (int i = 0; i < n; ++i)
      sweeps.add(heads[i]->segment, block, heads[i]->G + block.start * x.K, heads[i]->buf);
    sweeps.run(heads_of.turn);
  }
  template <bool GRAD, class Block>
  void state_sweep_block(Head** heads, int n, const Block& block) const {
    PerHead<StateSweep<DELTA, CHANNEL, GRAD, Block>> sweeps;
    for (int i = 0; i < n; ++i)
      sweeps.add(heads[i]->segment, block, heads[i]->S + block.start * x.V, heads[i]->buf);
    sweeps.run(heads_of.turn);
  }
};

void recurrence_backward(const Recurrence& x) {
  if (!x.beta.data && x.gate.data && x.gate_channels > 1)
    run_all<BackwardUnits<false, true>>(x);
  else if (x.beta.data)
    run_all<BackwardUnits<true, false>>(x);
  else
    run_all<BackwardUnits<false, false>>(x);
}

}  // namespace
