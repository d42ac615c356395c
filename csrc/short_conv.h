// Causal depthwise convolution, SiLU and normalisation of heads in one pass over memory.
//
// A unit of work is a block of channels (whole heads of one part) of one or several rows, walked
// through in time, so that the inputs of W tokens stay in the first-level cache.
#pragma once

#include "pointwise.h"
#include "recurrence.h"

namespace {

constexpr int64_t CONV_CHANNELS = 128;  // of a block, unless one head has more
constexpr int64_t CONV_TOKENS = 512;    // that a weight's gradient sums before others come in

// A block of channels and its weights, copied so that lanes lie along the channels.
template <int WIDTH>
struct ConvBlock {
  const ShortConv& x;
  const Part* part;
  int64_t width;    // W; known to the compiler unless WIDTH is 0
  int64_t inside;   // first channel, within the part
  int64_t channel;  // first channel, within x
  int64_t count;    // channels
  int64_t head;     // channels that are worked on together
  Scratch weight;   // [W][count]
  Scratch zeros;    // [count]

  static int64_t channels(const Part& part) {
    return part.head ? part.head * at_least(CONV_CHANNELS / part.head, 1) : CONV_CHANNELS;
  }

  static int64_t blocks(const ShortConv& x) {
    int64_t n = 0;
    for (int64_t i = 0; i < x.num_parts; ++i) n += divide_up(x.parts[i].size, channels(x.parts[i]));
    return n;
  }

  ConvBlock(const ShortConv& x, int64_t index)
      : x(x), part(x.parts), width(WIDTH ? WIDTH : x.W), channel(0), weight(x.W * widest(x)),
        zeros(widest(x)) {
    for (;; ++part) {
      const int64_t n = divide_up(part->size, channels(*part));
      if (index < n) break;
      index -= n, channel += part->size;
    }
    inside = index * channels(*part);
    channel += inside;
    count = at_most(channels(*part), part->size - inside);
    head = part->head ? part->head : count;
    for (int64_t c = 0; c < count; ++c)
      for (int64_t w = 0; w < width; ++w)
        weight.get()[w * count + c] = x.weight[(channel + c) * width + w];
    fill_zero(zeros.get(), count);
  }

  static int64_t widest(const ShortConv& x) {
    int64_t n = 0;
    for (int64_t i = 0; i < x.num_parts; ++i)
      n = at_least(n, at_most(channels(x.parts[i]), x.parts[i].size));
    return n;
  }

  int64_t taps() const { return WIDTH ? WIDTH : width; }

  // Input p of row b with the window before it: p = 0 is the first of the window.
  const float* input(int64_t b, int64_t p) const {
    const int64_t t = p - (taps() - 1);
    if (t >= 0) return x.x + b * x.row + t * x.token + channel;
    return x.window ? x.window + (b * (taps() - 1) + p) * x.D + channel : zeros.get();
  }
  int64_t output(int64_t b, int64_t t) const { return (b * x.T + t) * part->size + inside; }
  int64_t length(int64_t b) const { return x.lengths ? x.lengths[b] : x.T; }
};

constexpr int64_t MAX_WIDTH = 8;

// What the loop over one token's channels needs, as values that it can keep in registers.
template <int WIDTH>
struct Taps {
  const float *weight, *bias;
  int64_t width, count;
  const float* inputs[MAX_WIDTH];  // of the token, in time

  explicit Taps(const ConvBlock<WIDTH>& block)
      : weight(block.weight.get()), bias(block.x.bias ? block.x.bias + block.channel : block.zeros.get()),
        width(block.taps()), count(block.count) {}

