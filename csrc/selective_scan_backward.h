// The backward pass, chunk by chunk from the last: the states of a chunk are computed again from
// the checkpoint where it begins and kept with their decays for GROUP states at a time, then the
// gradient of h runs backwards over them. With x_t = delta_t A,
//     dh_t = a_{t+1} dh_{t+1} + C_t dy_t,   dx_t = dh_t h_{t-1} exp(x_t)  (twice, if negative)
//     du_t = delta_t dh_t . B_t,            ddelta_t = u_t dh_t . B_t + dx_t . A.
//
// dB and dC are sums over channels, dA and dskip over sequences. A unit of work is a group of
// sequences and a part of the channels; it adds up what is its own, and the sums of all units are
// added in a fixed order.
#pragma once

#include "selective_scan_forward.h"

namespace {

// GROUP states of one vector of channels backwards through a chunk. `products` collects the terms
// of dB and dC lane by lane over the vectors of a tile, [tokens][dB or dC][GROUP][LANES].
template <bool NEGATIVE, bool FIRST>
__attribute__((noinline)) void reverse_group(
    int64_t tokens, int64_t N, const float* A, const float* B, const float* C, const float* delta,
    const float* write, const float* dy, const float* kept_h, const float* kept_decay, float* dh_,
    float* dA_, float* along_B, float* along_A, float* products, const Ahead& ahead) {
  vf carried[GROUP], dA[GROUP];
  for (int g = 0; g < GROUP; ++g)
    carried[g] = load(dh_ + g * LANES), dA[g] = load(dA_ + g * LANES);
  for (int64_t t = tokens - 1; t >= 0; --t) {
    const vf d = load(delta + t * LANES), w = load(write + t * LANES), out = load(dy + t * LANES);
    const float *before = kept_h + t * GROUP * LANES, *after = before + GROUP * LANES;
    const float* decay = kept_decay + t * GROUP * LANES;
    float* dB = products + t * 2 * GROUP * LANES;
    float* dC = dB + GROUP * LANES;
    ahead.fetch(t);
    vf sum_B = load(along_B + t * LANES), sum_A = load(along_A + t * LANES);
    UNROLL
    for (int g = 0; g < GROUP; ++g) {
      const vf dh = fma(splat(C[t * N + g]), out, carried[g]);
      vf to_B = dh * w, to_C = out * load(after + g * LANES);
      if (!FIRST) to_B += load(dB + g * LANES), to_C += load(dC + g * LANES);
      store(dB + g * LANES, to_B);
      store(dC + g * LANES, to_C);
      sum_B = fma(dh, splat(B[t * N + g]), sum_B);
      const vf decayed = load(decay + g * LANES) * dh;
      carried[g] = NEGATIVE ? decayed - dh : decayed;
      const vf dx = load(before + g * LANES) * decayed;
      sum_A = fma(dx, load(A + g * LANES), sum_A);
      dA[g] = fma(dx, d, dA[g]);
    }
    store(along_B + t * LANES, sum_B);
    store(along_A + t * LANES, sum_A);
  }
  for (int g = 0; g < GROUP; ++g)
    store(dh_ + g * LANES, carried[g]), store(dA_ + g * LANES, dA[g]);
}

// Some sequences and channels.
template <bool NEGATIVE>
struct ScanBackward {
  const Channels& channels;
  float *A, *h, *dh, *dA;              // scratch [vectors][N][LANES]
  float* dskip;                        // scratch [vectors][LANES]
  float *B, *C, *dB, *dC;              // scratch [chunk][N]
  float *delta, *write, *dy, *dz, *y;  // scratch [TILE][chunk][LANES]; dz lacks its factor y
  float *along_B, *along_A;            // likewise: dh . B and dx . A
  float *kept_h, *kept_decay;          // scratch [chunk][GROUP][LANES], and h once more before that
  float* products;                     // scratch [chunk][2][GROUP][LANES]
  int64_t size = 0;

