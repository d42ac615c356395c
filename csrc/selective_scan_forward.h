#pragma once

#include "selective_scan.h"

namespace {

// GROUP states of one vector of channels through a chunk. OUT adds C . h to y; KEEP stores what the
// backward pass reads again: h after each token and its decay, [tokens][GROUP][LANES]. Not inlined,
// so that the loop has all registers.
template <bool NEGATIVE, bool OUT, bool KEEP>
__attribute__((noinline)) void scan_group(
    int64_t tokens, int64_t N, const float* A, const float* B, const float* C, const float* delta,
    const float* write, float* y, float* h_, float* kept_h, float* kept_decay, const Ahead& ahead) {
  vf h[GROUP];
  for (int g = 0; g < GROUP; ++g) h[g] = load(h_ + g * LANES);
  for (int64_t t = 0; t < tokens; ++t, B += N, C += N) {
    const vf d = load(delta + t * LANES), w = load(write + t * LANES);
    ahead.fetch(t);
    vf sum{};
    if (OUT) sum = load(y + t * LANES);
    for (int g = 0; g < GROUP; ++g) {
      const vf e = decay<NEGATIVE>(d * load(A + g * LANES));
      h[g] = fma(transition<NEGATIVE>(e), h[g], w * B[g]);
      if (OUT) sum = fma(h[g], splat(C[g]), sum);
      if (KEEP) {
        store(kept_h + (t * GROUP + g) * LANES, h[g]);
        store(kept_decay + (t * GROUP + g) * LANES, e);
      }
    }
    if (OUT) store(y + t * LANES, sum);
  }
  for (int g = 0; g < GROUP; ++g) store(h_ + g * LANES, h[g]);
}

// Some sequences and channels.
template <bool NEGATIVE>
struct ScanForward {
  const Channels& channels;
  float *A, *h;              // scratch [vectors][N][LANES]
  float *B, *C;              // scratch [chunk][N]
  float *delta, *write, *y;  // scratch [TILE][chunk][LANES]: delta, delta u, the sum
  int64_t size = 0;

  ScanForward(const Channels& channels, float* memory) : channels(channels) {
    const Pieces take{memory, size};
    const int64_t chunk = channels.x.chunk;
    A = take(channels.states()), h = take(channels.states());
    B = take(chunk * channels.N), C = take(chunk * channels.N);
    const int64_t rows = TILE * chunk * LANES;
    delta = take(rows), write = take(rows), y = take(rows);
  }

  void run(int64_t begin, int64_t end) const {
    const SelectiveScan& x = channels.x;
    channels.gather(x.A, LOG2_E, A);
    for (int64_t i = begin; i < end; ++i) {
      const Sequence sequence(x, i);
      channels.gather_state(x.initial, i, h);
      for (int64_t c = 0; c < sequence.chunks; ++c) {
        const int64_t first = sequence.first + c * x.chunk;
        const int64_t tokens = at_most(x.chunk, sequence.tokens - c * x.chunk);
        if (c && x.checkpoints) channels.store_checkpoint(sequence.checkpoint + c - 1, h);
        channels.copy_rows(x.B, first, tokens, B);
        channels.copy_rows(x.C, first, tokens, C);
        for (int64_t v = 0; v < channels.vectors; v += TILE)
          run_tile({channels, first, tokens, v});
      }
      if (x.final) channels.scatter(h, x.final + i * x.D * x.N);
    }
  }

  void run_tile(const Tile& tile) const {
    const int64_t N = channels.N;
    const SelectiveScan& x = channels.x;
    const View rows[] = {x.u, x.delta, x.z, {x.y, x.D, 0}};
    prepare(tile);
    for (int64_t i = 0; i < tile.vectors; ++i)
      for (int64_t n = 0; n < N; n += GROUP) {
        const int64_t row = tile.row(i), state = tile.state(i, n);
        Ahead ahead;
        for (int k = 0; n == 0 && k < 4; ++k)
          ahead.add(tile.next(rows[k], i, tile.tokens), rows[k].token);
        scan_group<NEGATIVE, true, false>(tile.tokens, N, A + state, B + n, C + n, delta + row,
                                          write + row, y + row, h + state, nullptr, nullptr,
                                          ahead);
      }
    finish(tile);
  }

  void prepare(const Tile& tile) const {
    const SelectiveScan& x = channels.x;
    tile.each([&](int64_t token, int64_t d, int64_t lanes, int64_t at) INLINE {
      const vf u = load_first(x.u.data + token * x.u.token + d, lanes);
      const vf dt = load_first(x.delta.data + token * x.delta.token + d, lanes);
      store(delta + at, dt);
      store(write + at, dt * u);
      store(y + at, x.skip ? u * load_first(x.skip + d, lanes) : vf{});
    });
  }

  void finish(const Tile& tile) const {
    const SelectiveScan& x = channels.x;
    tile.each([&](int64_t token, int64_t d, int64_t lanes, int64_t at) INLINE {
      vf out = load(y + at);
      if (x.z.data) {
        const vf z = load_first(x.z.data + token * x.z.token + d, lanes);
        out *= z * sigmoid(z);
      }
      store_first(x.y + token * x.D + d, out, lanes);
    });
  }
};

template <bool NEGATIVE>
void scan_forward(const SelectiveScan& x) {
  const Units units(x);
  parallel_for(units.count(), x.threads, [&](int64_t i) {
    const Channels channels = units.channels(i);
    Scratch scratch(ScanForward<NEGATIVE>(channels, nullptr).size);
    ScanForward<NEGATIVE>(channels, scratch.get()).run(units.begin(i), units.end(i));
  });
}

void selective_scan_forward(const SelectiveScan& x) {
  x.negative ? scan_forward<true>(x) : scan_forward<false>(x);
}

}  // namespace
