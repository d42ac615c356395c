// All kernels for one instruction set: the build compiles this file once a level.
#include "kernels.h"

#include "recurrence_backward.h"
#include "recurrence_forward.h"
#include "selective_scan_backward.h"
#include "selective_scan_forward.h"
#include "selective_scan_step.h"

#define NAME_(level) kernels_##level
#define NAME(level) NAME_(level)

extern const Kernels NAME(LEVEL) = {recurrence_forward,      recurrence_backward,
                                    selective_scan_forward,  selective_scan_backward,
                                    selective_scan_step};
