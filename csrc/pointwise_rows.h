// RMSNorm, SwiGLU, softplus and cross-entropy: functions of one row, or one number, after the other.
#pragma once

#include "pointwise.h"

namespace {

// f(block, first, end) for blocks of rows, in parallel.
template <class F>
void each_row_block(int64_t rows, int64_t size, int64_t threads, const F& f) {
  const int64_t step = rows_in_block(size);
  parallel_for(divide_up(rows, step), threads, [&](int64_t block) {
    f(block, block * step, at_most((block + 1) * step, rows));
  });
}

// ---- RMSNorm

inline float inverse_rms(const RMSNorm& x, const float* row) {
  vf squares{};
  each_vector(x.size, [&](int64_t i, int64_t n) INLINE {
    const vf v = load_first(row + i, n);
    squares = fma(v, v, squares);
  });
  const float mean = sum(squares) / static_cast<float>(x.size);
  return 1.0f / __builtin_sqrtf(mean + static_cast<float>(x.eps));
}

void rms_norm_forward(const RMSNorm& x) {
  each_row_block(x.rows, x.size, x.threads, [&](int64_t, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      const float* in = x.x + row * x.size;
      float* y = x.y + row * x.size;
      const float r = inverse_rms(x, in);
      each_vector(x.size, [&](int64_t i, int64_t n) INLINE {
        store_first(y + i, load_first(in + i, n) * r * load_first(x.weight + i, n), n);
      });
    }
  });
}

void rms_norm_backward(const RMSNorm& x) {
  const int64_t blocks = divide_up(x.rows, rows_in_block(x.size));
  Scratch partials(blocks * x.size);
  each_row_block(x.rows, x.size, x.threads, [&](int64_t block, int64_t first, int64_t end) {
    float* dweight = partials.get() + block * x.size;
    fill_zero(dweight, x.size);
    for (int64_t row = first; row < end; ++row) {
      const float* in = x.x + row * x.size;
      const float* dy = x.dy + row * x.size;
      float* dx = x.dx + row * x.size;
      const float r = inverse_rms(x, in);
      vf products{};
      each_vector(x.size, [&](int64_t i, int64_t n) INLINE {
        const vf v = load_first(in + i, n), d = load_first(dy + i, n);
        products = fma(v * d, load_first(x.weight + i, n), products);
        store_first(dweight + i, fma(d, v * r, load_first(dweight + i, n)), n);
      });
      const float shrink = sum(products) * r * r / static_cast<float>(x.size);
      each_vector(x.size, [&](int64_t i, int64_t n) INLINE {
        const vf g = load_first(dy + i, n) * load_first(x.weight + i, n);
        store_first(dx + i, (g - load_first(in + i, n) * shrink) * r, n);
      });
    }
  });
  sum_parts(partials.get(), blocks, x.size, x.size, x.dweight, x.threads);
}

// ---- SwiGLU

void swiglu_forward(const SwiGLU& x) {
  each_row_block(x.rows, x.size, x.threads, [&](int64_t, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      const float* gate = x.x + row * 2 * x.size;
      float* y = x.y + row * x.size;
      each_vector(x.size, [&](int64_t i, int64_t n) INLINE {
        const vf z = load_first(gate + i, n);
        store_first(y + i, z * sigmoid(z) * load_first(gate + x.size + i, n), n);
      });
    }
  });
}

void swiglu_backward(const SwiGLU& x) {
  each_row_block(x.rows, x.size, x.threads, [&](int64_t, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      const float* gate = x.x + row * 2 * x.size;
      const float* dy = x.dy + row * x.size;
      float* d_gate = x.dx + row * 2 * x.size;
      each_vector(x.size, [&](int64_t i, int64_t n) INLINE {
        const vf z = load_first(gate + i, n), d = load_first(dy + i, n), s = sigmoid(z);
        store_first(d_gate + i, d * load_first(gate + x.size + i, n) * d_silu(z, s), n);
        store_first(d_gate + x.size + i, d * z * s, n);
      });
    }
  });
}

