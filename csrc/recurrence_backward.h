// The backward pass in two sweeps, without stored states.
//
// Sweep A runs backwards in time and carries only G = dL/dS: it gives dv, dbeta and the part of dk
// that comes from what was written. Sweep B runs forwards and regenerates S from the saved errors:
// it gives dq and the part of dk that comes from what was read. In A the lanes lie along V, in B
// along K, so hardly anything is summed across lanes, and each sweep holds one state in the cache.
//
// The gradient of log a_t is a running sum, for X_t = a_t S_{t-1} and dX_t = dL/dX_t:
//     <dX_t, X_t> = <dX_{t+1}, X_{t+1}> + <do_t, o_t> - sum over the token's steps of <dv, v>
// (channel by channel: + q dq - k dk). Dividing by a_t would lose everything for small a_t: there
// <dX_t, S_{t-1}> is formed directly. Both that and the loss of digits in long sums ask for states
// in the middle of a sequence, so gated sequences are cut into segments, from whose first states
// (kept in one extra pass) S is regenerated.
#pragma once

#include "recurrence.h"

namespace {

constexpr float SMALL_GATE = 0x1p-4f;
constexpr int64_t SEGMENT = 4096, SMALL_GATE_SEGMENT = 256;  // tokens

inline bool is_small(float a) { return -SMALL_GATE < a && a < SMALL_GATE; }

// What the sweeps over one sequence and head share.
struct Backward {
  const Row& row;
  int64_t start, end;  // the segment, in tokens
  float* G;            // [blocks of V][K][BLOCK]: dL/dS, carried from segment to segment
  double* terms;       // [segment tokens][gate_channels]: what each token adds to the running sum
  const int64_t* slot; // [segment tokens]: where dX of a token with a small gate is kept, or -1
  float* dX;           // [slots][K][padded V]
};

// ---- sweep A

template <int NV, bool DELTA, bool OUT>
inline void pass_a(float* G, int64_t K, const float* k_next, const vf* dv_next_, const float* q,
                   const vf* d_o_, const float* k, const vf* u_, vf* du_, float* dk) {
  vf dv_next[NV], d_o[NV], u[NV], du[NV];
  for (int i = 0; i < NV; ++i) dv_next[i] = dv_next_[i], d_o[i] = d_o_[i], u[i] = u_[i], du[i] = vf{};
  alignas(64) vf r[LANES];
  for (int64_t j0 = 0; j0 < K; j0 += LANES) {
    const int64_t rows = K - j0 < LANES ? K - j0 : LANES;
    if (rows < LANES)
      for (int64_t m = rows; m < LANES; ++m) r[m] = vf{};
    for (int64_t m = 0; m < rows; ++m, G += NV * LANES) {
      const int64_t j = j0 + m;
      vf nj{}, qj{};
      if (DELTA) nj = splat(k_next[j]);
      if (OUT) qj = splat(q[j]);
      const vf kj = splat(k[j]);
      vf rj{};
      for (int i = 0; i < NV; ++i) {
        vf g = load(G + i * LANES);
        if (DELTA) g -= nj * dv_next[i];
        if (OUT) g = fma(qj, d_o[i], g);
        if (DELTA || OUT) store(G + i * LANES, g);
        du[i] = fma(kj, g, du[i]);
        rj = fma(g, u[i], rj);
      }
      r[m] = rj;
    }
    store(dk + j0, sums(r));
  }
  for (int i = 0; i < NV; ++i) du_[i] = du[i];
}

template <bool DELTA, bool CHANNEL>
struct SweepA {
  const Backward& b;
  const Block& block;
  float* G;    // of this block, [K][width]
  float* buf;  // scratch, 5 rows of padded K

