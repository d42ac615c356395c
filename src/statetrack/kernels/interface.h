// The C interface of the kernels: the one declaration of their arguments. The C++ in csrc/ includes
// this file, and interface.py reads it; the library holds its hash, which is compared when it is
// loaded. interface.py knows only what is used here: structures of int64_t, double, pointers and
// structures, and constants.
#pragma once

#include <stdint.h>

// Rows of floats: element i of token t and head h is data[t * token + h * head + i].
typedef struct {
  const float* data;
  int64_t token, head;
} View;

// S_t = a_t S_{t-1} + k_t u_t^T, o_t = scale S_t^T q_t, with u_t = v_t (linear attention) or
// u_t = beta_t (v_t - a_t S_{t-1}^T k_t) (delta rule). Tokens of all sequences lie one after the
// other; a token has `factors` keys, values and betas, each a step, of which the first is preceded
// by the gate and the last followed by the output.
typedef struct {
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
} Recurrence;

// One token of the same recurrence, for decoding; all tensors contiguous.
typedef struct {
  const float *q, *k;   // [B, key_heads, K], [B, factors, key_heads, K]
  const float* v;       // [B, factors, H, V]
  const float* beta;    // [B, factors, H] or null
  const float* gate;    // [B, H, gate_channels] or null
  const float* before;  // [B, H, K, V]
  float* state;         // [B, H, K, V], the next one; may be `before`
  float* o;             // [B, H, V]
  int64_t B, H, K, V, factors, gate_channels;
  int64_t key_heads;  // each serves H / key_heads heads, which lie one after the other
  double scale;
  int64_t threads;
} RecurrenceStep;

// h_t = a_t h_{t-1} + delta_t B_t u_t, y_t = (C_t . h_t + skip u_t) silu(z_t), of D channels with N
// states each; a_t = exp(delta_t A), or 2 exp(delta_t A) - 1 if `negative`. Tokens of all
// sequences lie one after the other; of the views only the stride of the tokens counts.
typedef struct {
  View u, delta;         // [tokens, D]
  View B, C;             // [tokens, N]
  View z;                // [tokens, D]; data null: no gate
  const float* A;        // [D, N]
  const float* skip;     // [D] or null
  const float* initial;  // [sequences, D, N] or null
  float* y;              // [tokens, D]
  float* final;          // [sequences, D, N] or null
  float* checkpoints;    // [*, N, D]: the states from which all chunks but the first of each
                         // sequence begin; null: not kept
  const float* dy;       // [tokens, D]; from here on for the backward pass alone
  const float* d_final;  // [sequences, D, N] or null
  float *du, *ddelta, *dA, *dB, *dC, *dskip, *dz;  // like u, delta, ..., contiguous
  float* d_initial;       // [sequences, D, N] or null
  const int64_t* bounds;  // [sequences + 1] first token of each; null: all have T tokens
  int64_t sequences, T, D, N;
  int64_t chunk;  // tokens
  int64_t negative;
  int64_t threads;
} SelectiveScan;

// One token of the scan for each of `rows` states. All contiguous.
typedef struct {
  const float* before;             // [rows, D, N]
  float* state;                    // [rows, D, N], the next one; may be `before`
  const float *u, *delta;          // [rows, D]
  const float* A;                  // [D, N], or log -A
  const float *B, *C;              // [rows, N]
  const float* skip;               // [D] or null
  const float* z;                  // [rows, D] or null
  float* y;                        // [rows, D]
  int64_t rows, D, N;
  int64_t negative, log_rates;
  int64_t threads;
} SelectiveScanStep;

// Consecutive channels of a convolution's output, as a tensor of their own.
typedef struct {
  float* y;         // [B, T, size]
  const float* dy;  // like y
  int64_t size;
  int64_t head;  // each `head` channels are normalised to length 1; 0: none are
} Part;

