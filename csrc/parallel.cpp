#include "parallel.h"

#include <atomic>
#ifndef _OPENMP
#include <system_error>
#include <thread>
#include <vector>
#endif

void run_units(int64_t count, int64_t threads, void (*unit)(void*, int64_t), void* context) {
  if (threads > count) threads = count;
  if (threads <= 1) {
    for (int64_t i = 0; i < count; ++i) unit(context, i);
    return;
  }
  std::atomic<bool> failed{false};  // an exception must not leave its thread
  auto guarded = [&](int64_t i) {
    try {
      if (!failed) unit(context, i);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
  };
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(threads))
  for (int64_t i = 0; i < count; ++i) guarded(i);
#else
  std::atomic<int64_t> next{0};
  auto work = [&] {
    for (int64_t i; (i = next++) < count;) guarded(i);
  };
  std::vector<std::thread> others;
  try {
    others.reserve(static_cast<size_t>(threads - 1));
    for (int64_t i = 1; i < threads; ++i) others.emplace_back(work);
  } catch (const std::exception&) {  // no memory or no more threads: those that run share the work
  }
  work();
  for (auto& thread : others) thread.join();
#endif
  if (failed) throw std::bad_alloc();
}