  template <int NV>
  void run() const {
    const Row& row = b.row;
    const Recurrence& x = row.x;
    const int64_t K = x.K, V = x.V, n = x.factors, last = block.last, Kp = padded(K);
    const float scale = static_cast<float>(x.scale);
    const bool gated = x.gate.data, first_block = block.start == 0;
    float *c = buf, *k_buf = buf + Kp, *q_buf = buf + 2 * Kp, *dk_buf = buf + 3 * Kp;
    for (int64_t j = 0; j < K; ++j) c[j] = 1.0f;
    float product = 1.0f;
    vf dv_next[NV] = {};  // of the step that follows, over `product`
    const float* k_next = row.k(b.start * n);
    for (int64_t t = b.end - 1; t >= b.start; --t) {
      if (gated && t + 1 < b.end) gate<NV>(t + 1, k_next, dv_next, product, c);
      const float* q = row.q(t);
      vf d_o[NV];
      load_row<NV>(d_o, x.d_o + row.token(t) * V + block.start, last);
      if (CHANNEL) {
        for (int64_t j = 0; j < K; ++j) q_buf[j] = q[j] / c[j];
        q = q_buf;
      }
      for (int i = 0; i < NV; ++i) d_o[i] *= scale / product;
      for (int64_t factor = n - 1; factor >= 0; --factor) {
        const int64_t s = t * n + factor;
        prefetch_step(s, t);
        const float* k = row.k(s);
        if (CHANNEL) {
          for (int64_t j = 0; j < K; ++j) k_buf[j] = k[j] * c[j];
          k = k_buf;
        }
        vf e[NV], u[NV], v[NV], du[NV];
        load_row<NV>(v, row.v(s) + block.start, last);
        float beta = 1.0f;
        if (DELTA) {
          beta = row.beta(s);
          load_row<NV>(e, x.error + row.step(s) * V + block.start, last);
          for (int i = 0; i < NV; ++i) u[i] = beta * e[i];
        } else {
          for (int i = 0; i < NV; ++i) u[i] = v[i];
        }
        if (factor == n - 1)
          pass_a<NV, DELTA, true>(G, K, k_next, dv_next, q, d_o, k, u, du, dk_buf);
        else
          pass_a<NV, DELTA, false>(G, K, k_next, dv_next, q, d_o, k, u, du, dk_buf);
        vf dv[NV], along_v{}, along_e{};
        for (int i = 0; i < NV; ++i) {
          du[i] *= product;
          dv[i] = DELTA ? beta * du[i] : du[i];
          if (DELTA) along_e = fma(du[i], e[i], along_e);
          along_v = fma(dv[i], v[i], along_v);
          dv_next[i] = dv[i] / product;
        }
        store_row<NV>(x.dv + row.step(s) * V + block.start, dv, last);
        if (DELTA) {
          float* dbeta = x.dbeta + row.step(s);
          *dbeta = (first_block ? 0.0f : *dbeta) + sum(along_e);
        }
        if (gated && !CHANNEL) b.terms[t - b.start] -= sum(along_v);
        write_dk(s, dk_buf, product, c, first_block);
        k_next = row.k(s);
      }
    }
    finish<NV>(k_next, dv_next, product, c);
  }

  // From G_{t+1} to a_{t+1} dX_{t+1}, whose last term is still to be taken off by the next pass.
  template <int NV>
  void gate(int64_t t, const float* k_next, vf* dv_next, float& product, float* c) const {
    const int64_t K = b.row.x.K;
    const float* a = b.row.gate(t);
    if (b.slot[t - b.start] >= 0) keep<NV>(t, k_next, dv_next, product, c);
    if (CHANNEL) {
      for (int64_t j = 0; j < K; ++j) {
        c[j] *= a[j];
        if (!out_of_range(c[j])) continue;
        float* G_j = G + j * block.width();
        for (int i = 0; i < NV; ++i) store(G_j + i * LANES, c[j] * load(G_j + i * LANES));
        c[j] = 1.0f;
      }
      return;
    }
    product *= *a;
    if (out_of_range(product)) {
      take_off<NV>(k_next, dv_next, product, c);
      product = 1.0f;
    }
  }