#define MAX_WIDTH 8  // of a convolution
// z_t = bias + sum_w weight[:, w] x_{t - W + 1 + w}, where `window` comes before x; then SiLU; then
// normalisation in some parts. The window that comes out is the last W - 1 inputs that exist.
typedef struct {
  const float* x;  // channel d of token t in row b is x[b * row + t * token + d]
  int64_t row, token;
  const float* weight;     // [D, W]
  const float* bias;       // [D] or null
  const float* window;     // [B, W - 1, D] or null: zeros
  const int64_t* lengths;  // [B] how many tokens of a row exist; null: all T
  const Part* parts;       // of all D channels
  float* final;            // [B, W - 1, D]
  const float* d_final;    // like final, or null; from here on for the backward pass alone
  float* dx;               // [B, T, D]
  float* dweight;          // [D, W]
  float* dbias;            // [D]
  float* d_window;         // [B, W - 1, D]
  int64_t B, T, D, W, num_parts, silu;
  double eps;
  int64_t threads;
} ShortConv;

// The recurrence of sLSTM (csrc/slstm.h), whose state is h, c, n and m.
#define SLSTM_KEPT 7  // per feature and token: i', f', tanh(z), sigmoid(o), c, n, sigmoid(-f)
typedef struct {
  View x;                  // [tokens, H, 4 D]: what i, f, z and o get from outside
  const float* R;          // [H, 4, D, D]: what they get from h
  const float* initial;    // [4, B, H, D]
  const int64_t* lengths;  // [B] how many tokens of a row exist; null: all T
  float* out;              // [B, T, H, D]
  float* final;            // [4, B, H, D]
  float* kept;             // B T H times [SLSTM_KEPT, D], in an order of its own; null: not kept
  const float* d_out;      // [B, T, H, D]; from here on for the backward pass alone
  const float* d_final;    // [4, B, H, D] or null
  float* dx;               // [H, B, T, 4, D]
  float* dR;               // like R
  float* d_initial;        // [4, B, H, D]
  int64_t B, T, H, D, threads;
} SLSTM;

// y = x / sqrt(mean(x^2) + eps) * weight
typedef struct {
  const float *x, *weight;  // [rows, size], [size]
  float* y;                 // [rows, size]
  const float* dy;          // like y; from here on for the backward pass alone
  float *dx, *dweight;
  int64_t rows, size;
  double eps;
  int64_t threads;
} RMSNorm;

// y = silu(gate) * up for rows [gate, up]
typedef struct {
  const float* x;   // [rows, 2 size]
  float* y;         // [rows, size]
  const float* dy;  // like y; from here on for the backward pass alone
  float* dx;
  int64_t rows, size, threads;
} SwiGLU;

// y = log(1 + e^x)
typedef struct {
  const float* x;   // [count]
  float* y;         // [count]
  const float* dy;  // [count]; from here on for the backward pass alone
  float* dx;
  int64_t count, threads;
} Softplus;

// loss = mean of -log softmax(logits)[target] over the rows whose target is not `ignore`
typedef struct {
  const float* logits;     // [rows, classes]
  const int64_t* targets;  // [rows]
  float *loss, *count;     // one number each; count: how many rows the mean is over
  const float* d_loss;     // one number; from here on for the backward pass alone
  float* d_logits;
  int64_t rows, classes, ignore, threads;
} CrossEntropy;

// What a decoding step needs around the recurrences (csrc/decode.h): few rows, all contiguous.

// y = W x + bias + add
typedef struct {
  const float *x, *weight;  // [rows, in], [out, in]
  const float* bias;        // [out] or null
  const float* add;         // [rows, out] or null
  float* y;                 // [rows, out]
  int64_t weight_row;       // from one row of the weight to the next
  int64_t rows, in, out, threads;
} Linear;

// y = W x, block by block
typedef struct {
  const float *x, *weight;  // [rows, blocks, size], [blocks, size, size]
  float* y;                 // like x
  int64_t rows, blocks, size, threads;
} BlockLinear;