  // The convolution for n channels from c on.
  INLINE vf convolve(int64_t c, int64_t n) const {
    vf z = load_first(bias + c, n);
    for (int64_t w = 0; w < (WIDTH ? WIDTH : width); ++w)
      z = fma(load_first(weight + w * count + c, n), load_first(inputs[w] + c, n), z);
    return z;
  }
};

template <int WIDTH>
void conv_row(const ConvBlock<WIDTH>& block, int64_t b, float* scales) {
  const ShortConv& x = block.x;
  const int64_t W = block.taps(), T = x.T, count = block.count, head = block.head;
  const bool silu = x.silu, normalise = block.part->head;
  const float eps = static_cast<float>(x.eps);
  const int64_t stride = block.part->size;
  float* y = block.part->y + block.output(b, 0);
  Taps<WIDTH> taps(block);
  for (int64_t t = 0; t < T; ++t, y += stride) {
    for (int64_t w = 0; w < W; ++w) taps.inputs[w] = block.input(b, t + w);
    if (t + AHEAD < T) {
      prefetch(block.input(b, t + AHEAD + W - 1), count);
      prefetch_write(y + AHEAD * stride, count);
    }
    for (int64_t first = 0, h = 0; first < count; first += head, ++h) {
      vf squares{};
      each_vector(head, [&](int64_t i, int64_t n) INLINE {
        vf s = taps.convolve(first + i, n);
        if (silu) s *= sigmoid(s);
        squares = fma(s, s, squares);
        store_first(y + first + i, s, n);
      });
      if (normalise) scales[h] = 1.0f / __builtin_sqrtf(sum(squares) + eps);
    }
    // apart from the loop above, which so does not wait for sums and roots
    for (int64_t first = 0, h = 0; normalise && first < count; first += head, ++h) {
      const float r = scales[h];
      each_vector(head, [&](int64_t i, int64_t n) INLINE {
        store_first(y + first + i, load_first(y + first + i, n) * r, n);
      });
    }
  }
  const int64_t last = block.length(b);
  for (int64_t w = 0; w + 1 < W; ++w)
    std::memcpy(x.final + (b * (W - 1) + w) * x.D + block.channel, block.input(b, last + w),
                static_cast<size_t>(count) * 4);
}

template <int WIDTH>
void conv_forward(const ShortConv& x, int64_t begin, int64_t end, int64_t index) {
  const ConvBlock<WIDTH> block(x, index);
  Scratch scales(block.count / block.head);
  for (int64_t b = begin; b < end; ++b) conv_row(block, b, scales.get());
}

// Scratch for the backward pass of a block: rows of its channels.
struct ConvGradients {
  float* dz;  // [W][count]: token t in t % W
  float* dweight;  // [W][count]
  float* dbias;
  float *s, *slope;  // of one token: SiLU and its derivative
};

// dz of one token, and what it adds to the gradients of weight and bias.
template <int WIDTH>
INLINE inline void conv_token_backward(const ConvBlock<WIDTH>& block, const Taps<WIDTH>& taps,
                                       const float* dy, const ConvGradients& to, float* dz) {
  const bool silu = block.x.silu, normalise = block.part->head;
  const float eps = static_cast<float>(block.x.eps);
  const int64_t W = block.taps(), count = block.count, head = block.head;
  float *s_row = to.s, *slopes = to.slope, *dweight = to.dweight, *dbias = to.dbias;
  for (int64_t first = 0; first < count; first += head) {
    vf squares{}, products{};
    each_vector(head, [&](int64_t i, int64_t n) INLINE {
      const int64_t c = first + i;
      vf s = taps.convolve(c, n), slope = splat(1.0f);
      if (silu) {
        const vf open = sigmoid(s);
        slope = d_silu(s, open);
        s *= open;
      }
      if (normalise) {
        squares = fma(s, s, squares);
        products = fma(s, load_first(dy + c, n), products);
        store_first(s_row + c, s, n);
      }
      store_first(slopes + c, slope, n);
    });
    float r = 1.0f, shrink = 0.0f;
    if (normalise) {
      const float square = 1.0f / (sum(squares) + eps);
      r = __builtin_sqrtf(square);
      shrink = square * r * sum(products);
    }
    each_vector(head, [&](int64_t i, int64_t n) INLINE {
      const int64_t c = first + i;
      vf d = load_first(dy + c, n) * r;
      if (normalise) d -= load_first(s_row + c, n) * shrink;
      d *= load_first(slopes + c, n);
      store_first(dz + c, d, n);
      store_first(dbias + c, load_first(dbias + c, n) + d, n);
      for (int64_t w = 0; w < W; ++w) {
        float* sum_w = dweight + w * count + c;
        store_first(sum_w, fma(d, load_first(taps.inputs[w] + c, n), load_first(sum_w, n)), n);
      }
    });
  }
}

// Rows [begin, end). The gradient of input p is sum_w weight[w] dz_{p - w}, complete at time p.
template <int WIDTH>
void conv_backward(const ShortConv& x, int64_t begin, int64_t end, int64_t index, float* partial) {
  const ConvBlock<WIDTH> block(x, index);
  const int64_t W = block.taps(), T = x.T, D = x.D, count = block.count;
  const int64_t stride = block.part->size;
  Scratch scratch((2 * W + 3) * count);
  float* rows = scratch.get();
  const ConvGradients to{rows, rows + W * count, rows + 2 * W * count, rows + (2 * W + 1) * count,
                         rows + (2 * W + 2) * count};
  fill_zero(to.dweight, (W + 1) * count);
  Taps<WIDTH> taps(block);
  const float* weight = taps.weight;
  for (int64_t b = begin; b < end; ++b) {
    const int64_t last = block.length(b);
    fill_zero(to.dz, W * count);
    for (int64_t p = 0; p < T + W - 1; ++p) {
      float* now = to.dz + p % W * count;
      if (p < T) {
        for (int64_t w = 0; w < W; ++w) taps.inputs[w] = block.input(b, p + w);
        const float* dy = block.part->dy + block.output(b, p);
        if (p + AHEAD < T) {
          prefetch(block.input(b, p + AHEAD + W - 1), count);
          prefetch(dy + AHEAD * stride, count);
          if (p + AHEAD >= W - 1)
            prefetch_write(x.dx + (b * T + p + AHEAD - (W - 1)) * D + block.channel, count);
        }
        conv_token_backward(block, taps, dy, to, now);
      } else {
        fill_zero(now, count);
      }
      // what the window that came out says about this input
      const float* later = block.zeros.get();
      if (x.d_final && last <= p && p < last + W - 1)
        later = x.d_final + (b * (W - 1) + p - last) * D + block.channel;
      const int64_t t = p - (W - 1);
      float* d_input = t >= 0 ? x.dx + (b * T + t) * D : x.d_window + (b * (W - 1) + p) * D;
      d_input += block.channel;
      const float* dzs[MAX_WIDTH];
      for (int64_t w = 0; w < W; ++w) dzs[w] = to.dz + (p + W - w) % W * count;
      each_vector(count, [&](int64_t i, int64_t n) INLINE {
        vf d = load_first(later + i, n);
        for (int64_t w = 0; w < W; ++w)
          d = fma(load_first(weight + w * count + i, n), load_first(dzs[w] + i, n), d);
        store_first(d_input + i, d, n);
      });
    }
  }
  for (int64_t c = 0; c < count; ++c) {
    float* sums = partial + (block.channel + c) * (W + 1);
    for (int64_t w = 0; w < W; ++w) sums[w] = to.dweight[w * count + c];
    sums[W] = to.dbias[c];
  }
}

// f(group, first row, end, block) for every group of rows and block of channels, in parallel.
template <class F>
int64_t each_conv_unit(const ShortConv& x, const F& f) {
  const int64_t blocks = ConvBlock<0>::blocks(x);
  const int64_t rows = divide_up(CONV_TOKENS, x.T), groups = divide_up(x.B, rows);
  parallel_for(groups * blocks, x.threads, [&](int64_t i) {
    const int64_t group = i / blocks;
    f(group, group * rows, at_most((group + 1) * rows, x.B), i % blocks);
  });
  return groups;
}

void short_conv_forward(const ShortConv& x) {
  auto run = x.W == 4 ? conv_forward<4> : conv_forward<0>;
  each_conv_unit(x, [&](int64_t, int64_t begin, int64_t end, int64_t block) {
    run(x, begin, end, block);
  });
}

void short_conv_backward(const ShortConv& x) {
  const int64_t size = x.D * (x.W + 1);
  auto run = x.W == 4 ? conv_backward<4> : conv_backward<0>;
  Scratch partials((divide_up(x.B, divide_up(CONV_TOKENS, x.T)) + 1) * size);
  const int64_t groups =
      each_conv_unit(x, [&](int64_t group, int64_t begin, int64_t end, int64_t block) {
        run(x, begin, end, block, partials.get() + group * size);
      });
  float* total = partials.get() + groups * size;
  sum_partials(partials.get(), groups, size, total);
  for (int64_t c = 0; c < x.D; ++c) {
    for (int64_t w = 0; w < x.W; ++w) x.dweight[c * x.W + w] = total[c * (x.W + 1) + w];
    x.dbias[c] = total[c * (x.W + 1) + x.W];
  }
}

}  // namespace
