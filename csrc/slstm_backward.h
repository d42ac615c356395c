// The gradients of sLSTM, backwards in time from what the forward pass kept.
//
// h does not depend on m: only a loss that reads the final c, n or m by itself does. Such a loss enters
// through
//     slack = dm_t - (dc_t c_t + dn_t n_t),
// which is 0 without it. The greater of log sigmoid(f) + m_{t-1} and i gets the slack in addition to
// its own gradient. The slack is passed on to t - 1, not dm, which is a difference of large numbers.
//
// dR is a sum over sequences and tokens: a unit of work sums its own, and the sums of all units are
// added in a fixed order.
#pragma once

#include "slstm.h"

namespace {

// to += a b for a [rows, K], element (i, k) at a[i * a_row + k * a_k], and rows of whole vectors.
inline void add_product(int64_t rows, int64_t columns, int64_t K, const float* a, int64_t a_row,
                        int64_t a_k, const float* b, int64_t b_k, float* to, int64_t to_row) {
  for (int64_t start = 0; start < columns; start += 4 * LANES)
    with_count<4>((columns - start) / LANES, [&](auto vectors) {
      for (int64_t row = 0; row < rows; row += TILE_ROWS)
        with_count<TILE_ROWS>(rows - row, [&](auto count) INLINE {
          constexpr int ROWS = decltype(count)::value, VECTORS = decltype(vectors)::value;
          float* place = to + row * to_row + start;
          vf sums[ROWS][VECTORS];
          for (int i = 0; i < ROWS; ++i)
            for (int v = 0; v < VECTORS; ++v) sums[i][v] = load(place + i * to_row + v * LANES);
          multiply_add(K, a + row * a_row, a_row, a_k, b + start, b_k, sums);
          for (int i = 0; i < ROWS; ++i)
            for (int v = 0; v < VECTORS; ++v) store(place + i * to_row + v * LANES, sums[i][v]);
        });
    });
}

// Some rows backwards through time.
struct SLSTMBackward {
  const Rows rows;
  const float* R;              // [4 width, width]
  float* dR;                   // likewise, added to
  float *dh, *dc, *dn, *slack;  // scratch [BLOCK_ROWS, width]
  float* h_before;             // likewise
  float* dgates;               // scratch [BLOCK_ROWS, 4 width]

  static int64_t scratch(int64_t width) { return 9 * BLOCK_ROWS * width; }

  SLSTMBackward(const Rows& rows, const float* R, float* dR, float* memory)
      : rows(rows), R(R), dR(dR) {
    float** parts[] = {&dh, &dc, &dn, &slack, &h_before, &dgates};
    for (float** part : parts) *part = memory, memory += BLOCK_ROWS * rows.width;
  }

  void run() const {
    const SLSTM& x = rows.x;
    const int64_t width = rows.width;
    each_vector_of_rows([&](int64_t row, int64_t v) { start(row, v); });
    for (int64_t t = x.T - 1; t >= 0; --t) {
      for (int64_t row = 0; row < rows.rows; ++row) {
        if (t > 0) prefetch_token(row, t - 1);
        for (int64_t v = 0; v * LANES < x.D; ++v) cell(t, v, row);
      }
      add_product(rows.rows, width, 4 * width, dgates, 4 * width, 1, R, width, dh, width);
      add_product(4 * width, width, rows.rows, dgates, 1, 4 * width, h_before, width, dR, width);
    }
    each_vector_of_rows([&](int64_t row, int64_t v) { finish(row, v); });
  }

  template <class F>
  void each_vector_of_rows(const F& f) const {
    for (int64_t row = 0; row < rows.rows; ++row)
      for (int64_t v = 0; v * LANES < rows.x.D; ++v) f(row, v);
  }

  vf load_state(const float* states, int64_t part, int64_t row, int64_t v) const {
    return load_first(states + rows.state(part, row) + v * LANES, rows.lanes(v));
  }

  void start(int64_t row, int64_t v) const {
    const SLSTM& x = rows.x;
    vf d[4] = {}, end[4] = {};
    for (int part = 0; part < 4 && x.d_final; ++part) {
      d[part] = load_state(x.d_final, part, row, v);
      end[part] = load_state(x.final, part, row, v);
    }
    const int64_t place = row * rows.width + v * LANES;
    store(dh + place, d[0]);
    store(dc + place, d[1]);
    store(dn + place, d[2]);
    store(slack + place, d[3] - (d[1] * end[1] + d[2] * end[2]));
  }

  void finish(int64_t row, int64_t v) const {
    const SLSTM& x = rows.x;
    const int64_t place = row * rows.width + v * LANES;
    const vf c = load_state(x.initial, 1, row, v), n = load_state(x.initial, 2, row, v);
    const vf to_c = load(dc + place), to_n = load(dn + place), without = to_c * c + to_n * n;
    const vf to_m = load(slack + place) + (rows.exists(row, 0) ? vf{} : without);
    const vf d[] = {load(dh + place), to_c, to_n, to_m};
    for (int part = 0; part < 4; ++part)
      store_first(x.d_initial + rows.state(part, row) + v * LANES, d[part], rows.lanes(v));
  }