  ScanBackward(const Channels& channels, float* memory) : channels(channels) {
    const Pieces take{memory, size};
    const int64_t states = channels.states(), chunk = channels.x.chunk, N = channels.N;
    A = take(states), h = take(states), dh = take(states), dA = take(states);
    dskip = take(channels.vectors * LANES);
    B = take(chunk * N), C = take(chunk * N), dB = take(chunk * N), dC = take(chunk * N);
    const int64_t rows = TILE * chunk * LANES;
    delta = take(rows), write = take(rows), dy = take(rows), dz = take(rows), y = take(rows);
    along_B = take(rows), along_A = take(rows);
    kept_h = take((chunk + 1) * GROUP * LANES), kept_decay = take(chunk * GROUP * LANES);
    products = take(chunk * 2 * GROUP * LANES);
  }

  // dB and dC of these sequences and channels go to rows of all_dB and all_dC.
  void run(int64_t begin, int64_t end, float* all_dB, float* all_dC) const {
    const SelectiveScan& x = channels.x;
    channels.gather(x.A, LOG2_E, A);
    for (int64_t i = 0; i < channels.states(); ++i) h[i] = dA[i] = 0.0f;
    for (int64_t i = 0; i < channels.vectors * LANES; ++i) dskip[i] = 0.0f;
    for (int64_t i = end - 1; i >= begin; --i) {
      const Sequence sequence(x, i);
      channels.gather_state(x.d_final, i, dh);
      for (int64_t c = sequence.chunks - 1; c >= 0; --c) {
        const int64_t first = sequence.first + c * x.chunk;
        const int64_t tokens = at_most(x.chunk, sequence.tokens - c * x.chunk);
        if (c)
          channels.load_checkpoint(sequence.checkpoint + c - 1, h);
        else
          channels.gather_state(x.initial, i, h);
        channels.copy_rows(x.B, first, tokens, B);
        channels.copy_rows(x.C, first, tokens, C);
        for (int64_t j = 0; j < tokens * channels.N; ++j) dB[j] = dC[j] = 0.0f;
        for (int64_t v = 0; v < channels.vectors; v += TILE)
          run_tile({channels, first, tokens, v});
        for (int64_t t = 0; t < tokens; ++t) {
          std::memcpy(all_dB + (first + t) * x.N, dB + t * channels.N, x.N * 4);
          std::memcpy(all_dC + (first + t) * x.N, dC + t * channels.N, x.N * 4);
        }
      }
      if (x.d_initial) channels.scatter(dh, x.d_initial + i * x.D * x.N);
    }
  }

  void run_tile(const Tile& tile) const {
    const int64_t N = channels.N, tokens = tile.tokens;
    const auto scan = channels.x.z.data ? scan_group<NEGATIVE, true, true>
                                        : scan_group<NEGATIVE, false, true>;
    const SelectiveScan& x = channels.x;
    const View rows[] = {x.u,
                         x.delta,
                         x.z,
                         {x.dy, x.D, 0},
                         {x.du, x.D, 0},
                         {x.ddelta, x.D, 0},
                         {x.dz, x.D, 0}};
    prepare(tile);
    for (int64_t n = 0; n < N; n += GROUP) {
      for (int64_t i = 0; i < tile.vectors; ++i) {
        const int64_t row = tile.row(i), state = tile.state(i, n);
        Ahead ahead, behind;
        for (int k = 0; n == 0 && k < 7; ++k)
          (k < 4 ? ahead : behind).add(tile.next(rows[k], i, -channels.x.chunk), rows[k].token);
        std::memcpy(kept_h, h + state, GROUP * LANES * 4);
        scan(tokens, N, A + state, B + n, C + n, delta + row, write + row, y + row, h + state,
             kept_h + GROUP * LANES, kept_decay, ahead);
        const auto reverse = i ? reverse_group<NEGATIVE, false> : reverse_group<NEGATIVE, true>;
        reverse(tokens, N, A + state, B + n, C + n, delta + row, write + row, dy + row, kept_h,
                kept_decay, dh + state, dA + state, along_B + row, along_A + row, products,
                behind);
      }
      for (int64_t t = 0; t < tokens; ++t) sum_products(t, n);
    }
    finish(tile);
  }