// ---- softplus

constexpr int64_t SOFTPLUS_BLOCK = 8192;  // numbers in a unit of work

// f(i, n) for the n numbers from i on, in parallel.
template <class F>
void each_vector_of_blocks(int64_t count, int64_t threads, const F& f) {
  parallel_for(divide_up(count, SOFTPLUS_BLOCK), threads, [&](int64_t block) {
    const int64_t first = block * SOFTPLUS_BLOCK;
    each_vector(at_most(SOFTPLUS_BLOCK, count - first),
                [&](int64_t i, int64_t n) INLINE { f(first + i, n); });
  });
}

void softplus_forward(const Softplus& x) {
  each_vector_of_blocks(x.count, x.threads, [&](int64_t i, int64_t n) INLINE {
    store_first(x.y + i, softplus(load_first(x.x + i, n)), n);
  });
}

void softplus_backward(const Softplus& x) {
  each_vector_of_blocks(x.count, x.threads, [&](int64_t i, int64_t n) INLINE {
    store_first(x.dx + i, load_first(x.dy + i, n) * sigmoid(load_first(x.x + i, n)), n);
  });
}

// ---- cross-entropy

inline float highest(const float* logits, int64_t classes) {
  vf top = splat(-__builtin_inff());
  each_vector(classes, [&](int64_t i, int64_t n) INLINE {
    const vf v = load_filled(logits + i, n, -__builtin_inff());
    top = v > top ? v : top;
  });
  float result = top[0];
  for (int lane = 1; lane < LANES; ++lane) result = top[lane] > result ? top[lane] : result;
  return result;
}

void cross_entropy_forward(const CrossEntropy& x) {
  const int64_t blocks = divide_up(x.rows, rows_in_block(x.classes));
  Scratch scratch(4 * blocks);
  double* partials = reinterpret_cast<double*>(scratch.get());
  const float one = exp(vf{})[0];  // 1 up to rounding; dividing by it keeps that rounding out of a loss near 0
  each_row_block(x.rows, x.classes, x.threads, [&](int64_t block, int64_t first, int64_t end) {
    double total = 0, count = 0;
    for (int64_t row = first; row < end; ++row) {
      if (x.targets[row] == x.ignore) continue;
      const float* logits = x.logits + row * x.classes;
      const float top = highest(logits, x.classes);
      vf weights{};
      each_vector(x.classes, [&](int64_t i, int64_t n) INLINE {
        weights += exp(load_filled(logits + i, n, -__builtin_inff()) - top);
      });
      total += __builtin_logf(sum(weights) / one) - (logits[x.targets[row]] - top);
      count += 1;
    }
    partials[2 * block] = total, partials[2 * block + 1] = count;
  });
  double total = 0, count = 0;
  for (int64_t block = 0; block < blocks; ++block)
    total += partials[2 * block], count += partials[2 * block + 1];
  *x.loss = static_cast<float>(total / count);
  *x.count = static_cast<float>(count);
}

void cross_entropy_backward(const CrossEntropy& x) {
  const float scale = *x.d_loss / *x.count;
  each_row_block(x.rows, x.classes, x.threads, [&](int64_t, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      float* d = x.d_logits + row * x.classes;
      if (x.targets[row] == x.ignore) {
        fill_zero(d, x.classes);
        continue;
      }
      const float* logits = x.logits + row * x.classes;
      const float top = highest(logits, x.classes);
      vf weights{};
      each_vector(x.classes, [&](int64_t i, int64_t n) INLINE {
        const vf w = exp(load_filled(logits + i, n, -__builtin_inff()) - top);
        weights += w;
        store_first(d + i, w, n);
      });
      const float factor = scale / sum(weights);
      each_vector(x.classes, [&](int64_t i, int64_t n) INLINE {
        store_first(d + i, load_first(d + i, n) * factor, n);
      });
      d[x.targets[row]] -= scale;
    }
  });
}

}  // namespace