  // G := factor (G - k dv), or c_j G_j channel by channel.
  template <int NV>
  void take_off(const float* k_next, vf* dv_next, float factor, const float* c) const {
    for (int64_t j = 0; j < b.row.x.K; ++j) {
      float* G_j = G + j * block.width();
      for (int i = 0; i < NV; ++i) {
        vf g = load(G_j + i * LANES);
        if (DELTA) g -= k_next[j] * dv_next[i];
        store(G_j + i * LANES, (CHANNEL ? c[j] : factor) * g);
      }
    }
    for (int i = 0; i < NV; ++i) dv_next[i] = vf{};
  }

  // dX_t of a token whose gate is small.
  template <int NV>
  void keep(int64_t t, const float* k, const vf* dv, float product, const float* c) const {
    const Recurrence& x = b.row.x;
    float* kept = b.dX + b.slot[t - b.start] * x.K * padded(x.V) + block.start;
    for (int64_t j = 0; j < x.K; ++j)
      for (int i = 0; i < NV; ++i) {
        vf g = load(G + j * block.width() + i * LANES);
        if (DELTA) g -= k[j] * dv[i];
        store(kept + j * padded(x.V) + i * LANES, (CHANNEL ? c[j] : product) * g);
      }
  }

  template <int NV>
  void finish(const float* k, vf* dv, float product, float* c) const {
    const Recurrence& x = b.row.x;
    if (x.gate.data) {
      const float* a = b.row.gate(b.start);
      if (b.slot[0] >= 0) keep<NV>(b.start, k, dv, product, c);
      product *= *a;
      if (CHANNEL)
        for (int64_t j = 0; j < x.K; ++j) c[j] *= a[j];
    }
    take_off<NV>(k, dv, product, c);
  }

  void write_dk(int64_t s, const float* dk, float product, const float* c, bool first) const {
    const int64_t K = b.row.x.K;
    float* out = b.row.x.dk + b.row.step(s) * K;
    for (int64_t j = 0; j < K; j += LANES) {
      const int64_t left = K - j;
      vf d = load(dk + j) * (CHANNEL ? load(c + j) : splat(product));
      if (!first) d += load_first(out + j, left);
      store_first(out + j, d, left);
    }
  }

  PREFETCHES void prefetch_step(int64_t s, int64_t t) const {
    const Row& row = b.row;
    const Recurrence& x = row.x;
    if (s - AHEAD >= 0) {
      prefetch(row.k(s - AHEAD), x.K);
      if (DELTA) prefetch(x.error + row.step(s - AHEAD) * x.V + block.start, block.count());
      prefetch(row.v(s - AHEAD) + block.start, block.count());
      prefetch_write(x.dk + row.step(s - AHEAD) * x.K, x.K);
      prefetch_write(x.dv + row.step(s - AHEAD) * x.V + block.start, block.count());
    }
    if (t - AHEAD >= 0) {
      prefetch(row.q(t - AHEAD), x.K);
      prefetch(x.d_o + row.token(t - AHEAD) * x.V + block.start, block.count());
    }
  }
};

// ---- sweep B

template <int NV, bool DELTA, bool GRAD, bool OUT>
inline void pass_b(float* S, int64_t V, const vf* k_, const float* u, const float* dv,
                   const float* d_o, vf* dk_, vf* dq_) {
  vf k[NV], dk[NV], dq[NV];
  for (int i = 0; i < NV; ++i) k[i] = k_[i], dk[i] = vf{}, dq[i] = vf{};
  for (int64_t m = 0; m < V; ++m, S += NV * LANES) {
    const vf um = splat(u[m]);
    vf dvm{}, dom{};
    if (DELTA && GRAD) dvm = splat(dv[m]);
    if (OUT && GRAD) dom = splat(d_o[m]);
    for (int i = 0; i < NV; ++i) {
      vf s = load(S + i * LANES);
      if (DELTA && GRAD) dk[i] = fma(dvm, s, dk[i]);
      s = fma(um, k[i], s);
      store(S + i * LANES, s);
      if (OUT && GRAD) dq[i] = fma(dom, s, dq[i]);
    }
  }
  for (int i = 0; i < NV; ++i) dk_[i] = dk[i], dq_[i] = dq[i];
}

// The key channels of `block` from S, which is [V][width], at b.start; S becomes that at b.end.
template <bool DELTA, bool CHANNEL, bool GRAD>
struct SweepB {
  const Backward& b;
  const Block& block;
  float* S;
  float* u_buf;  // scratch [V]

