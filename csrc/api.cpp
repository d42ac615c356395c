// The C interface, called through ctypes, and the choice of the instruction set.
#include <cstring>

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

// How many bytes a kernel's arguments have, or how many numbers sLSTM keeps of a feature; 0 if
// there is none of that name.
EXPORT int64_t statetrack_size(const char* what) {
#define SIZE(name, Arguments) \
  if (!std::strcmp(what, #name)) return sizeof(Arguments);
  KERNELS(SIZE)
  if (!std::strcmp(what, "slstm_kept")) return SLSTM_KEPT;
  return 0;
}

#define FUNCTION(name, Arguments)                 \
  EXPORT void statetrack_##name(const void* x) {  \
    active->name(*static_cast<const Arguments*>(x)); \
  }
KERNELS(FUNCTION)

// Some of them in a row.
struct Call {
  void (*kernel)(const void*);
  const void* arguments;
};
EXPORT void statetrack_run(const Call* calls, int64_t count) {
  for (int64_t i = 0; i < count; ++i) calls[i].kernel(calls[i].arguments);
}
