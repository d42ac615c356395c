// The backward pass in two sweeps, without stored states.
//
// Sweep A runs backwards in time and carries only G = dL/dS: it gives dv, dbeta and the part of dk
// that comes from what was written. Sweep B runs forwards and regenerates S from the saved errors:
// it gives dq and the part of dk that comes from what was read. In A the lanes lie along V, in B
// along K, so little is summed across lanes, and each sweep holds one state in the cache.
//
// The gradient of log a_t is a running sum, for X_t = a_t S_{t-1} and dX_t = dL/dX_t:
//     <dX_t, X_t> = <dX_{t+1}, X_{t+1}> + <do_t, o_t> - sum over the token's steps of <dv, v>
// (channel by channel: + q dq - k dk). Dividing by a_t would lose everything for small a_t: there
// <dX_t, S_{t-1}> is formed directly. Both that and the loss of digits in long sums ask for states
// in the middle of a sequence, so gated sequences are cut into segments, from whose first states
// (kept in one extra pass) S is regenerated.
#pragma once

#include "sweeps.h"

namespace {

constexpr int64_t SEGMENT = 4096, SMALL_GATE_SEGMENT = 256;  // tokens

template <bool DELTA, bool CHANNEL>
struct BackwardRow {
  const Row& row;
  int64_t K = row.x.K, V = row.x.V, channels = row.x.gate_channels;
  Blocks<STEP_PART> v_blocks{K, V};
  Blocks<PAIR_PART> k_blocks{V, K};
  bool gated = row.x.gate.data;

  void run() const {
    const Recurrence& x = row.x;
    bool small = false;
    if (gated && !x.log_gate)
      for (int64_t t = 0; t < row.tokens && !small; ++t) small = small_token(t);
    int64_t length = gated ? (small ? SMALL_GATE_SEGMENT : SEGMENT) : row.tokens;
    if (length > row.tokens) length = row.tokens;
    const int64_t segments = (row.tokens + length - 1) / length;

    const int64_t state = V * padded(K), gradient = K * padded(V);
    const int64_t slots = small ? length : 0, all_terms = gated ? padded(length * channels) : 0;
    const int64_t buf_size = (3 + LANES) * padded(K) + 2 * padded(V);
    Scratch scratch(state + 2 * gradient + buf_size + segments * state + slots * gradient +
                    all_terms + 2 * (length + channels));
    float* S = scratch.get();
    float* G = S + state;
    float* G_end = G + gradient;
    float* buf = G_end + gradient;
    float* checkpoints = buf + buf_size;
    float* dX = checkpoints + segments * state;
    float* terms = dX + slots * gradient;
    int64_t* slot = reinterpret_cast<int64_t*>(terms + all_terms);
    double* totals = reinterpret_cast<double*>(slot + length);

    load_state(checkpoints);
    for (int64_t i = 0; i + 1 < segments; ++i) {  // the states at which segments start
      const Segment segment{row, i * length, (i + 1) * length, terms, slot, dX};
      for (int64_t t = 0; t < length; ++t) slot[t] = -1;
      std::memcpy(S, checkpoints + i * state, state * 4);
      sweep_b<false>(segment, S, buf);
      std::memcpy(checkpoints + (i + 1) * state, S, state * 4);
    }
    load_gradient(G);
    for (int64_t i = segments - 1; i >= 0; --i) {
      const int64_t end = (i + 1) * length < row.tokens ? (i + 1) * length : row.tokens;
      const Segment segment{row, i * length, end, terms, slot, dX};
      if (gated) {
        int64_t used = 0;
        for (int64_t t = segment.start; t < segment.end; ++t)
          slot[t - segment.start] = small && small_token(t) ? used++ : -1;
        for (int64_t j = 0; j < length * channels; ++j) terms[j] = 0;
        std::memcpy(G_end, G, gradient * 4);
      }
      each(v_blocks, [&](const auto& block) {
        with_constants(block, [&](const auto& b) { sweep_a_block(segment, b, G, buf); });
      });
      std::memcpy(S, checkpoints + i * state, state * 4);
      sweep_b<true>(segment, S, buf);
      if (gated) write_dgate(segment, G_end, S, totals);
    }
    store_gradient(G);
  }

  bool small_token(int64_t t) const {
    const float* a = row.gate(t);
    for (int64_t j = 0; j < channels; ++j)
      if (is_small(a[j])) return true;
    return false;
  }

