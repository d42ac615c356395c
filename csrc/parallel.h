// Loops over independent units of work, and scratch memory.
//
// kernels.cpp is compiled once for each instruction set, so nothing that it uses may be a template
// of the standard library: the linker keeps one copy of it, perhaps one that this CPU cannot run.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

// In parallel.cpp: unit(context, i) for i in [0, count), on up to `threads` threads. If one throws
// std::bad_alloc, so does this, and some of the others may not run.
void run_units(int64_t count, int64_t threads, void (*unit)(void*, int64_t), void* context);

namespace {

// f(i) for i in [0, count). Units are cut by shape alone and share no output, so the same inputs
// give the same bits whatever the number of threads.
template <class F>
void parallel_for(int64_t count, int64_t threads, F f) {
  run_units(count, threads, [](void* context, int64_t i) { (*static_cast<F*>(context))(i); }, &f);
}

// f(i) for i in [0, count), each of `each` operations, on up to `threads` threads. Little work runs on
// one thread, because waking a second takes longer.
template <class F>
inline void share(int64_t count, int64_t each, int64_t threads, const F& f) {
  parallel_for(count, count * each < (int64_t(1) << 18) ? 1 : threads, f);
}

// Floats on a 64-byte boundary, not initialised.
class Scratch {
 public:
  explicit Scratch(int64_t count) : block_(std::malloc(static_cast<size_t>(count) * 4 + 64)) {
    if (!block_) throw std::bad_alloc();
    data_ = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(block_) + 63) & ~uintptr_t(63));
  }
  ~Scratch() { std::free(block_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* get() const { return data_; }

 private:
  void* block_;
  float* data_;
};

// to[i] = the sum of parts[p * stride + i] over p < count: always in the same order, in double.
inline void sum_parts(const float* parts, int64_t count, int64_t stride, int64_t size, float* to,
                      int64_t threads) {
  constexpr int64_t PIECE = 2048;
  parallel_for((size + PIECE - 1) / PIECE, threads, [&](int64_t piece) {
    const int64_t first = piece * PIECE, left = size - first, n = left < PIECE ? left : PIECE;
    double total[PIECE] = {};
    for (int64_t p = 0; p < count; ++p)
      for (int64_t i = 0; i < n; ++i) total[i] += parts[p * stride + first + i];
    for (int64_t i = 0; i < n; ++i) to[first + i] = static_cast<float>(total[i]);
  });
}

}  // namespace