  INLINE void prefetch_token(int64_t row, int64_t t) const {
    const SLSTM& x = rows.x;
    prefetch(x.d_out + rows.at(row, t), x.D);
    prefetch_write(rows.d_gates(row, t), 4 * x.D);
    if (t == 0) return;
    prefetch(rows.kept(row, t - 1), SLSTM_KEPT * x.D);
    prefetch(x.out + rows.at(row, t - 1), x.D);
  }

  // The gradients of x_t and of the state before it; dh starts from 0 again. A token that does not exist
  // changes nothing.
  INLINE void cell(int64_t t, int64_t v, int64_t row) const {
    const SLSTM& x = rows.x;
    const int64_t D = x.D, lanes = rows.lanes(v), at = rows.at(row, t) + v * LANES;
    const int64_t place = row * rows.width + v * LANES;
    vf d[4] = {};
    if (rows.exists(row, t)) {
      const float* kept = rows.kept(row, t) + v * LANES;
      auto part = [&](int64_t p) { return load_first(kept + p * D, lanes); };
      const vf i = part(0), f = part(1), z = part(2), o = part(3), c = part(4);
      const vf n = load_filled(kept + 5 * D, lanes, 1.0f);
      const float* before = kept - rows.rows * D * SLSTM_KEPT;  // what token t - 1 kept
      const vf c_before = t ? load_first(before + 4 * D, lanes) : load_state(x.initial, 1, row, v);
      const vf n_before = t ? load_first(before + 5 * D, lanes) : load_state(x.initial, 2, row, v);
      store(h_before + place, t ? load_first(x.out + at - x.H * D, lanes)
                                : load_state(x.initial, 0, row, v));

      const vf one = splat(1.0f), ratio = c / n;
      const vf d_out = load_first(x.d_out + at, lanes) + load(dh + place), to_ratio = d_out * o;
      // h depends only on c / n: its part of a gate's gradient is a difference from that ratio, which
      // is exactly 0 where the gate does not change it
      const vf later_c = load(dc + place), later_n = load(dn + place), by_h = to_ratio / n;
      const vf to_c = later_c + by_h, to_n = later_n - by_h * ratio;
      const vf to_i = (later_c * z + later_n + by_h * (z - ratio)) * i;
      const vf from_h = by_h * (c_before - ratio * n_before), more = load(slack + place);
      const vf to_f = (later_c * c_before + later_n * n_before + from_h) * f;
      // of i' and f' one is 1, that of the greater
      const vf forgotten = f < one ? vf{} : i < one ? more : 0.5f * more;
      d[0] = to_i + (more - forgotten);
      d[1] = (to_f + forgotten) * part(6);
      d[2] = to_c * i * (1.0f - z * z);
      d[3] = d_out * ratio * o * (1.0f - o);
      store(dh + place, vf{});
      store(dc + place, to_c * f);
      store(dn + place, to_n * f);
      store(slack + place, t ? forgotten : to_f + forgotten);  // at t = 0 it is dm itself
    } else {
      store(h_before + place, vf{});
    }
    for (int g = 0; g < 4; ++g) {
      store(dgates + row * 4 * rows.width + g * rows.width + v * LANES, d[g]);
      store_first(rows.d_gates(row, t) + g * D + v * LANES, d[g], lanes);
    }
  }
};

void slstm_backward(const SLSTM& x) {
  const int64_t width = padded(x.D), size = 4 * width * width;
  const int64_t blocks = divide_up(x.B, BLOCK_ROWS), threads = slstm_threads(x);
  const int64_t groups = at_most(blocks, 16);  // each has a dR of its own
  Scratch weights(x.H * size), sums(groups * x.H * size);
  parallel_for(x.H, threads, [&](int64_t head) {
    float* R = weights.get() + head * size;
    fill_zero(R, size);
    for (int64_t row = 0; row < 4 * x.D; ++row)
      std::memcpy(R + (row / x.D * width + row % x.D) * width, x.R + (head * 4 * x.D + row) * x.D,
                  static_cast<size_t>(x.D) * 4);
  });
  parallel_for(groups * x.H, threads, [&](int64_t i) {
    const int64_t head = i % x.H, group = i / x.H;
    Scratch memory(SLSTMBackward::scratch(width));
    float* dR = sums.get() + i * size;
    fill_zero(dR, size);
    for (int64_t b = group * blocks / groups; b < (group + 1) * blocks / groups; ++b) {
      const Rows rows{x, head, b * BLOCK_ROWS, at_most(BLOCK_ROWS, x.B - b * BLOCK_ROWS)};
      SLSTMBackward(rows, weights.get() + head * size, dR, memory.get()).run();
    }
  });
  parallel_for(x.H, threads, [&](int64_t head) {
    for (int64_t row = 0; row < 4 * x.D; ++row)
      for (int64_t k = 0; k < x.D; ++k) {
        double total = 0;
        for (int64_t group = 0; group < groups; ++group)
          total += sums.get()[(group * x.H + head) * size +
                              (row / x.D * width + row % x.D) * width + k];
        x.dR[(head * 4 * x.D + row) * x.D + k] = static_cast<float>(total);
      }
  });
}

}  // namespace
