// The C interface, called through ctypes, and the choice of the instruction set.
#include <cstring>
#include <new>

#include "kernels.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Level {
  const char* name;
  const Kernels* kernels;
  bool (*supported)();
};

const Level levels[] = {  // best first
#ifdef HAVE_X86_LEVELS
    {"avx512", &kernels_avx512,
     [] {
#ifdef EMULATE_AVX512
       return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("fma");
     }},
    {"avx2", &kernels_avx2,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
#endif
    {"baseline", &kernels_baseline, [] { return true; }},
};

const Kernels* active = &kernels_baseline;

}  // namespace

// The name of level i if this CPU can run it, "" if not, null behind the last.
EXPORT const char* statetrack_level(int64_t i) {
  if (i >= static_cast<int64_t>(sizeof levels / sizeof *levels)) return nullptr;
  return levels[i].supported() ? levels[i].name : "";
}

// Use a level from now on; 0 if this CPU cannot run it or there is none of that name.
EXPORT int64_t statetrack_use(const char* name) {
  for (const Level& level : levels)
    if (!std::strcmp(level.name, name) && level.supported()) {
      active = level.kernels;
      return 1;
    }
  return 0;
}

// The hash of the interface.h that this library was compiled with.
EXPORT const char* statetrack_interface() { return INTERFACE_HASH; }

// A kernel's result: 0, or 1 if there was no memory.
#define FUNCTION(name, Arguments)                       \
  EXPORT int64_t statetrack_##name(const void* x) {     \
    try {                                               \
      active->name(*static_cast<const Arguments*>(x));  \
    } catch (const std::bad_alloc&) {                   \
      return 1;                                         \
    }                                                   \
    return 0;                                           \
  }
KERNELS(FUNCTION)

// Several in a row, until one fails.
EXPORT int64_t statetrack_run(const Call* calls, int64_t count) {
  int64_t result = 0;
  for (int64_t i = 0; i < count && !result; ++i)
    result = reinterpret_cast<int64_t (*)(const void*)>(calls[i].kernel)(calls[i].arguments);
  return result;
}
