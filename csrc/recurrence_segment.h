// The part of a sequence that the two sweeps of the backward pass work on: see recurrence_backward.h.
#pragma once

#include "recurrence.h"

namespace {

// A segment of one sequence and head.
struct Segment {
  const Row& row;
  int64_t start, end;   // tokens
  float* terms;   // [tokens][gate_channels]: what each token adds to the gates' running sums
  float* noise;   // [tokens]: how large the parts of that are; for one gate a token
  float* own;     // [tokens]: scale <do, u>, by which a token's output reads what it has written
  const int64_t* direct;   // [tokens + 1]: where a token's gates whose gradients are formed directly
                           // begin in what follows; null if there are no gates
  const int64_t* channel;  // of each such gate
  float* dX;               // [such gates][rows of dX that a gate stands for][padded V]

  bool has_direct(int64_t t) const { return direct && direct[t - start] < direct[t - start + 1]; }

  // f(channel, dX) for each such gate of token t.
  template <class F>
  void each_direct(int64_t t, const F& f) const {
    if (!direct) return;
    const int64_t size = (row.x.gate_channels > 1 ? 1 : row.x.K) * padded(row.x.V);
    for (int64_t i = direct[t - start]; i < direct[t - start + 1]; ++i) f(channel[i], dX + i * size);
  }
};

}  // namespace
