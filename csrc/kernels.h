// What the kernels take and the table of them that each instruction set fills.
// Every field is 8 bytes wide, in the order of the ctypes structures in statetrack/ops/native.py.
#pragma once

#include <cstdint>

// Rows of floats: element i of token t and head h is data[t * token + h * head + i].
struct View {
  const float* data;
  int64_t token, head;
};

// S_t = a_t S_{t-1} + k_t u_t^T, o_t = scale S_t^T q_t, with u_t = v_t (linear attention) or
// u_t = beta_t (v_t - a_t S_{t-1}^T k_t) (delta rule). Tokens of all sequences lie one after the
// other; a token has `factors` keys, values and betas, each a step, of which the first is preceded
// by the gate and the last followed by the output.
struct Recurrence {
  View q, k, v;
  View beta;  // data null: linear attention
  View gate;  // data null: no gate
  int64_t gate_channels;  // 1, or K for a gate on each key channel
  int64_t log_gate;       // dgate is that of log a instead of a
  const float* initial;   // [N, H, K, V] or null
  float* o;               // [tokens, H, V]
  float* error;           // [steps, H, V]: v_t - a_t S_{t-1}^T k_t of the delta rule; null: not kept
  float* final;           // [N, H, K, V]
  const float* d_o;       // [tokens, H, V]; from here on for the backward pass alone
  const float* d_final;   // [N, H, K, V] or null
  float *dq, *dk, *dv;    // like q, k, v, contiguous
  float* dbeta;           // [steps, H]
  float* dgate;           // [tokens, H, gate_channels]
  float* d_initial;       // [N, H, K, V]
  const int64_t* bounds;  // [N + 1] first token of each sequence; null: N sequences of T tokens
  int64_t N, T, H, K, V, factors;
  double scale;
  int64_t threads;
};

// One token of the same recurrence, for decoding; all tensors contiguous.
struct RecurrenceStep {
  const float *q, *k, *v;  // [B, H, K], [B, factors, H, K], [B, factors, H, V]
  const float* beta;       // [B, factors, H] or null
  const float* gate;       // [B, H, gate_channels] or null
  float* state;            // [B, H, K, V], updated in place
  float* o;                // [B, H, V]
  int64_t B, H, K, V, factors, gate_channels;
  double scale;
  int64_t threads;
};

struct Kernels {
  void (*recurrence_forward)(const Recurrence&);
  void (*recurrence_backward)(const Recurrence&);
  void (*recurrence_step)(const RecurrenceStep&);
};

extern const Kernels kernels_baseline;
#ifdef HAVE_X86_LEVELS
extern const Kernels kernels_avx2, kernels_avx512;
#endif
