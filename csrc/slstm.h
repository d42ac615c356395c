// sLSTM: with (i, f, z, o)_t = x_t + R h_{t-1}, feature by feature
//
//     m_t = max(log sigmoid(f) + m_{t-1}, i)
//     i' = exp(i - m_t),   f' = exp(log sigmoid(f) + m_{t-1} - m_t),
//     c_t = f' c_{t-1} + i' tanh(z),   n_t = f' n_{t-1} + i',   h_t = sigmoid(o) c_t / n_t;
//
// n = 0 says that nothing has been read yet: then m_t = i and f' = 0.
//
// h enters the gates, so tokens must be processed one after the other. A unit of work is one head of
// some sequences, processed together, so that R stays in the cache and each step is a product of
// matrices. Lanes are features. A tile of that product has all four gates of its features, so the rest
// of the step is done in registers.
#pragma once

#include "pointwise.h"

namespace {

// Rows of a tile with 4 vectors: what the registers hold. The rows that go through time together
// are a multiple of it.
constexpr int TILE_ROWS = LANES == 16 ? 6 : 3;
constexpr int64_t BLOCK_ROWS = 24;

template <int N>
struct Count {
  static constexpr int value = N;
};

// f(Count<n>) for n = count, or LIMIT if that is less.
template <int LIMIT, class F>
INLINE inline void with_count(int64_t count, const F& f) {
  if constexpr (LIMIT > 1)
    if (count < LIMIT) return with_count<LIMIT - 1>(count, f);
  f(Count<LIMIT>{});
}

// to[i][v] += sum over k of a[i * a_row + k * a_k] times vector v of b + k * b_k.
template <int ROWS, int VECTORS>
INLINE inline void multiply_add(int64_t K, const float* a, int64_t a_row, int64_t a_k,
                                const float* b, int64_t b_k, vf (&to)[ROWS][VECTORS]) {
  for (int64_t k = 0; k < K; ++k) {
    vf left[ROWS];
    for (int i = 0; i < ROWS; ++i) left[i] = splat(a[i * a_row + k * a_k]);
    for (int v = 0; v < VECTORS; ++v) {
      const vf right = load(b + k * b_k + v * LANES);
      for (int i = 0; i < ROWS; ++i) to[i][v] = fma(left[i], right, to[i][v]);
    }
  }
}

// One head of the sequences [first, first + rows).
struct Rows {
  const SLSTM& x;
  int64_t head, first, rows;
  int64_t width = padded(x.D);  // of a row of scratch memory

  bool exists(int64_t row, int64_t t) const { return !x.lengths || t < x.lengths[first + row]; }
  int64_t token(int64_t row, int64_t t) const { return (first + row) * x.T + t; }
  int64_t at(int64_t row, int64_t t) const { return (token(row, t) * x.H + head) * x.D; }
  // Part 0..3 (h, c, n, m) of a state.
  int64_t state(int64_t part, int64_t row) const {
    return ((part * x.B + first + row) * x.H + head) * x.D;
  }
  const float* gates(int64_t row, int64_t t) const {
    return x.x.data + token(row, t) * x.x.token + head * x.x.head;
  }
  float* d_gates(int64_t row, int64_t t) const {
    return x.dx + (head * x.B * x.T + token(row, t)) * 4 * x.D;
  }
  // In the order of writing, so that memory is accessed in one stream.
  float* kept(int64_t row, int64_t t) const {
    return x.kept + ((head * x.B + first) * x.T + t * rows + row) * SLSTM_KEPT * x.D;
  }
  int64_t lanes(int64_t vector) const { return at_most(x.D - vector * LANES, LANES); }
};

struct ForgetGate {
  vf log, complement;  // log sigmoid(x), sigmoid(-x)
};

inline ForgetGate forget_gate(vf x) {
  const vf zero{}, t = exp(x < zero ? x : -x);  // in [0, 1]
  const vf inverse = 1.0f / ((1.0f + t) * (2.0f + t));
  const vf s = t * (1.0f + t) * inverse;
  const vf large = (2.0f + t) * inverse;  // sigmoid(|x|)
  return {(x < zero ? x : zero) - log1p_series(s) * s, x < zero ? large : t * large};
}

// Some rows through time.
struct SLSTMForward {
  const Rows rows;
  const float* weights;  // [vectors][D][4][LANES]
  float *h, *next;       // scratch [BLOCK_ROWS, width]: h as it was and as it will be
  float *c, *n, *m;      // likewise

  static int64_t scratch(int64_t width) { return 5 * BLOCK_ROWS * width; }

  SLSTMForward(const Rows& rows, const float* weights, float* memory)
      : rows(rows), weights(weights) {
    float** parts[] = {&h, &c, &n, &m, &next};
    for (float** part : parts) *part = memory, memory += BLOCK_ROWS * rows.width;
  }

