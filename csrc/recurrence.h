// What the forward and the backward pass of the recurrence share.
//
// Where the order of steps allows it, two steps go over the state at once: a load and a store of the
// state then serve twice as much arithmetic. The delta rule reads the state before it writes, so the
// second step reads the state before the first step's write and corrects what it read: for
// S' = S + k u^T, S'^T k' = S^T k' + <k, k'> u.
//
// Gates are not multiplied into the state. The state is kept as c S' with a running product c of
// gates (one number, or one for each key channel), so that a step costs no more than without a
// gate; when c gets small or large, c is multiplied into S' and starts again from 1. That holds for
// gates that are 0 or negative too, and is exact for gates 1, -1 and powers of 2.
#pragma once

#include <new>

#include "kernels.h"
#include "memory.h"
#include "parallel.h"

namespace {

constexpr int AHEAD = 4;  // steps to prefetch ahead: hardware does not predict the stride of heads

// Products of gates outside [1 / FAR, FAR] are multiplied into the state.
constexpr float FAR = 0x1p56f;
inline bool out_of_range(float c) {
  float size = c < 0 ? -c : c;
  return !(size > 1 / FAR && size < FAR);
}

inline bool any(vi mask) {
  int64_t x[LANES / 2];
  std::memcpy(x, &mask, sizeof mask);
  int64_t all = 0;
  for (int i = 0; i < LANES / 2; ++i) all |= x[i];
  return all;
}

inline vi out_of_range(vf c) {
  const vf square = c * c;
  return ~((square > splat(1 / (FAR * FAR))) & (square < splat(FAR * FAR)));
}

// c *= a for n channels, c padded with ones; whether some product is out of range now.
inline bool multiply_gates(float* c, const float* a, int64_t n) {
  vi bad{};
  for (int64_t j = 0; j < n; j += LANES) {
    vf product = load(c + j) * (n - j >= LANES ? load(a + j) : load_first(a + j, n - j));
    if (n - j < LANES)
      for (int64_t i = n - j; i < LANES; ++i) product[i] = 1.0f;
    store(c + j, product);
    bad |= out_of_range(product);
  }
  return any(bad);
}

// to = from * c or from / c, for n channels; `to` is padded.
inline void times(float* to, const float* from, const float* c, int64_t n) {
  for (int64_t j = 0; j < n; j += LANES) store(to + j, load_first(from + j, n - j) * load(c + j));
}
inline void over(float* to, const float* from, const float* c, int64_t n) {
  for (int64_t j = 0; j < n; j += LANES) store(to + j, load_first(from + j, n - j) / load(c + j));
}

constexpr int MOST = 8;  // vectors in a block

// Columns of a state that are processed together: they share the loads of the inputs, and the
// arithmetic of one part of them hides the latency of another. In memory a part is [rows][its vectors],
// with as many vectors as fit in registers; the parts follow each other.
// N, if not 0, is the number of vectors, all of them full: then loops over them are unrolled.
template <int PART, int N>
struct BlockOf {
  static constexpr int part = PART;
  int64_t rows, start;  // of the columns
  int vectors_;
  int64_t last_;

  int vectors() const { return N ? N : vectors_; }
  int64_t last() const { return N ? LANES : last_; }  // lanes of the last vector that exist
  int64_t count() const { return (vectors() - 1) * LANES + last(); }
  int64_t size() const { return rows * vectors() * LANES; }
  int64_t lanes(int i) const { return i + 1 < vectors() ? LANES : last(); }
  int width(int first) const { return vectors() - first < PART ? vectors() - first : PART; }
  int64_t at(int64_t row, int vector) const {
    const int first = vector / PART * PART;
    return (first * rows + row * width(first) + vector - first) * LANES;
  }
  int64_t element(int64_t row, int64_t column) const {
    return at(row, static_cast<int>(column / LANES)) + column % LANES;
  }

  void load_row(vf* x, const float* p) const {
    for (int i = 0; i < vectors() - 1; ++i) x[i] = load(p + i * LANES);
    x[vectors() - 1] = load_first(p + (vectors() - 1) * LANES, last());
  }
  void store_row(float* p, const vf* x) const {
    for (int i = 0; i < vectors() - 1; ++i) store(p + i * LANES, x[i]);
    store_first(p + (vectors() - 1) * LANES, x[vectors() - 1], last());
  }
};

// Two steps at once keep six vectors for each column in registers, one step four.
constexpr int PAIR_PART = LANES == 16 ? 4 : 2, STEP_PART = 4;

// How the columns of a state with `rows` rows are cut into blocks that fit the first-level cache.
template <int PART>
struct Blocks {
  using Block = BlockOf<PART, 0>;
  int64_t rows, columns;
  int most;

