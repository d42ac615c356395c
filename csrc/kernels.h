// The table of kernels that each instruction set fills.
#pragma once

#include "interface.h"

struct Kernels {
#define FIELD(name, Arguments) void (*name)(const Arguments&);
  KERNELS(FIELD)
#undef FIELD
};

extern const Kernels kernels_baseline;
#ifdef HAVE_X86_LEVELS
extern const Kernels kernels_avx2, kernels_avx512;
#endif
