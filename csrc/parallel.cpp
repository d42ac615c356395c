#include "parallel.h"

#ifndef _OPENMP
#include <atomic>
#include <thread>
#include <vector>
#endif

void run_units(int64_t count, int64_t threads, void (*unit)(void*, int64_t), void* context) {
  if (threads > count) threads = count;
  if (threads <= 1) {
    for (int64_t i = 0; i < count; ++i) unit(context, i);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(threads))
  for (int64_t i = 0; i < count; ++i) unit(context, i);
#else
  std::atomic<int64_t> next{0};
  auto work = [&] {
    for (int64_t i; (i = next++) < count;) unit(context, i);
  };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (auto& thread : others) thread.join();
#endif
}