  Blocks(int64_t rows, int64_t columns) : rows(rows), columns(columns), most(MOST) {
    while (most > PART && rows * most * LANES * 4 > 16384) most /= 2;
  }
  int64_t count() const { return (columns + most * LANES - 1) / (most * LANES); }
  Block operator[](int64_t i) const {
    const int64_t start = i * most * LANES;
    const int64_t left = columns - start < most * LANES ? columns - start : most * LANES;
    const int vectors = static_cast<int>((left + LANES - 1) / LANES);
    return {rows, start, vectors, left - (vectors - 1) * LANES};
  }
};

// f(block), with the number of vectors as a constant for the usual sizes of heads.
template <int PART, class F>
inline void with_constants(const BlockOf<PART, 0>& b, const F& f) {
  if (b.last_ == LANES && b.vectors_ == 8)
    f(BlockOf<PART, 8>{b.rows, b.start, 8, LANES});
  else if (b.last_ == LANES && b.vectors_ == 4)
    f(BlockOf<PART, 4>{b.rows, b.start, 4, LANES});
  else
    f(b);
}

// One sequence and head.
struct Row {
  const Recurrence& x;
  int64_t sequence, head, first, tokens, steps;

  Row(const Recurrence& x, int64_t sequence, int64_t head) : x(x), sequence(sequence), head(head) {
    first = x.bounds ? x.bounds[sequence] : sequence * x.T;
    tokens = x.bounds ? x.bounds[sequence + 1] - first : x.T;
    steps = tokens * x.factors;
  }

  const float* at(const View& view, int64_t start, int64_t i) const {
    return view.data + (start + i) * view.token + head * view.head;
  }
  const float* q(int64_t t) const { return at(x.q, first, t); }
  const float* k(int64_t s) const { return at(x.k, first * x.factors, s); }
  const float* v(int64_t s) const { return at(x.v, first * x.factors, s); }
  float beta(int64_t s) const { return *at(x.beta, first * x.factors, s); }
  const float* gate(int64_t t) const { return at(x.gate, first, t); }

  int64_t token(int64_t t) const { return (first + t) * x.H + head; }  // in contiguous tensors
  int64_t step(int64_t s) const { return (first * x.factors + s) * x.H + head; }
  int64_t state() const { return (sequence * x.H + head) * x.K * x.V; }
};

// f.template run<WIDTH>() for the width of a part.
template <class F>
inline void with_width(int width, const F& f) {
  switch (width) {
    case 1: return f.template run<1>();
    case 2: return f.template run<2>();
    case 3: return f.template run<3>();
    default: return f.template run<4>();
  }
}

// Heads of one sequence that are processed together, since their rows lie side by side in memory. If
// all their states fit the first-level cache, they take turns at every step, so that one computes while
// another waits for the result of its last step. Otherwise each head is processed by itself. In long
// sequences, whose memory exceeds what the TLB covers, heads then take turns of `turn` steps, so that
// all of them use the same pages.
constexpr int MOST_HEADS = 4;

struct HeadGroups {
  int64_t heads, together, groups;
  int64_t turn = 1;  // how often a head advances in its turn

  HeadGroups(const Recurrence& x, int64_t state) : heads(x.H), together(MOST_HEADS) {
    // at least a few units of work, for threads to share
    while (together > 1 && (together > heads || x.N * count(together) < 4)) together /= 2;
    if (together * state * 4 > 16384) {
      if (x.T > 8192)
        turn = 32;
      else
        together = 1;
    }
    groups = count(together);
  }
  int64_t count(int64_t together) const { return (heads + together - 1) / together; }
};

// One object for each head of a group.
template <class T>
struct PerHead {
  alignas(64) char memory[MOST_HEADS][sizeof(T)];
  T* items[MOST_HEADS];
  int count = 0;

  PerHead() {}
  ~PerHead() {
    while (count) items[--count]->~T();
  }
  PerHead(const PerHead&) = delete;
  PerHead& operator=(const PerHead&) = delete;

  template <class... Arguments>
  void add(const Arguments&... arguments) {
    items[count] = new (memory[count]) T(arguments...);
    ++count;
  }

  // Let each advance in turn until all are done, then finish all.
  void run(int64_t turn) {
    for (bool going = true; going;) {
      going = false;
      for (int i = 0; i < count; ++i) {
        int64_t left = turn;
        while (!items[i]->done()) {
          items[i]->advance(), going = true;
          if (--left == 0) break;
        }
      }
    }
    for (int i = 0; i < count; ++i) items[i]->finish();
  }
};

// f(head, i) for each head of group `index` and its place i in the group; the last may be smaller.
template <class F>
inline void each_head(const HeadGroups& all, int64_t index, const F& f) {
  int64_t head = index * all.together;
  for (int i = 0; head < all.heads && i < all.together; ++head, ++i) f(head, i);
}

inline float dot(const float* a, const float* b, int64_t n) {
  vf total{};
  int64_t j = 0;
  for (; j + LANES <= n; j += LANES) total = fma(load(a + j), load(b + j), total);
  if (j < n) total = fma(load_first(a + j, n - j), load_first(b + j, n - j), total);
  return sum(total);
}

// Run all units of work; they share no output.
template <class Units>
void run_all(const Recurrence& x) {
  const Units units{x};
  parallel_for(units.count(), x.threads, [&](int64_t i) { units(i); });
}

}  // namespace
