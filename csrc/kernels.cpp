// All kernels for one instruction set: the build compiles this file once a level.
#include "kernels.h"

#include "decode.h"
#include "pointwise_rows.h"
#include "recurrence_backward.h"
#include "recurrence_forward.h"
#include "recurrence_step.h"
#include "selective_scan_backward.h"
#include "selective_scan_step.h"
#include "short_conv.h"
#include "slstm_backward.h"

#define NAME_(level) kernels_##level
#define NAME(level) NAME_(level)

#define ENTRY(name, Arguments) name,
extern const Kernels NAME(LEVEL) = {KERNELS(ENTRY)};