  void run() {
    const SLSTM& x = rows.x;
    float* parts[] = {h, c, n, m};
    each_state([&](int64_t part, int64_t row, int64_t v) {
      const vf s = load_first(x.initial + rows.state(part, row) + v * LANES, rows.lanes(v));
      store(parts[part] + row * rows.width + v * LANES, s);
    });
    for (int64_t t = 0; t < x.T; ++t) {
      for (int64_t v = 0; v * LANES < x.D; ++v)
        for (int64_t row = 0; row < rows.rows; row += TILE_ROWS)
          with_count<TILE_ROWS>(rows.rows - row, [&](auto count) { tile(count, t, v, row); });
      float* before = h;
      h = next, next = before;
    }
    const float* ends[] = {h, c, n, m};
    each_state([&](int64_t part, int64_t row, int64_t v) {
      const vf s = load(ends[part] + row * rows.width + v * LANES);
      store_first(x.final + rows.state(part, row) + v * LANES, s, rows.lanes(v));
    });
  }

  template <class F>
  void each_state(const F& f) const {
    for (int64_t part = 0; part < 4; ++part)
      for (int64_t row = 0; row < rows.rows; ++row)
        for (int64_t v = 0; v * LANES < rows.x.D; ++v) f(part, row, v);
  }

  template <int ROWS>
  INLINE void tile(Count<ROWS>, int64_t t, int64_t v, int64_t row) const {
    const int64_t D = rows.x.D, lanes = rows.lanes(v);
    vf gates[ROWS][4];
    for (int i = 0; i < ROWS; ++i) {
      const float* x = rows.gates(row + i, t) + v * LANES;
      for (int g = 0; g < 4; ++g) gates[i][g] = load_first(x + g * D, lanes);
    }
    multiply_add(D, h + row * rows.width, rows.width, 1, weights + v * D * 4 * LANES, 4 * LANES,
                 gates);
    for (int i = 0; i < ROWS; ++i) {
      if (v == 0) prefetch_token(row + i, t + 1);
      cell(gates[i], t, v, row + i);
    }
  }

  INLINE void prefetch_token(int64_t row, int64_t t) const {
    const SLSTM& x = rows.x;
    if (t >= x.T) return;
    prefetch(rows.gates(row, t), 4 * x.D);
    prefetch_write(x.out + rows.at(row, t), x.D);
    if (x.kept) prefetch_write(rows.kept(row, t), x.D * SLSTM_KEPT);
  }

  INLINE void cell(const vf* gates, int64_t t, int64_t v, int64_t row) const {
    const SLSTM& x = rows.x;
    const int64_t place = row * rows.width + v * LANES, lanes = rows.lanes(v);
    float* out = x.out + rows.at(row, t) + v * LANES;
    if (!rows.exists(row, t)) {
      store(next + place, load(h + place));
      store_first(out, vf{}, lanes);
      return;
    }
    const vf c_before = load(c + place), n_before = load(n + place);
    const ForgetGate forget = forget_gate(gates[1]);
    const vf one = splat(1.0f), nothing = splat(-__builtin_inff());
    const vf kept = n_before == vf{} ? nothing : forget.log + load(m + place);
    const vf ahead = kept - gates[0];
    const vf less = exp(ahead < vf{} ? ahead : -ahead);  // one of i' and f' is 1, the other this
    const vf i = ahead > vf{} ? less : one, f = ahead > vf{} ? one : less;
    const vf z = tanh(gates[2]), o = sigmoid(gates[3]);
    const vf c_now = fma(f, c_before, i * z), n_now = fma(f, n_before, i);
    const vf h_now = o * c_now / n_now;
    store(c + place, c_now);
    store(n + place, n_now);
    store(m + place, ahead > vf{} ? kept : gates[0]);
    store(next + place, h_now);
    store_first(out, h_now, lanes);
    if (!x.kept) return;
    float* keep = rows.kept(row, t) + v * LANES;
    const vf all[] = {i, f, z, o, c_now, n_now, forget.complement};
    for (int64_t part = 0; part < SLSTM_KEPT; ++part)
      store_first(keep + part * x.D, all[part], lanes);
  }
};

// R [4, D, D] of a head in the order of the tiles: [vectors][D][4][LANES].
inline void pack_tiles(const float* R, int64_t D, float* to) {
  for (int64_t start = 0; start < D; start += LANES)
    for (int64_t k = 0; k < D; ++k)
      for (int64_t g = 0; g < 4; ++g)
        for (int64_t d = start; d < start + LANES; ++d)
          *to++ = d < D ? R[(g * D + d) * D + k] : 0.0f;
}

// Little work runs on one thread, because waking a second takes longer.
inline int64_t slstm_threads(const SLSTM& x) {
  return x.B * x.T * x.H * x.D * x.D < (int64_t(1) << 16) ? 1 : x.threads;
}

void slstm_forward(const SLSTM& x) {
  const int64_t width = padded(x.D), size = 4 * x.D * width;
  const int64_t blocks = divide_up(x.B, BLOCK_ROWS), threads = slstm_threads(x);
  Scratch weights(x.H * size);
  parallel_for(x.H, threads, [&](int64_t head) {
    pack_tiles(x.R + head * 4 * x.D * x.D, x.D, weights.get() + head * size);
  });
  parallel_for(blocks * x.H, threads, [&](int64_t i) {
    const int64_t head = i % x.H, first = i / x.H * BLOCK_ROWS;
    Scratch memory(SLSTMForward::scratch(width));
    const Rows rows{x, head, first, at_most(BLOCK_ROWS, x.B - first)};
    SLSTMForward(rows, weights.get() + head * size, memory.get()).run();
  });
}

}  // namespace