  template <int NV>
  void run() const {
    const Row& row = b.row;
    const Recurrence& x = row.x;
    const int64_t K = x.K, V = x.V, n = x.factors, last = block.last, width = block.width();
    const float scale = static_cast<float>(x.scale);
    const bool gated = x.gate.data;
    float product = 1.0f;
    vf c[NV];
    for (int i = 0; i < NV; ++i) c[i] = splat(1.0f);
    for (int64_t t = b.start; t < b.end; ++t) {
      if (gated) {
        if (GRAD && b.slot[t - b.start] >= 0) small_gate<NV>(t, product, c);
        multiply<NV>(row.gate(t), product, c, last);
      }
      for (int64_t factor = 0; factor < n; ++factor) {
        const int64_t s = t * n + factor;
        if (GRAD) prefetch_step(s, t);
        vf k[NV], dk[NV], dq[NV];
        load_row<NV>(k, row.k(s) + block.start, last);
        if (CHANNEL)
          for (int i = 0; i < NV; ++i) k[i] /= c[i];
        const float* u = row.v(s);
        if (DELTA || (gated && !CHANNEL)) {
          const float* from = DELTA ? x.error + row.step(s) * V : u;
          const float weight = (DELTA ? row.beta(s) : 1.0f) / product;
          int64_t m = 0;
          for (; m + LANES <= V; m += LANES) store(u_buf + m, weight * load(from + m));
          for (; m < V; ++m) u_buf[m] = weight * from[m];
          u = u_buf;
        }
        const float* dv = x.dv + row.step(s) * V;
        const float* d_o = x.d_o + row.token(t) * V;
        if (factor == n - 1)
          pass_b<NV, DELTA, GRAD, true>(S, V, k, u, dv, d_o, dk, dq);
        else
          pass_b<NV, DELTA, GRAD, false>(S, V, k, u, dv, d_o, dk, dq);
        if (!GRAD) continue;
        if (DELTA) {
          float* out = x.dk + row.step(s) * K + block.start;
          vf d[NV];
          load_row<NV>(d, out, last);
          for (int i = 0; i < NV; ++i) d[i] -= product * dk[i];
          store_row<NV>(out, d, last);
        }
        if (factor == n - 1) {
          for (int i = 0; i < NV; ++i) dq[i] *= CHANNEL ? scale * c[i] : splat(scale * product);
          store_row<NV>(x.dq + row.token(t) * K + block.start, dq, last);
          if (gated) add_terms<NV>(t, dq, last);
        }
      }
    }
    for (int64_t m = 0; m < V; ++m)
      for (int i = 0; i < NV; ++i) {
        float* s = S + m * width + i * LANES;
        store(s, (CHANNEL ? c[i] : splat(product)) * load(s));
      }
  }

  template <int NV>
  void multiply(const float* a, float& product, vf* c, int64_t last) const {
    bool rescale = false;
    if (CHANNEL) {
      vf gates[NV];
      load_row<NV>(gates, a + block.start, last);
      for (int64_t j = last; j < LANES; ++j) gates[NV - 1][j] = 1.0f;  // padding
      vi bad{};
      for (int i = 0; i < NV; ++i) {
        c[i] *= gates[i];
        bad |= ~((c[i] * c[i] > splat(0x1p-60f)) & (c[i] * c[i] < splat(0x1p60f)));
      }
      for (int j = 0; j < LANES; ++j) rescale |= bad[j] != 0;
    } else {
      product *= *a;
      rescale = out_of_range(product);
    }
    if (!rescale) return;
    for (int64_t m = 0; m < b.row.x.V; ++m)
      for (int i = 0; i < NV; ++i) {
        float* s = S + (m * NV + i) * LANES;
        store(s, (CHANNEL ? c[i] : splat(product)) * load(s));
      }
    product = 1.0f;
    for (int i = 0; i < NV; ++i) c[i] = splat(1.0f);
  }

