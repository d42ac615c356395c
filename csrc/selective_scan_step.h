// One token of the selective scan. The states keep their layout [D, N], so the lanes are states.
#pragma once

#include "pointwise.h"
#include "selective_scan.h"

namespace {

template <bool NEGATIVE, bool LOG_RATES>
void step_row(const SelectiveScanStep& x, int64_t row) {
  const float *B = x.B + row * x.N, *C = x.C + row * x.N;
  for (int64_t first = 0; first < x.D; first += LANES) {
    const int64_t count = at_most(LANES, x.D - first), start = row * x.D + first;
    vf terms[LANES] = {};
    for (int64_t i = 0; i < count; ++i) {
      const float delta = x.delta[start + i], write = delta * x.u[start + i];
      const vf exponent = splat(delta * LOG2_E);
      const float* before = x.before + (start + i) * x.N;
      float* h = x.state + (start + i) * x.N;
      const float* A = x.A + (first + i) * x.N;
      for (int64_t n = 0; n < x.N; n += LANES) {
        const int64_t lanes = x.N - n;
        vf rate = load_first(A + n, lanes);
        if (LOG_RATES) rate = -exp(rate);
        const vf a = transition<NEGATIVE>(decay<NEGATIVE>(exponent * rate));
        const vf next = fma(a, load_first(before + n, lanes), write * load_first(B + n, lanes));
        store_first(h + n, next, lanes);
        terms[i] = fma(next, load_first(C + n, lanes), terms[i]);
      }
    }
    vf y = sums(terms);
    if (x.skip)
      y = fma(load_first(x.skip + first, count), load_first(x.u + start, count), y);
    if (x.z) {
      const vf z = load_first(x.z + start, count);
      y *= z * sigmoid(z);
    }
    store_first(x.y + start, y, count);
  }
}

void selective_scan_step(const SelectiveScanStep& x) {
  auto run = x.negative ? (x.log_rates ? step_row<true, true> : step_row<true, false>)
                        : (x.log_rates ? step_row<false, true> : step_row<false, false>);
  share(x.rows, 16 * x.D * x.N, x.threads, [&](int64_t row) { run(x, row); });
}

}  // namespace