  void sum_products(int64_t t, int64_t n) const {
    vf terms[2 * GROUP];
    float summed[2 * GROUP];
    for (int g = 0; g < 2 * GROUP; ++g) terms[g] = load(products + (t * 2 * GROUP + g) * LANES);
    for (int g = 0; g < 2 * GROUP; g += LANES) store(summed + g, sums(terms + g));
    for (int g = 0; g < GROUP; ++g) dB[t * channels.N + n + g] += summed[g];
    for (int g = 0; g < GROUP; ++g) dC[t * channels.N + n + g] += summed[GROUP + g];
  }

  void prepare(const Tile& tile) const {
    const SelectiveScan& x = channels.x;
    tile.each([&](int64_t token, int64_t d, int64_t lanes, int64_t at) INLINE {
      const vf u = load_first(x.u.data + token * x.u.token + d, lanes);
      const vf dt = load_first(x.delta.data + token * x.delta.token + d, lanes);
      vf out = load_first(x.dy + token * x.D + d, lanes);
      if (x.z.data) {
        const vf z = load_first(x.z.data + token * x.z.token + d, lanes), s = sigmoid(z);
        store(dz + at, out * s * (1.0f + z * (1.0f - s)));
        store(y + at, x.skip ? u * load_first(x.skip + d, lanes) : vf{});
        out *= z * s;
      }
      store(delta + at, dt);
      store(write + at, dt * u);
      store(dy + at, out);
      store(along_B + at, vf{});
      store(along_A + at, vf{});
    });
  }

  void finish(const Tile& tile) const {
    const SelectiveScan& x = channels.x;
    tile.each([&](int64_t token, int64_t d, int64_t lanes, int64_t at) INLINE {
      const vf u = load_first(x.u.data + token * x.u.token + d, lanes);
      const vf out = load(dy + at), sum_B = load(along_B + at);
      vf du = sum_B * load(delta + at);
      if (x.skip) {
        float* sum = dskip + d - channels.start;
        store(sum, fma(out, u, load(sum)));
        du = fma(out, load_first(x.skip + d, lanes), du);
      }
      store_first(x.du + token * x.D + d, du, lanes);
      // A is scaled by log2(e) here
      store_first(x.ddelta + token * x.D + d, fma(sum_B, u, load(along_A + at) * LN_2), lanes);
      if (x.z.data) store_first(x.dz + token * x.D + d, load(dz + at) * load(y + at), lanes);
    });
  }
};

template <bool NEGATIVE>
void scan_backward(const SelectiveScan& x) {
  const Units units(x);
  const int64_t rows = tokens_of(x) * x.N, D = x.D, N = x.N;
  Scratch part_rows(units.parts > 1 ? 2 * units.parts * rows : 0);  // [parts][dB or dC][tokens, N]
  Scratch group_sums(units.groups * D * (N + 1));  // [groups][dA [D, N], dskip [D]]
  parallel_for(units.count(), x.threads, [&](int64_t i) {
    const Channels channels = units.channels(i);
    Scratch scratch(ScanBackward<NEGATIVE>(channels, nullptr).size);
    const ScanBackward<NEGATIVE> backward(channels, scratch.get());
    float* dB = units.parts > 1 ? part_rows.get() + 2 * (i % units.parts) * rows : x.dB;
    backward.run(units.begin(i), units.end(i), dB, units.parts > 1 ? dB + rows : x.dC);
    float* dA = group_sums.get() + i / units.parts * D * (N + 1);
    channels.scatter(backward.dA, dA);
    std::memcpy(dA + D * N + channels.start, backward.dskip, channels.count * 4);
  });

  sum_parts(group_sums.get(), units.groups, D * (N + 1), D * N, x.dA, x.threads);
  if (x.skip)
    sum_parts(group_sums.get() + D * N, units.groups, D * (N + 1), D, x.dskip, x.threads);
  if (units.parts > 1) {
    sum_parts(part_rows.get(), units.parts, 2 * rows, rows, x.dB, x.threads);
    sum_parts(part_rows.get() + rows, units.parts, 2 * rows, rows, x.dC, x.threads);
  }
}

void selective_scan_backward(const SelectiveScan& x) {
  x.negative ? scan_backward<true>(x) : scan_backward<false>(x);
}

}  // namespace