  template <int NV>
  void add_terms(int64_t t, const vf* dq, int64_t last) const {
    const int64_t K = b.row.x.K;
    vf q[NV];
    load_row<NV>(q, b.row.q(t) + block.start, last);
    if (!CHANNEL) {
      vf along{};
      for (int i = 0; i < NV; ++i) along = fma(q[i], dq[i], along);
      b.terms[t - b.start] += sum(along);
      return;
    }
    const float* k = b.row.k(t);
    const float* dk = b.row.x.dk + b.row.step(t) * K;
    double* terms = b.terms + (t - b.start) * K;
    for (int64_t j = block.start; j < block.start + block.count(); ++j) {
      const int64_t lane = j - block.start;
      terms[j] += double(q[lane / LANES][lane % LANES]) * dq[lane / LANES][lane % LANES] -
                  double(k[j]) * dk[j];
    }
  }

  // <dX_t, S_{t-1}> where the gate is small, for this block's channels.
  template <int NV>
  void small_gate(int64_t t, float product, const vf* c) const {
    const Recurrence& x = b.row.x;
    const float* a = b.row.gate(t);
    const float* dX = b.dX + b.slot[t - b.start] * x.K * padded(x.V);
    float* dgate = x.dgate + b.row.token(t) * x.gate_channels;
    double whole = 0;
    for (int64_t j = block.start; j < block.start + block.count(); ++j) {
      if (CHANNEL && !is_small(a[j])) continue;
      const int64_t lane = j - block.start;
      double along = 0;
      for (int64_t m = 0; m < x.V; ++m)
        along += double(dX[j * padded(x.V) + m]) * S[m * block.width() + lane];
      along *= CHANNEL ? c[lane / LANES][lane % LANES] : product;
      if (CHANNEL) dgate[j] = static_cast<float>(along);
      whole += along;
    }
    if (!CHANNEL) *dgate = static_cast<float>((block.start ? *dgate : 0.0f) + whole);
  }

  PREFETCHES void prefetch_step(int64_t s, int64_t t) const {
    const Row& row = b.row;
    const Recurrence& x = row.x;
    if (s + AHEAD < row.steps) {
      prefetch(row.k(s + AHEAD) + block.start, block.count());
      prefetch_write(x.dk + row.step(s + AHEAD) * x.K + block.start, block.count());
      if (DELTA) prefetch(x.dv + row.step(s + AHEAD) * x.V, x.V);
      if (DELTA)
        prefetch(x.error + row.step(s + AHEAD) * x.V, x.V);
      else
        prefetch(row.v(s + AHEAD), x.V);
    }
    if (t + AHEAD < row.tokens) {
      prefetch(x.d_o + row.token(t + AHEAD) * x.V, x.V);
      prefetch_write(x.dq + row.token(t + AHEAD) * x.K + block.start, block.count());
    }
  }
};

// ---- both

template <bool DELTA, bool CHANNEL>
struct BackwardRow {
  const Row& row;
  int64_t K = row.x.K, V = row.x.V, channels = row.x.gate_channels;
  int64_t v_blocks = blocks_of(V), k_blocks = blocks_of(K);
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
    const int64_t slots = small ? length : 0, terms_floats = gated ? 2 * length * channels : 0;
    Scratch scratch(state + 2 * gradient + 5 * padded(K) + padded(V) + segments * state +
                    slots * gradient + terms_floats + 2 * length + 64);
    float* S = scratch.get();
    float* G = S + state;
    float* G_end = G + gradient;
    float* buf = G_end + gradient;
    float* u_buf = buf + 5 * padded(K);
    float* checkpoints = u_buf + padded(V);
    float* dX = checkpoints + segments * state;
    double* terms = reinterpret_cast<double*>(dX + slots * gradient);
    int64_t* slot = reinterpret_cast<int64_t*>(terms + (gated ? length * channels : 0));

