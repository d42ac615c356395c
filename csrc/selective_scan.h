// What the forward and the backward pass of the selective scan share.
//
// The lanes are channels. The N states of a channel are coupled only by sums over them (y in the
// forward pass, du and ddelta in the backward pass). So a chunk of tokens is processed for GROUP states
// at a time, held in registers from token to token; the sums stay in the first-level cache.
#pragma once

#include "kernels.h"
#include "memory.h"
#include "parallel.h"

namespace {

constexpr int GROUP = LANES == 16 ? 8 : 4;
// Vectors that are read and written together. Long pieces of a row spread over more sets of a cache
// than short ones, which evict each other because rows lie a power of 2 apart.
constexpr int TILE = 128 / LANES;
constexpr int64_t MAX_GROUPS = 64;  // of sequences, each with its own sum of dA
constexpr int64_t MIN_UNITS = 16;   // of work: for few sequences the channels are split
constexpr float LN_2 = 0.693147181f;

// exp(delta A), or twice that, for x = delta A log2(e), and the transition a that follows from it.
template <bool NEGATIVE>
inline vf decay(vf x) {
  return NEGATIVE ? exp2<1>(x) : exp2(x);
}
template <bool NEGATIVE>
inline vf transition(vf decay) {
  return NEGATIVE ? decay - 1.0f : decay;
}

inline int64_t grouped(int64_t N) { return (N + GROUP - 1) / GROUP * GROUP; }

// Where a sequence lies, and the chunks into which it is cut.
struct Sequence {
  int64_t index, first, tokens, chunks, checkpoint;

  Sequence(const SelectiveScan& x, int64_t index) : index(index) {
    first = x.bounds ? x.bounds[index] : index * x.T;
    tokens = x.bounds ? x.bounds[index + 1] - first : x.T;
    chunks = (tokens + x.chunk - 1) / x.chunk;
    // packed sequences together need at most one checkpoint for each full chunk of tokens
    checkpoint = x.bounds ? first / x.chunk : index * ((x.T - 1) / x.chunk);
  }
};

inline int64_t tokens_of(const SelectiveScan& x) {
  return x.bounds ? x.bounds[x.sequences] : x.sequences * x.T;
}

// Some channels, `vectors` of LANES, and their states as they are worked on: [vectors][N][LANES],
// padded with zeros to full vectors and to a multiple of GROUP states, which stay zero.
struct Channels {
  const SelectiveScan& x;
  int64_t start, count, vectors;
  int64_t N;  // padded

  Channels(const SelectiveScan& x, int64_t begin, int64_t end)
      : x(x),
        start(begin),
        count(end - begin),
        vectors((count + LANES - 1) / LANES),
        N(grouped(x.N)) {}

  int64_t states() const { return vectors * N * LANES; }
  int64_t lanes(int64_t v) const { return at_most(LANES, count - v * LANES); }

  // [D, N] <-> [vectors][N][LANES]; null is a state of zeros
  void gather(const float* from, float scale, float* to) const {
    for (int64_t i = 0; i < states(); ++i) to[i] = 0.0f;
    for (int64_t d = 0; from && d < count; ++d)
      for (int64_t n = 0; n < x.N; ++n)
        to[(d / LANES * N + n) * LANES + d % LANES] = scale * from[(start + d) * x.N + n];
  }
  void scatter(const float* from, float* to) const {
    for (int64_t d = 0; d < count; ++d)
      for (int64_t n = 0; n < x.N; ++n)
        to[(start + d) * x.N + n] = from[(d / LANES * N + n) * LANES + d % LANES];
  }
  void gather_state(const float* states, int64_t sequence, float* to) const {
    gather(states ? states + sequence * x.D * x.N : nullptr, 1.0f, to);
  }

  // [N, D] <-> [vectors][N][LANES]
  void load_checkpoint(int64_t index, float* h) const {
    const float* from = x.checkpoints + index * x.N * x.D + start;
    for (int64_t v = 0; v < vectors; ++v)
      for (int64_t n = 0; n < x.N; ++n)
        store(h + (v * N + n) * LANES, load_first(from + n * x.D + v * LANES, lanes(v)));
  }
  void store_checkpoint(int64_t index, const float* h) const {
    float* to = x.checkpoints + index * x.N * x.D + start;
    for (int64_t v = 0; v < vectors; ++v)
      for (int64_t n = 0; n < x.N; ++n)
        store_first(to + n * x.D + v * LANES, load(h + (v * N + n) * LANES), lanes(v));
  }