// y = low + (high - low) s, s = sigmoid(x)^power, or past its ends by `stretch` and clipped
typedef struct {
  const float* x;
  float* y;
  int64_t count;
  double low, high, power, stretch;
} SigmoidGate;

// delta = softplus(x + bias), within limits; gate = exp(-exp(rate) delta), or 2 that - 1
typedef struct {
  const float *x, *bias;  // [rows, size], [size] or null
  const float* rate;      // [size], or null if there is no gate
  float *delta, *gate;    // [rows, size]
  int64_t rows, size, negative, threads;
  double least, most;
} StepSizes;

// y = scale x + add, the scale one for each head
typedef struct {
  const float* x;      // [rows, heads, size]
  const float* scale;  // [rows, heads], or [heads] for every row
  const float* add;    // like x, or null
  float* y;            // like x
  int64_t rows, heads, size, scale_per_row, threads;
} ScaleHeads;

// y = norm(x) weight silu(gate), or norm(x silu(gate)) weight; norm as in RMSNorm
typedef struct {
  const float *x, *gate, *weight;  // [rows, size], like x, [size]
  float* y;                        // like x
  int64_t rows, size, gate_first, threads;
  double eps;
} GatedNorm;

// What mLSTM writes into its state: gates relative to the running maximum m, k times the input gate
// and v with a 1 behind it; `negative`: the forget gate is in [-1, 1].
typedef struct {
  const float* gates;        // [rows, 2, heads]: log i, and f before its sigmoid
  const float *k, *v, *m;    // [rows, heads, size], like k, [rows, heads]
  float *m_next, *gate;      // [rows, heads]
  float *floor;              // [rows, heads]: the least that the normaliser counts for
  float *k_written, *v_one;  // like k, [rows, heads, size + 1]
  int64_t rows, heads, size, negative, threads;
  double least_floor;
} MLSTMWrite;

// What comes out of it: y = (norm(h) weight + skip c) silu(z), h = o / max(|normaliser|, floor), with
// the layer norm of each head.
typedef struct {
  const float *o, *floor;           // [rows, heads, size + 1], [rows, heads]
  const float *weight, *skip;       // [heads, size]
  const float *c, *z;               // [rows, heads, size]
  float* y;                         // like c
  int64_t rows, heads, size, threads;
  double eps;
} MLSTMRead;

// A kernel's address and its arguments, for running several in a row.
typedef struct {
  void* kernel;
  const void* arguments;
} Call;

// Every kernel and the structure that it takes.
#define KERNELS(X)                          \
  X(recurrence_forward, Recurrence)         \
  X(recurrence_backward, Recurrence)        \
  X(recurrence_step, RecurrenceStep)        \
  X(selective_scan_forward, SelectiveScan)  \
  X(selective_scan_backward, SelectiveScan) \
  X(selective_scan_step, SelectiveScanStep) \
  X(short_conv_forward, ShortConv)          \
  X(short_conv_backward, ShortConv)         \
  X(slstm_forward, SLSTM)                   \
  X(slstm_backward, SLSTM)                  \
  X(rms_norm_forward, RMSNorm)              \
  X(rms_norm_backward, RMSNorm)             \
  X(swiglu_forward, SwiGLU)                 \
  X(swiglu_backward, SwiGLU)                \
  X(softplus_forward, Softplus)             \
  X(softplus_backward, Softplus)            \
  X(cross_entropy_forward, CrossEntropy)    \
  X(cross_entropy_backward, CrossEntropy)   \
  X(linear, Linear)                         \
  X(block_linear, BlockLinear)              \
  X(mlstm_write, MLSTMWrite)                \
  X(mlstm_read, MLSTMRead)                  \
  X(sigmoid_gate, SigmoidGate)              \
  X(step_sizes, StepSizes)                  \
  X(scale_heads, ScaleHeads)                \
  X(gated_norm, GatedNorm)
