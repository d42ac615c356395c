// The kernels of a decoding step beside the recurrences: products with a few vectors, gates, norms.
#pragma once

#include "pointwise.h"
#include "recurrence.h"

namespace {

constexpr int64_t EXPONENTIAL = 16;  // operations

// LANES / ROWS outputs of ROWS rows: LANES independent sums, enough to hide the latency of additions,
// which are then reduced to one vector.
template <int ROWS>
INLINE inline void some_outputs(const Linear& x, int64_t row, int64_t first) {
  constexpr int OUTPUTS = LANES / ROWS;
  const int64_t count = at_most(OUTPUTS, x.out - first);
  const float *in[ROWS], *w[OUTPUTS];
  for (int r = 0; r < ROWS; ++r) in[r] = x.x + (row + r) * x.in;
  for (int o = 0; o < OUTPUTS; ++o)  // past the last output repeat it
    w[o] = x.weight + (first + at_most(o, count - 1)) * x.weight_row;
  vf totals[LANES] = {};
  auto add = [&](int64_t j, auto get) INLINE {
    vf v[ROWS];
    for (int r = 0; r < ROWS; ++r) v[r] = get(in[r] + j);
    for (int o = 0; o < OUTPUTS; ++o) {
      const vf weights = get(w[o] + j);
      for (int r = 0; r < ROWS; ++r)
        totals[r * OUTPUTS + o] = fma(weights, v[r], totals[r * OUTPUTS + o]);
    }
  };
  int64_t j = 0;
  for (; j + LANES <= x.in; j += LANES) add(j, [](const float* p) INLINE { return load(p); });
  if (j < x.in) add(j, [&](const float* p) INLINE { return load_first(p, x.in - j); });
  float y[LANES];
  store(y, sums(totals));
  for (int r = 0; r < ROWS; ++r)
    for (int64_t o = 0; o < count; ++o) {
      const int64_t at = (row + r) * x.out + first + o;
      x.y[at] = y[r * OUTPUTS + o] + (x.bias ? x.bias[first + o] : 0.0f) + (x.add ? x.add[at] : 0.0f);
    }
}

// With few rows, reading the weights from memory takes the time: they are read once for all rows.
void linear(const Linear& x) {
  share(divide_up(x.out, LANES), LANES * x.rows * x.in, x.threads, [&](int64_t i) {
    const int64_t first = i * LANES, second = first + LANES / 2;
    int64_t row = 0;
    for (; row + 2 <= x.rows; row += 2) {
      some_outputs<2>(x, row, first);
      if (second < x.out) some_outputs<2>(x, row, second);
    }
    if (row < x.rows) some_outputs<1>(x, row, first);
  });
}

void block_linear(const BlockLinear& x) {
  share(x.rows * x.blocks, x.size * x.size, x.threads, [&](int64_t i) {
    const float *in = x.x + i * x.size, *w = x.weight + i % x.blocks * x.size * x.size;
    for (int64_t o = 0; o < x.size; ++o, w += x.size) {
      float total = 0;
      if (x.size < LANES)
        for (int64_t j = 0; j < x.size; ++j) total += w[j] * in[j];
      else
        total = dot(w, in, x.size);
      x.y[i * x.size + o] = total;
    }
  });
}

void sigmoid_gate(const SigmoidGate& x) {
  const float low = static_cast<float>(x.low), span = static_cast<float>(x.high - x.low);
  const float power = static_cast<float>(x.power), stretch = static_cast<float>(x.stretch);
  each_vector(x.count, [&](int64_t i, int64_t n) INLINE {
    const vf in = load_first(x.x + i, n);
    vf s = power == 1.0f ? sigmoid(in) : exp(-power * softplus(-in));
    if (stretch != 0.0f) {
      s = (1 + 2 * stretch) * s - stretch;
      s = s < vf{} ? vf{} : s > splat(1.0f) ? splat(1.0f) : s;
    }
    store_first(x.y + i, fma(splat(span), s, splat(low)), n);
  });
}

void step_sizes(const StepSizes& x) {
  const vf least = splat(static_cast<float>(x.least)), most = splat(static_cast<float>(x.most));
  share(x.rows, EXPONENTIAL * x.size, x.threads, [&](int64_t row) {
    each_vector(x.size, [&](int64_t i, int64_t n) INLINE {
      const int64_t at = row * x.size + i;
      vf in = load_first(x.x + at, n);
      if (x.bias) in += load_first(x.bias + i, n);
      vf delta = softplus(in);
      delta = delta < least ? least : delta > most ? most : delta;
      store_first(x.delta + at, delta, n);
      if (!x.rate) return;
      const vf a = exp(-exp(load_first(x.rate + i, n)) * delta);
      store_first(x.gate + at, x.negative ? a + a - 1.0f : a, n);
    });
  });
}

void scale_heads(const ScaleHeads& x) {
  share(x.rows * x.heads, x.size, x.threads, [&](int64_t i) {
    const float scale = x.scale[x.scale_per_row ? i : i % x.heads];
    each_vector(x.size, [&](int64_t j, int64_t n) INLINE {
      const int64_t at = i * x.size + j;
      vf y = scale * load_first(x.x + at, n);
      if (x.add) y += load_first(x.add + at, n);
      store_first(x.y + at, y, n);
    });
  });
}

void gated_norm(const GatedNorm& x) {
  share(x.rows, EXPONENTIAL * x.size, x.threads, [&](int64_t row) {
    const float *in = x.x + row * x.size, *gate = x.gate + row * x.size;
    float* y = x.y + row * x.size;
    vf squares{};
    each_vector(x.size, [&](int64_t i, int64_t n) INLINE {
      vf v = load_first(in + i, n);
      if (x.gate_first) {
        const vf z = load_first(gate + i, n);
        v *= z * sigmoid(z);
        store_first(y + i, v, n);
      }
      squares = fma(v, v, squares);
    });
    const float mean = sum(squares) / static_cast<float>(x.size);
    const float inverse = 1.0f / __builtin_sqrtf(mean + static_cast<float>(x.eps));
    each_vector(x.size, [&](int64_t i, int64_t n) INLINE {
      vf v = load_first((x.gate_first ? y : in) + i, n) * inverse * load_first(x.weight + i, n);
      if (!x.gate_first) {
        const vf z = load_first(gate + i, n);
        v *= z * sigmoid(z);
      }
      store_first(y + i, v, n);
    });
  });
}

// ---- mLSTM

void mlstm_write(const MLSTMWrite& x) {
  const float lowest = -44.3614195f;  // of log |f|: e^-2 lowest is still finite
  share(x.rows * x.heads, x.size, x.threads, [&](int64_t i) {
    const float* gates = x.gates + i / x.heads * 2 * x.heads + i % x.heads;
    const float log_i = gates[0], logit = gates[x.heads], m = x.m[i];
    const float f = x.negative ? tanh(splat(logit * 0.5f))[0] : sigmoid(splat(logit))[0];
    float log_f = x.negative ? __builtin_logf(f < 0 ? -f : f) : -softplus(splat(-logit))[0];
    if (!(log_f > lowest)) log_f = lowest;
    float next = log_i > 0 ? log_i : 0.0f;
    if (m + log_f > next) next = m + log_f;
    const float fall = __builtin_expf(m - next), write = __builtin_expf(log_i - next);
    const float floor = __builtin_expf(-next), least = static_cast<float>(x.least_floor);
    x.m_next[i] = next;
    x.gate[i] = f * fall;
    x.floor[i] = floor > least ? floor : least;
    const float *k = x.k + i * x.size, *v = x.v + i * x.size;
    float *k_written = x.k_written + i * x.size, *v_one = x.v_one + i * (x.size + 1);
    each_vector(x.size, [&](int64_t j, int64_t n) INLINE {
      store_first(k_written + j, write * load_first(k + j, n), n);
      store_first(v_one + j, load_first(v + j, n), n);
    });
    v_one[x.size] = 1.0f;
  });
}

void mlstm_read(const MLSTMRead& x) {
  share(x.rows * x.heads, EXPONENTIAL * x.size, x.threads, [&](int64_t i) {
    const float* o = x.o + i * (x.size + 1);
    const int64_t shared = i % x.heads * x.size;  // where this head's part of a weight begins
    const float *c = x.c + i * x.size, *z = x.z + i * x.size;
    float* y = x.y + i * x.size;
    float normaliser = o[x.size] < 0 ? -o[x.size] : o[x.size];
    if (normaliser < x.floor[i]) normaliser = x.floor[i];
    vf totals{};
    each_vector(x.size, [&](int64_t j, int64_t n) INLINE {
      const vf h = load_first(o + j, n) / normaliser;
      totals += h;
      store_first(y + j, h, n);
    });
    const float mean = sum(totals) / static_cast<float>(x.size);
    vf squares{};
    each_vector(x.size, [&](int64_t j, int64_t n) INLINE {
      const vf d = load_filled(y + j, n, mean) - mean;
      squares = fma(d, d, squares);
    });
    const float variance = sum(squares) / static_cast<float>(x.size);
    const float inverse = 1.0f / __builtin_sqrtf(variance + static_cast<float>(x.eps));
    each_vector(x.size, [&](int64_t j, int64_t n) INLINE {
      const vf gate = load_first(z + j, n);
      vf out = (load_first(y + j, n) - mean) * inverse * load_first(x.weight + shared + j, n);
      out = fma(load_first(x.skip + shared + j, n), load_first(c + j, n), out);
      store_first(y + j, out * gate * sigmoid(gate), n);
    });
  });
}

}  // namespace