  // rows of B or C -> [tokens][N]
  void copy_rows(const View& from, int64_t first, int64_t tokens, float* to) const {
    for (int64_t t = 0; t < tokens; ++t, to += N) {
      const float* row = from.data + (first + t) * from.token;
      for (int64_t n = 0; n < x.N; ++n) to[n] = row[n];
      for (int64_t n = x.N; n < N; ++n) to[n] = 0.0f;
    }
  }
};

// A chunk of tokens, and of the channels up to TILE vectors from vector `v` on.
struct Tile {
  const Channels& channels;
  int64_t first, tokens;
  int64_t v, vectors;

  Tile(const Channels& channels, int64_t first, int64_t tokens, int64_t v)
      : channels(channels), first(first), tokens(tokens), v(v),
        vectors(at_most(TILE, channels.vectors - v)) {}

  int64_t channel(int64_t i) const { return channels.start + (v + i) * LANES; }
  int64_t lanes(int64_t i) const { return channels.lanes(v + i); }
  int64_t state(int64_t i, int64_t n) const { return ((v + i) * channels.N + n) * LANES; }
  // in [TILE][chunk][LANES]
  int64_t row(int64_t i) const { return i * channels.x.chunk * LANES; }

  // f(token, channel, lanes, place in [TILE][chunk][LANES]) for each token and vector of channels.
  template <class F>
  INLINE inline void each(const F& f) const {
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < vectors; ++i) f(first + t, channel(i), lanes(i), row(i) + t * LANES);
  }

  // Vector i of the tile after this one, in its first row: the next channels of the same tokens, or
  // after the last channels the tokens `step` further on. Null if there is none.
  const float* next(const View& view, int64_t i, int64_t step) const {
    const bool same = v + vectors < channels.vectors;
    const int64_t token = same ? first : first + step, all = tokens_of(channels.x);
    if (!view.data || token < 0 || token + tokens > all) return nullptr;
    const int64_t d = same ? channel(vectors + i) : channels.start + i * LANES;
    return d < channels.start + channels.count ? view.data + token * view.token + d : nullptr;
  }
};

// Lines of the next tile, to be prefetched one by one in the loops that compute: all at once they would
// wait for memory, and hardware does not predict their stride.
struct Ahead {
  const float* line[4];
  int64_t step[4];
  int count = 0;

  void add(const float* first, int64_t token) {
    if (first) line[count] = first, step[count++] = token;
  }
  INLINE inline void fetch(int64_t t) const {
    for (int k = 0; k < count; ++k) __builtin_prefetch(line[k] + t * step[k]);
  }
};

// Consecutive pieces of scratch memory; without memory only their size is counted.
struct Pieces {
  float* memory;
  int64_t& size;

  float* operator()(int64_t count) const {
    float* piece = memory ? memory + size : nullptr;
    size += padded(count);
    return piece;
  }
};

// The units of work: a group of sequences and a part of the channels each, cut by shape alone.
struct Units {
  const SelectiveScan& x;
  int64_t group, groups;  // sequences in a group, and how many of those
  int64_t part, parts;    // channels in a part, and how many of those

  explicit Units(const SelectiveScan& x) : x(x) {
    group = (x.sequences + MAX_GROUPS - 1) / MAX_GROUPS;
    groups = (x.sequences + group - 1) / group;
    const int64_t block = 4 * LANES, blocks = (x.D + block - 1) / block;
    // each part has its own dB and dC, which together take no more memory than u
    const int64_t most = x.D / (2 * x.N) > 1 ? x.D / (2 * x.N) : 1;
    const int64_t wanted = at_most(at_most(blocks, most), (MIN_UNITS + groups - 1) / groups);
    part = (blocks + wanted - 1) / wanted * block;
    parts = (x.D + part - 1) / part;
  }

  int64_t count() const { return groups * parts; }
  int64_t begin(int64_t i) const { return i / parts * group; }
  int64_t end(int64_t i) const { return at_most(begin(i) + group, x.sequences); }
  Channels channels(int64_t i) const {
    const int64_t start = i % parts * part;
    return {x, start, at_most(start + part, x.D)};
  }
};

}  // namespace
