// All kernels for one instruction set: the build compiles this file once a level.
#include "kernels.h"

#include "pointwise_rows.h"
#include "recurrence_backward.h"
#include "recurrence_forward.h"
#include "short_conv.h"

#define NAME_(level) kernels_##level
#define NAME(level) NAME_(level)

extern const Kernels NAME(LEVEL) = {
    recurrence_forward,    recurrence_backward,    short_conv_forward, short_conv_backward,
    rms_norm_forward,      rms_norm_backward,      swiglu_forward,     swiglu_backward,
    cross_entropy_forward, cross_entropy_backward,
};