  template <class Block>
  void sweep_a_block(const Segment& segment, const Block& block, float* G, float* buf) const {
    SweepA<DELTA, CHANNEL, Block>{segment, block, G + block.start * K, buf}.run();
  }
  template <bool GRAD, class Block>
  void sweep_b_block(const Segment& segment, const Block& block, float* S, float* buf) const {
    SweepB<DELTA, CHANNEL, GRAD, Block>{segment, block, S + block.start * V, buf}.run();
  }
  template <bool GRAD>
  void sweep_b(const Segment& segment, float* S, float* buf) const {
    each(k_blocks, [&](const auto& block) {
      with_constants(block, [&](const auto& b) { sweep_b_block<GRAD>(segment, b, S, buf); });
    });
  }

  // f(block) for all blocks.
  template <class B, class F>
  static void each(const B& blocks, const F& f) {
    for (int64_t i = 0, n = blocks.count(); i < n; ++i) f(blocks[i]);
  }

  // In scratch, states have their blocks along K and gradients of states along V.
  void load_state(float* S) const {
    for (int64_t i = 0; i < V * padded(K); ++i) S[i] = 0;
    if (!row.x.initial) return;
    const float* from = row.x.initial + row.state();
    each(k_blocks, [&](const auto& block) {
      for (int64_t j = 0; j < block.count(); ++j)
        for (int64_t m = 0; m < V; ++m)
          S[block.start * V + block.element(m, j)] = from[(block.start + j) * V + m];
    });
  }

  void load_gradient(float* G) const {
    for (int64_t i = 0; i < K * padded(V); ++i) G[i] = 0;
    if (!row.x.d_final) return;
    const float* from = row.x.d_final + row.state();
    each(v_blocks, [&](const auto& block) {
      for (int64_t j = 0; j < K; ++j)
        for (int i = 0; i < block.vectors(); ++i)
          store(G + block.start * K + block.at(j, i),
                load_first(from + j * V + block.start + i * LANES, block.lanes(i)));
    });
  }

  void store_gradient(const float* G) const {
    float* to = row.x.d_initial + row.state();
    each(v_blocks, [&](const auto& block) {
      for (int64_t j = 0; j < K; ++j)
        for (int i = 0; i < block.vectors(); ++i)
          store_first(to + j * V + block.start + i * LANES,
                      load(G + block.start * K + block.at(j, i)), block.lanes(i));
    });
  }

  // totals += <G, S>, for all channels together or one by one.
  void add_product(const float* G, const float* S, double* totals) const {
    each(v_blocks, [&](const auto& v) {
      each(k_blocks, [&](const auto& k) {
        for (int64_t j = 0; j < k.count(); ++j)
          for (int64_t m = 0; m < v.count(); ++m)
            totals[CHANNEL ? k.start + j : 0] +=
                double(G[v.start * K + v.element(k.start + j, m)]) *
                S[k.start * V + k.element(v.start + m, j)];
      });
    });
  }

  // The running sums over a segment, from <a dX, S> at its end.
  void write_dgate(const Segment& b, const float* G_end, const float* S, double* totals) const {
    for (int64_t g = 0; g < channels; ++g) totals[g] = 0;
    if (b.end < row.tokens || row.x.d_final) add_product(G_end, S, totals);
    for (int64_t t = b.end - 1; t >= b.start; --t) {
      const float* a = row.gate(t);
      const float* terms = b.terms + (t - b.start) * channels;
      float* out = row.x.dgate + row.token(t) * channels;
      for (int64_t g = 0; g < channels; ++g) {
        totals[g] += terms[g];
        if (row.x.log_gate)
          out[g] = static_cast<float>(totals[g]);
        else if (!is_small(a[g]))
          out[g] = static_cast<float>(totals[g] / a[g]);
      }
    }
  }
};

template <bool DELTA, bool CHANNEL>
void backward_row(const Recurrence& x, int64_t sequence, int64_t head) {
  const Row row(x, sequence, head);
  BackwardRow<DELTA, CHANNEL>{row}.run();
}

void recurrence_backward(const Recurrence& x) {
  auto run = !x.beta.data && x.gate.data && x.gate_channels > 1 ? backward_row<false, true>
             : x.beta.data                                       ? backward_row<true, false>
                                                                 : backward_row<false, false>;
  parallel_for(x.N * x.H, x.threads, [&](int64_t i) { run(x, i / x.H, i % x.H); });
}

}  // namespace