    load_state(checkpoints);
    for (int64_t i = 0; i + 1 < segments; ++i) {  // the states at which segments start
      Backward b{row, i * length, (i + 1) * length, G, terms, slot, dX};
      std::memcpy(S, checkpoints + i * state, state * 4);
      sweep_b<false>(b, S, u_buf);
      std::memcpy(checkpoints + (i + 1) * state, S, state * 4);
    }
    load_gradient(G);
    for (int64_t i = segments - 1; i >= 0; --i) {
      const int64_t end = (i + 1) * length < row.tokens ? (i + 1) * length : row.tokens;
      Backward b{row, i * length, end, G, terms, slot, dX};
      if (gated) {
        int64_t used = 0;
        for (int64_t t = b.start; t < b.end; ++t)
          slot[t - b.start] = small && small_token(t) ? used++ : -1;
        for (int64_t j = 0; j < length * channels; ++j) terms[j] = 0;
        std::memcpy(G_end, G, gradient * 4);
      }
      for (int64_t v = 0; v < v_blocks; ++v) {
        const Block block(v, V);
        float* G_v = G + block.start * K;
        with_vectors(block.vectors, SweepA<DELTA, CHANNEL>{b, block, G_v, buf});
      }
      std::memcpy(S, checkpoints + i * state, state * 4);
      sweep_b<true>(b, S, u_buf);
      if (gated) write_dgate(b, G_end, S);
    }
    store_gradient(G);
  }

  bool small_token(int64_t t) const {
    const float* a = row.gate(t);
    for (int64_t j = 0; j < channels; ++j)
      if (is_small(a[j])) return true;
    return false;
  }

  template <bool GRAD>
  void sweep_b(const Backward& b, float* S, float* u_buf) const {
    for (int64_t k = 0; k < k_blocks; ++k) {
      const Block block(k, K);
      float* S_k = S + block.start * V;
      with_vectors(block.vectors, SweepB<DELTA, CHANNEL, GRAD>{b, block, S_k, u_buf});
    }
  }

  // States here are [blocks of K][V][width], gradients of states [blocks of V][K][width].
  float& state_at(float* S, int64_t j, int64_t m) const {
    const Block block(j / BLOCK, K);
    return S[block.start * V + m * block.width() + j - block.start];
  }
  float& gradient_at(float* G, int64_t j, int64_t m) const {
    const Block block(m / BLOCK, V);
    return G[block.start * K + j * block.width() + m - block.start];
  }

  void load_state(float* S) const {
    for (int64_t i = 0; i < V * padded(K); ++i) S[i] = 0;
    if (!row.x.initial) return;
    const float* from = row.x.initial + row.state();
    for (int64_t j = 0; j < K; ++j)
      for (int64_t m = 0; m < V; ++m) state_at(S, j, m) = from[j * V + m];
  }

  void load_gradient(float* G) const {
    for (int64_t i = 0; i < K * padded(V); ++i) G[i] = 0;
    if (!row.x.d_final) return;
    const float* from = row.x.d_final + row.state();
    for (int64_t j = 0; j < K; ++j)
      for (int64_t m = 0; m < V; ++m) gradient_at(G, j, m) = from[j * V + m];
  }

  void store_gradient(float* G) const {
    float* to = row.x.d_initial + row.state();
    for (int64_t j = 0; j < K; ++j)
      for (int64_t m = 0; m < V; ++m) to[j * V + m] = gradient_at(G, j, m);
  }

  // The running sums over a segment, from <a dX, S> at its end.
  void write_dgate(const Backward& b, float* G_end, float* S) const {
    for (int64_t g = 0; g < channels; ++g) {
      double total = 0;
      for (int64_t j = CHANNEL ? g : 0; j < (CHANNEL ? g + 1 : K); ++j)
        for (int64_t m = 0; m < V; ++m)
          total += double(gradient_at(G_end, j, m)) * state_at(S, j, m);
      for (int64_t t = b.end - 1; t >= b.start; --t) {
        total += b.terms[(t - b.start) * channels + g];
        const float a = row.gate(t)[g];
        float* out = row.x.dgate + row.token(t) * channels + g;
        if (row.x.log_gate)
          *out = static_cast<float>(total);
        else if (!is_small(a))
          *out = static_cast<float>(total / a);
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
