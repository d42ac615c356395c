// Causal depthwise convolution, SiLU and normalisation of heads in one pass over memory.
//
// A unit of work is a block of channels (whole heads of one part) of one or several rows. It processes
// CONV_CHUNK tokens at a time, which stay in the first-level cache: first the convolution, vector by
// vector with weights and last inputs in registers, then the rest, token by token.
#pragma once

#include "pointwise.h"

namespace {

constexpr int64_t CONV_CHANNELS = 128;  // of a block, unless one head has more
constexpr int64_t CONV_TOKENS = 512;    // of a unit of work, which sums its own gradient of the weight
constexpr int64_t CONV_CHUNK = 8;       // tokens

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

// The rows of inputs that a chunk of tokens from `first` on sees, with the W - 1 before it.
struct ConvInputs {
  const float* row[CONV_CHUNK + MAX_WIDTH - 1];

  template <int WIDTH>
  ConvInputs(const ConvBlock<WIDTH>& block, int64_t b, int64_t first, int64_t tokens) {
    const int64_t before = block.taps() - 1, end = block.x.T + before;
    for (int64_t i = 0; i < tokens + before; ++i)
      row[i] = first + i < end ? block.input(b, first + i) : block.zeros.get();
  }
};

// z [tokens, count] of a chunk of tokens.
template <int WIDTH>
INLINE inline void convolve(const ConvBlock<WIDTH>& block, const ConvInputs& inputs, int64_t tokens,
                            float* z) {
  const int64_t W = block.taps(), count = block.count;
  const float* weight = block.weight.get();
  const float* bias = block.x.bias ? block.x.bias + block.channel : block.zeros.get();
  each_vector(count, [&](int64_t c, int64_t n) INLINE {
    constexpr int64_t N = WIDTH ? WIDTH : MAX_WIDTH;
    vf w[N], x[N];
    const vf start = load_first(bias + c, n);
    for (int64_t k = 0; k < W; ++k) w[k] = load_first(weight + k * count + c, n);
    for (int64_t k = 0; k < W - 1; ++k) x[k] = load_first(inputs.row[k] + c, n);
    for (int64_t i = 0; i < tokens; ++i) {
      x[W - 1] = load_first(inputs.row[i + W - 1] + c, n);
      vf sum = start;
      for (int64_t k = 0; k < W; ++k) sum = fma(w[k], x[k], sum);
      store_first(z + i * count + c, sum, n);
      for (int64_t k = 0; k < W - 1; ++k) x[k] = x[k + 1];
    }
  });
}

// y from z, which is overwritten, for one token of a block; lengths: scratch, one for each head.
// Division by a correctly rounded root gives a vector along an axis the length 1 to the last bit.
inline void activate(float* z, float* y, int64_t count, int64_t head, bool silu, bool normalise,
                     float eps, float* lengths) {
  float* to = normalise ? z : y;
  for (int64_t first = 0, h = 0; first < count; first += head, ++h) {
    vf squares{};
    each_vector(head, [&](int64_t i, int64_t n) INLINE {
      vf s = load_first(z + first + i, n);
      if (silu) s *= sigmoid(s);
      squares = fma(s, s, squares);
      store_first(to + first + i, s, n);
    });
    if (normalise) lengths[h] = __builtin_sqrtf(sum(squares) + eps);
  }
  if (!normalise) return;
  // a loop of its own, so that the one above does not wait for sums and roots
  for (int64_t first = 0, h = 0; first < count; first += head, ++h) {
    const float length = lengths[h];
    each_vector(head, [&](int64_t i, int64_t n) INLINE {
      store_first(y + first + i, load_first(z + first + i, n) / length, n);
    });
  }
}

template <int WIDTH>
void conv_forward(const ShortConv& x, int64_t begin, int64_t end, int64_t index) {
  const ConvBlock<WIDTH> block(x, index);
  const int64_t W = block.taps(), count = block.count;
  const float eps = static_cast<float>(x.eps);
  Scratch scratch((CONV_CHUNK + 1) * count);
  float* z = scratch.get();  // [CONV_CHUNK][count]
  for (int64_t b = begin; b < end; ++b) {
    for (int64_t first = 0; first < x.T; first += CONV_CHUNK) {
      const int64_t tokens = at_most(CONV_CHUNK, x.T - first);
      convolve(block, ConvInputs(block, b, first, tokens), tokens, z);
      for (int64_t i = 0; i < tokens; ++i)
        activate(z + i * count, block.part->y + block.output(b, first + i), count, block.head,
                 x.silu, block.part->head, eps, z + CONV_CHUNK * count);
    }
    for (int64_t w = 0; w + 1 < W; ++w)
      std::memcpy(x.final + (b * (W - 1) + w) * x.D + block.channel,
                  block.input(b, block.length(b) + w), static_cast<size_t>(count) * 4);
  }
}

// dz from z, in place, for one token of a block; s_row, slopes: scratch for a head.
inline void activate_backward(float* z, const float* dy, int64_t count, int64_t head, bool silu,
                              bool normalise, float eps, float* s_row, float* slopes) {
  for (int64_t first = 0; first < count; first += head) {
    vf squares{}, products{};
    each_vector(head, [&](int64_t i, int64_t n) INLINE {
      vf s = load_first(z + first + i, n), slope = splat(1.0f);
      const vf d = load_first(dy + first + i, n);
      if (silu) {
        const vf open = sigmoid(s);
        slope = d_silu(s, open);
        s *= open;
      }
      if (normalise) {
        squares = fma(s, s, squares);
        products = fma(s, d, products);
        store_first(s_row + i, s, n);
        store_first(slopes + i, slope, n);
      } else {
        store_first(z + first + i, d * slope, n);
      }
    });
    if (!normalise) continue;
    const float square = 1.0f / (sum(squares) + eps), r = __builtin_sqrtf(square);
    const float shrink = square * r * sum(products);
    each_vector(head, [&](int64_t i, int64_t n) INLINE {
      const vf ds = load_first(dy + first + i, n) * r - load_first(s_row + i, n) * shrink;
      store_first(z + first + i, ds * load_first(slopes + i, n), n);
    });
  }
}

// The gradients of a chunk of inputs, sum_k weight[k] dz_{p - k} for input p, and what the chunk
// adds to those of weight [W][count] and, behind it, bias. dz has W - 1 rows before the chunk;
// `later` is the gradient that each input gets through the next window.
template <int WIDTH>
INLINE inline void convolve_backward(const ConvBlock<WIDTH>& block, const ConvInputs& inputs,
                                     int64_t tokens, const float* dz, const float* const* later,
                                     float* const* d_inputs, float* dweight) {
  const int64_t W = block.taps(), count = block.count;
  const float* weight = block.weight.get();
  each_vector(count, [&](int64_t c, int64_t n) INLINE {
    constexpr int64_t N = WIDTH ? WIDTH : MAX_WIDTH;
    vf w[N], dw[N], x[N], d[N];
    vf db = load_first(dweight + W * count + c, n);
    for (int64_t k = 0; k < W; ++k) {
      w[k] = load_first(weight + k * count + c, n);
      dw[k] = load_first(dweight + k * count + c, n);
    }
    for (int64_t k = 0; k < W - 1; ++k) {
      x[k] = load_first(inputs.row[k] + c, n);
      d[k] = load_first(dz + k * count + c, n);
    }
    for (int64_t i = 0; i < tokens; ++i) {
      x[W - 1] = load_first(inputs.row[i + W - 1] + c, n);
      const vf now = d[W - 1] = load_first(dz + (i + W - 1) * count + c, n);
      vf g = load_first(later[i] + c, n);
      for (int64_t k = 0; k < W; ++k) {
        g = fma(w[k], d[W - 1 - k], g);
        dw[k] = fma(now, x[k], dw[k]);
      }
      db += now;
      store_first(d_inputs[i] + c, g, n);
      for (int64_t k = 0; k < W - 1; ++k) x[k] = x[k + 1], d[k] = d[k + 1];
    }
    for (int64_t k = 0; k < W; ++k) store_first(dweight + k * count + c, dw[k], n);
    store_first(dweight + W * count + c, db, n);
  });
}

template <int WIDTH>
void conv_backward(const ShortConv& x, int64_t begin, int64_t end, int64_t index, float* partial) {
  const ConvBlock<WIDTH> block(x, index);
  const int64_t W = block.taps(), T = x.T, D = x.D, count = block.count, head = block.head;
  const float eps = static_cast<float>(x.eps);
  Scratch scratch((2 * W + CONV_CHUNK) * count + 2 * head);
  float* dweight = scratch.get();           // [W + 1][count], the last for the bias
  float* dz = dweight + (W + 1) * count;    // [W - 1 + CONV_CHUNK][count]
  float* s = dz + (W - 1 + CONV_CHUNK) * count;  // [head], and as much behind it
  fill_zero(dweight, (W + 1) * count);
  for (int64_t b = begin; b < end; ++b) {
    const int64_t last = block.length(b);
    fill_zero(dz, (W - 1) * count);
    for (int64_t first = 0; first < T + W - 1; first += CONV_CHUNK) {  // the last W - 1 have dz = 0
      const int64_t n = at_most(CONV_CHUNK, T + W - 1 - first), tokens = at_most(n, T - first);
      const ConvInputs inputs(block, b, first, n);
      float* now = dz + (W - 1) * count;
      if (tokens > 0) convolve(block, inputs, tokens, now);
      const float* later[CONV_CHUNK];
      float* d_inputs[CONV_CHUNK];
      for (int64_t i = 0; i < n; ++i) {
        const int64_t p = first + i, t = p - (W - 1);
        d_inputs[i] = t >= 0 ? x.dx + (b * T + t) * D : x.d_window + (b * (W - 1) + p) * D;
        d_inputs[i] += block.channel;
        later[i] = block.zeros.get();
        if (x.d_final && last <= p && p < last + W - 1)
          later[i] = x.d_final + (b * (W - 1) + p - last) * D + block.channel;
        if (p >= T) {
          fill_zero(now + i * count, count);
          continue;
        }
        const float* dy = block.part->dy + block.output(b, p);
        activate_backward(now + i * count, dy, count, head, x.silu, block.part->head, eps, s,
                          s + head);
      }
      convolve_backward(block, inputs, n, dz, later, d_inputs, dweight);
      std::memmove(dz, dz + n * count, static_cast<size_t>((W - 1) * count) * 4);
    }
  }
  for (int64_t c = 0; c < count; ++c)
    for (int64_t w = 0; w < W + 1; ++w)
      partial[(block.channel + c) * (W + 1) + w] = dweight[w * count + c];
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
  sum_parts(partials.get(), groups, size, size, total, x.threads);
  for (int64_t c = 0; c < x.D; ++c) {
    for (int64_t w = 0; w < x.W; ++w) x.dweight[c * x.W + w] = total[c * (x.W + 1) + w];
    x.dbias[c] = total[c * (x.W + 1) + x.W];
  }
}

}  // namespace
