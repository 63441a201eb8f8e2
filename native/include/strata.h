/* strata.h: the whole public ABI of libstrata, and its manual.
 *
 * Roles.      Python decides, this library computes. Python binds a model file, plans every buffer and every op, and hands
 *             over flat tables (strata_model_desc). The library validates the tables again, loads the weights into its
 *             arena, and walks the ops once per step. It never knows a model's name.
 * Threads.    strata_model_* and strata_engine_open/close: one caller at a time per object. strata_model_progress and
 *             strata_model_cancel: any thread while strata_model_load runs. strata_engine_submit, poll, abort, stats, error:
 *             any thread. Everything else is free of state. Each call is made without holding locks of the caller's.
 * Lifetimes.  A model outlives its engines. Arrays inside strata_model_desc are borrowed during strata_model_open only.
 *             Arrays inside strata_step are borrowed from submit until the step's completion has been polled; after
 *             STRATA_E_INTERNAL until strata_engine_close, because a lost worker may come back.
 * Errors.     Every function returns a status: 0 or a negative STRATA_E_*. strata_last_error() gives the text of the
 *             calling thread's last failed call. A failed step has its status in the completion and its text in
 *             strata_engine_error(ticket). The library never exits, prints, throws or aborts across this border.
 * Structs.    `struct_size` first, set by the caller with sizeof; a wrong size is refused. Reserved fields are zero.
 * Numbers.    Offsets and sizes in bytes as int64_t unless the name says otherwise; "floats" means elements of 4 bytes.
 *             Matrices have n_rows outputs of n_cols inputs: y = W x. Types are GGML type numbers.
 */
#ifndef STRATA_H
#define STRATA_H
#include <stdint.h>

#if defined(__GNUC__)
#define STRATA_API __attribute__((visibility("default")))
#else
#define STRATA_API
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
/* cffi: begin (plain C declarations only; tools/gen_ffi.py reads this region) */

#define STRATA_ABI_VERSION 1

/* status */
#define STRATA_OK 0
#define STRATA_E_ARGUMENT -1    /* a caller's argument or table is wrong; the text names the field and the value */
#define STRATA_E_MEMORY -2      /* host memory could not be had */
#define STRATA_E_IO -3          /* a file could not be opened or read, or is shorter than its directory says */
#define STRATA_E_CANCELLED -4   /* strata_model_cancel or strata_engine_abort was called */
#define STRATA_E_DEADLINE -5    /* a bounded wait ran out; the text names layer, op and step */
#define STRATA_E_NUMERIC -6     /* NaN reached the logits; in poison mode the text names the op that wrote it first */
#define STRATA_E_STATE -7       /* the call does not fit the object's state (not loaded, closed, dead) */
#define STRATA_E_UNSUPPORTED -8 /* a valid request that this build or machine cannot serve */
#define STRATA_E_DEVICE -9      /* the accelerator failed; the engine is dead */
#define STRATA_E_DEVICE_MEMORY -10
#define STRATA_E_BUSY -11     /* the submit queue is full */
#define STRATA_E_INTERNAL -12 /* a worker died or an invariant broke; the engine is dead */

/* ---- plan tables ---------------------------------------------------------------------------------------------- */

/* Where a tensor's bytes go. MATRIX: n_mats matrices one after the other, each in the packed layout of its type.
 * VECTOR: float32, converted from F32, F16 or BF16. EXPERT_MATRIX, EXPERT_VECTOR: member of an expert set; matrix or
 * vector m of expert m lies at arena_offset + m * mat_stride_bytes inside the expert's slot. */
#define STRATA_ROLE_MATRIX 0
#define STRATA_ROLE_VECTOR 1
#define STRATA_ROLE_EXPERT_MATRIX 2
#define STRATA_ROLE_EXPERT_VECTOR 3

typedef struct strata_tensor {
  int32_t type;   /* GGML type number of the file's bytes */
  int32_t role;   /* STRATA_ROLE_* */
  int64_t n_cols; /* ne[0]; a VECTOR's length */
  int64_t n_rows; /* rows of one matrix; 1 for a VECTOR */
  int64_t n_mats; /* ne[2]: heads or experts; 1 otherwise */
  int32_t shard;  /* index into strata_model_desc.paths */
  int32_t source_first; /* >= 0: matrix m comes from sources[source_first + m] instead (one file tensor per expert); else -1 */
  int64_t file_offset;       /* absolute offset of matrix 0, row 0 (of the wanted rows, where a fused tensor is split) */
  int64_t file_stride_bytes; /* bytes in the file between matrices */
  int64_t arena_offset;      /* bytes from the arena's start, a multiple of 64 */
  int64_t mat_stride_bytes;  /* bytes in the arena between matrices, a multiple of 64 (vectors: of 4) */
} strata_tensor;

typedef struct strata_source {
  int32_t shard;
  int32_t reserved;
  int64_t file_offset;
} strata_source;

/* One activation buffer: rows of `width` floats, `row_stride` floats apart, from arena offset `offset`. A view is a
 * buffer whose bytes lie inside another one's. Row counts: TOKENS = one row per token of the step, OUTPUTS = one row
 * per row of output_row. A selection buffer (ROUTER's result) holds n_used int32 ids, then n_used float weights. */
#define STRATA_ROWS_TOKENS 0
#define STRATA_ROWS_OUTPUTS 1
typedef struct strata_buffer {
  int64_t offset;
  int32_t width;
  int32_t row_stride;
  int32_t rows;
  int32_t reserved;
} strata_buffer;

/* Rotary table: angle(pos, p) = pos * freqs[freq_first + p] / factor[p], p < n_rot / 2, evaluated in double. */
#define STRATA_ROPE_NORM 0 /* pairs (2p, 2p + 1) */
#define STRATA_ROPE_NEOX 1 /* pairs (p, p + n_rot / 2) */
typedef struct strata_rope {
  int32_t style;
  int32_t n_rot;
  int32_t freq_first; /* index into strata_model_desc.freqs, n_rot / 2 doubles (scaling already applied) */
  int32_t factors;    /* VECTOR tensor of n_rot / 2 divisors, or -1 */
  float magnitude;    /* multiplies cos and sin */
  int32_t reserved;
} strata_rope;

/* One attention layer's cache: rows of n_head_kv heads. v_in_k: the value is the first head_v entries of the key. */
typedef struct strata_kv_layer {
  int32_t n_head_kv;
  int32_t head_k;
  int32_t head_v;
  int32_t v_in_k; /* 1: nothing is stored for V (latent attention); ATTENTION's in2 is -1 */
} strata_kv_layer;

/* What one recurrent layer keeps of a sequence: float32 values, zero before its first token, in a slot of each sequence. */
typedef struct strata_state {
  int64_t n_floats;
} strata_state;

/* Gated activations h = act(gate, up). Parameters p0, p1 are the limits and slopes named here. */
#define STRATA_GLU_SILU 0             /* silu(gate) * up */
#define STRATA_GLU_GELU 1             /* gelu_tanh(gate) * up */
#define STRATA_GLU_RELU 2             /* relu(gate) * up */
#define STRATA_GLU_SWIGLU_OAI 3       /* g = min(gate, p1), u = clamp(up, -p1, p1): g * sigmoid(p0 * g) * (u + 1) */
#define STRATA_GLU_SILU_CLAMP_EARLY 4 /* silu(min(gate, p0)) * clamp(up, -p0, p0) */
#define STRATA_GLU_SILU_CLAMP_LATE 5  /* min(silu(gate), p0) * clamp(up, -p0, p0) */
#define STRATA_GLU_SITU 6             /* p0 * tanh(gate / p0) * sigmoid(gate) * (p1 > 0 ? p1 * tanh(up / p1) : up) */
#define STRATA_GLU_UP_SILU 7          /* no gate matrix: silu(up) */
#define STRATA_GLU_UP_RELU_SQR 8      /* no gate matrix: relu(up)^2 */
#define STRATA_GLU_UP_GELU 9          /* no gate matrix: gelu_tanh(up) */

/* The routed experts of one layer. Slot of one expert, in this order, each part 64-byte aligned, absent parts empty:
 * gate, up, down matrices; gate, up, down biases; gate, up, down scales ([1] float each). */
typedef struct strata_expert_set {
  int32_t layer; /* block index */
  int32_t n_expert;
  int32_t n_used; /* largest k of any step */
  int32_t glu;    /* STRATA_GLU_* */
  int32_t n_in;   /* inputs of gate and up */
  int32_t n_ff;
  int32_t n_out;           /* outputs of down */
  int32_t weight_on_input; /* 1: the router weight multiplies the expert's input; COMBINE then adds with weight 1 */
  int32_t gate, up, down;  /* tensor ids; gate may be -1 */
  int32_t gate_bias, up_bias, down_bias;    /* EXPERT_VECTOR or -1 */
  int32_t gate_scale, up_scale, down_scale; /* EXPERT_VECTOR of one float per expert, or -1; applied before the bias */
  float p0, p1;
  int32_t reserved;
  int64_t arena_offset; /* of expert 0's slot */
  int64_t slot_bytes;   /* bytes of one slot, a multiple of 64 */
} strata_expert_set;

/* Ops. Operands are buffer ids, weights tensor ids, -1 where absent. `i` and `f` hold parameters at the indices named
 * STRATA_<OP>_I_<NAME> and STRATA_<OP>_F_<NAME>; all others are zero. Head-strided operands address vector h of row t
 * at row(t) + offset + h * stride (floats). */
#define STRATA_OP_EMBED 1 /* out0 = scale * row[token] of w0 */
#define STRATA_EMBED_F_SCALE 0
#define STRATA_OP_NORM 2 /* n_vec vectors of `width` per row; w0 gain or -1, w1 bias or -1 */
#define STRATA_NORM_I_KIND 0
#define STRATA_NORM_I_N_VEC 1
#define STRATA_NORM_I_WIDTH 2
#define STRATA_NORM_I_IN_STRIDE 3
#define STRATA_NORM_I_IN_OFFSET 4
#define STRATA_NORM_I_OUT_STRIDE 5
#define STRATA_NORM_I_OUT_OFFSET 6
#define STRATA_NORM_I_GAIN_PER_VEC 7 /* 1: w0 holds n_vec * width gains */
#define STRATA_NORM_F_EPS 0
#define STRATA_NORM_RMS 0
#define STRATA_NORM_LAYER 1
#define STRATA_NORM_L2 2 /* x / sqrt(sum(x^2) + eps) */
#define STRATA_OP_LINEAR 3 /* out_k = W_k in0 * scale_k + bias_k for k < n: w[0..3] matrices, w[4..7] biases, w[8..11] scales [1] */
#define STRATA_LINEAR_I_N 0
#define STRATA_OP_HEAD_LINEAR 4 /* per head h: out[h] = W0[:, :, h] in[h] */
#define STRATA_HEAD_LINEAR_I_N_HEAD 0
#define STRATA_HEAD_LINEAR_I_IN_STRIDE 1
#define STRATA_HEAD_LINEAR_I_IN_OFFSET 2
#define STRATA_HEAD_LINEAR_I_OUT_STRIDE 3
#define STRATA_HEAD_LINEAR_I_OUT_OFFSET 4
#define STRATA_OP_ROPE 5      /* rotates in place (in0 = out0) */
#define STRATA_ROPE_I_TABLE 0 /* index into ropes */
#define STRATA_ROPE_I_N_HEAD 1
#define STRATA_ROPE_I_STRIDE 2
#define STRATA_ROPE_I_OFFSET 3
#define STRATA_OP_COPY 6 /* n_head vectors of `width`; in_stride 0 repeats one vector */
#define STRATA_COPY_I_N_HEAD 0
#define STRATA_COPY_I_WIDTH 1
#define STRATA_COPY_I_IN_STRIDE 2
#define STRATA_COPY_I_IN_OFFSET 3
#define STRATA_COPY_I_OUT_STRIDE 4
#define STRATA_COPY_I_OUT_OFFSET 5
#define STRATA_OP_ATTENTION 7 /* stores in1 (k), in2 (v, or -1) in the cache, then out0 = attention of in0 (q); w0 sinks or -1;
                             in1 -1: reads what an earlier op stores in the same cache; in3 an INDEX's result: of the keys
                             that are visible only these count; -1: all of them */
#define STRATA_ATTENTION_I_KV_LAYER 0
#define STRATA_ATTENTION_I_N_HEAD 1
#define STRATA_ATTENTION_I_WINDOW 2 /* 0: none */
#define STRATA_ATTENTION_I_WINDOW_KIND 3
#define STRATA_ATTENTION_I_CAUSAL 4
#define STRATA_ATTENTION_F_SCALE 0
#define STRATA_ATTENTION_F_SOFTCAP 1 /* 0: none; else s = cap * tanh(s / cap) */
#define STRATA_WINDOW_STANDARD 0     /* key j visible to query p iff p - j < window */
#define STRATA_WINDOW_CHUNKED 1      /* iff j >= floor(p / window) * window */
#define STRATA_WINDOW_SYMMETRIC 2    /* iff |p - j| <= window / 2 */
#define STRATA_OP_ROUTER 8           /* in0 logits -> out0 selection; w0 selection bias or -1 */
#define STRATA_ROUTER_I_N_EXPERT 0
#define STRATA_ROUTER_I_N_USED 1
#define STRATA_ROUTER_I_SCORES 2
#define STRATA_ROUTER_I_N_GROUP 3 /* <= 1: no groups; a group's score is the sum of its two best */
#define STRATA_ROUTER_I_N_GROUP_USED 4
#define STRATA_ROUTER_I_NORMALIZE 5     /* weights /= max(sum, norm_min) */
#define STRATA_ROUTER_I_SELECT_LOGITS 6 /* 1: choose by raw logits whatever the scores are */
#define STRATA_ROUTER_I_CHUNK 7 /* G > 1: expert e is chosen as id e / G, its weight is the score at that id; 0: off */
#define STRATA_ROUTER_F_SCALE 0 /* 1: none */
#define STRATA_ROUTER_F_NORM_MIN 1
#define STRATA_SCORES_SOFTMAX 1
#define STRATA_SCORES_SIGMOID 2
#define STRATA_SCORES_SOFTMAX_WEIGHT 3 /* choose by logits, softmax over the chosen */
#define STRATA_SCORES_SQRT_SOFTPLUS 4
#define STRATA_OP_EXPERTS 9 /* in0 x, in1 selection -> out0: n_used rows of n_out per token, in router order */
#define STRATA_EXPERTS_I_SET 0
#define STRATA_OP_COMBINE 10 /* in0 expert rows, in1 selection, in2 shared or -1, in3 shared gate logit (width 1) or -1 */
#define STRATA_COMBINE_I_N_USED 0 /* acc = 0; acc = fma(w_k, y_k, acc) in router order; then + shared (* sigmoid(gate)) */
#define STRATA_COMBINE_I_WIDTH 1
#define STRATA_COMBINE_I_UNIT_WEIGHTS 2
#define STRATA_OP_GLU 11 /* in0 gate or -1, in1 up -> out0 */
#define STRATA_GLU_I_KIND 0
#define STRATA_GLU_I_WIDTH 1
#define STRATA_GLU_F_P0 0
#define STRATA_GLU_F_P1 1
#define STRATA_OP_ADD 12 /* out0 = a * in0 + b * in1, products rounded alone; in1 -1: out0 = a * in0 */
#define STRATA_ADD_I_WIDTH 0
#define STRATA_ADD_F_A 0
#define STRATA_ADD_F_B 1
#define STRATA_OP_GATHER 13 /* TOKENS rows named by output_row -> OUTPUTS rows */
#define STRATA_GATHER_I_WIDTH 0
#define STRATA_OP_HEAD 14 /* logits: out0 = softcap(scale * w2 * W0 in0 + bias w1), w2 [1]; the plan's last op */
#define STRATA_HEAD_F_SCALE 0
#define STRATA_HEAD_F_SOFTCAP 1
#define STRATA_OP_MUL 15 /* out0 = in0 * act(in1), elementwise; in1 of width 1 per vector repeats over it */
#define STRATA_MUL_I_WIDTH 0
#define STRATA_MUL_I_ACT 1
#define STRATA_MUL_I_N_VEC 2 /* in1 holds one value for each of n_vec vectors when not of full width; 0: elementwise */
#define STRATA_ACT_NONE 0
#define STRATA_ACT_SIGMOID 1
#define STRATA_ACT_SILU 2
#define STRATA_ACT_SOFTPLUS 3
#define STRATA_OP_CLAMP 16 /* in place: clamp to [-limit, limit] */
#define STRATA_CLAMP_I_WIDTH 0
#define STRATA_CLAMP_F_LIMIT 0
#define STRATA_OP_TEMPERATURE 17 /* in place: row *= 1 + scale * ln(1 + floor((pos + offset) / length)) */
#define STRATA_TEMPERATURE_I_WIDTH 0
#define STRATA_TEMPERATURE_I_LENGTH 1
#define STRATA_TEMPERATURE_I_OFFSET 2
#define STRATA_TEMPERATURE_F_SCALE 0
#define STRATA_OP_SCALE 18 /* in place: row *= w0[0] */
#define STRATA_SCALE_I_WIDTH 0
#define STRATA_OP_INDEX 19 /* stores in1, a key, in the cache; out0: int32 count, then in ascending order the positions of
                             the TOP_K keys j <= pos with the largest sum over heads h of in2[h] * relu(in0[h] . key j),
                             of equal ones the first; then zeros. The cache has one head and v_in_k 1 */
#define STRATA_INDEX_I_KV_LAYER 0
#define STRATA_INDEX_I_N_HEAD 1
#define STRATA_INDEX_I_TOP_K 2
#define STRATA_OP_MIX 20 /* out0 = sum over vectors x of softmax(s)_x * x, s = sum(rms(x) * w0): the n_vec first vectors of in0,
                            `width` floats each, and in1 */
#define STRATA_MIX_I_N_VEC 0
#define STRATA_MIX_I_WIDTH 1
#define STRATA_MIX_F_EPS 0

/* Ops with a state: each state belongs to one op, which reads and updates it token by token. */
#define STRATA_OP_CONV 64 /* causal convolution of each of `width` channels over its last `taps` inputs: out0[c] =
                             act(sum over k of w0[c * taps + k] * input of taps - 1 - k tokens ago + w1[c]); w1 -1: no bias */
#define STRATA_CONV_I_STATE 0 /* (taps - 1) * width floats, oldest input first */
#define STRATA_CONV_I_WIDTH 1
#define STRATA_CONV_I_TAPS 2
#define STRATA_CONV_I_ACT 3        /* STRATA_ACT_NONE or STRATA_ACT_SILU */
#define STRATA_CONV_I_OUT_OFFSET 4 /* of channel 0 in out0 */
#define STRATA_OP_DELTA 65 /* gated delta rule: in0 rows [q of n_k heads | k of n_k heads | v of n_v heads], in1 a, in2 b (n_v);
                             per value head S[i] *= exp(w0 * softplus(a + w1)); S += k (sigmoid(b) (v - k S)); out0 = scale * q S;
                             with a bound S[i] *= exp(bound * sigmoid(w0 * (a + w1))), or of -w0 */
#define STRATA_DELTA_I_STATE 0 /* n_v * head_k * head_v floats, S of one head after the other */
#define STRATA_DELTA_I_N_K 1
#define STRATA_DELTA_I_N_V 2
#define STRATA_DELTA_I_HEAD_K 3
#define STRATA_DELTA_I_HEAD_V 4
#define STRATA_DELTA_I_TILED 5   /* 1: value head h reads key head h % n_k; 0: h / (n_v / n_k) */
#define STRATA_DELTA_I_PER_ROW 6 /* 1: a and w1 hold head_k values a head, one for each row of S; 0: one */
#define STRATA_DELTA_I_NEGATED 7 /* 1: the bounded form takes -w0 */
#define STRATA_DELTA_F_SCALE 0
#define STRATA_DELTA_F_BOUND 1 /* of the log decay, below 0; 0: none */
#define STRATA_OP_SSM_HEADS 66 /* state space with a decay a head: in0 rows [x of n_head heads | B of n_group | C of n_group], in1 dt
                             (n_head); w0 A, w1 D, w2 dt's bias (n_head each); dt = softplus(dt + w2); per head
                             h[s] = exp(dt A) h[s] + dt B[s] x; out0 = sum of C[s] h[s] + D x */
#define STRATA_SSM_HEADS_I_STATE 0 /* n_head * n_state * head floats */
#define STRATA_SSM_HEADS_I_N_HEAD 1
#define STRATA_SSM_HEADS_I_HEAD 2
#define STRATA_SSM_HEADS_I_N_GROUP 3 /* head h reads B and C of group h / (n_head / n_group) */
#define STRATA_SSM_HEADS_I_N_STATE 4
#define STRATA_OP_SSM_CHANNELS 67 /* state space with decays of its own for each channel: in0 x, in1 dt (width), in2 B, in3 C (n_state);
                             w0 A (width * n_state, a channel's values together), w1 D, w2 dt's bias (width) */
#define STRATA_SSM_CHANNELS_I_STATE 0 /* width * n_state floats */
#define STRATA_SSM_CHANNELS_I_WIDTH 1
#define STRATA_SSM_CHANNELS_I_N_STATE 2
#define STRATA_OP_LIGHTNING 68 /* linear attention: in0 rows of heads [q | k | v]; per head h (from 0) with the decay
                             e = exp(-slope 2^(-8 (h + 1) / n_head)): S[i] = e S[i] + k[i] v; out0 = sum of q[i] S[i] */
#define STRATA_LIGHTNING_I_STATE 0 /* n_head * head * head floats */
#define STRATA_LIGHTNING_I_N_HEAD 1
#define STRATA_LIGHTNING_I_HEAD 2
#define STRATA_LIGHTNING_F_SLOPE 0

#define STRATA_OP_N_IN 4
#define STRATA_OP_N_OUT 4
#define STRATA_OP_N_WEIGHT 12
#define STRATA_OP_N_I 12
#define STRATA_OP_N_F 4
typedef struct strata_op {
  int32_t kind;
  int32_t layer; /* block index, -1 outside the blocks */
  int32_t in[4];
  int32_t out[4];
  int32_t weight[12];
  int32_t i[12];
  float f[4];
} strata_op;

typedef struct strata_model_desc {
  uint32_t struct_size;
  int32_t abi_version;
  int32_t n_paths, n_tensors, n_sources, n_buffers, n_ropes, n_freqs, n_kv_layers, n_expert_sets, n_ops, n_layer;
  int32_t n_vocab, n_embd;
  int32_t n_batch;           /* tokens of the largest step the buffers were planned for */
  int32_t n_outputs_max;     /* OUTPUTS rows that the buffers were planned for */
  int64_t weights_bytes;     /* size of the weights arena */
  int64_t activations_bytes; /* size of the activation arena */
  const char* const* paths;  /* the file's shards; none for a synthetic model */
  const strata_tensor* tensors;
  const strata_source* sources;
  const strata_buffer* buffers;
  const strata_rope* ropes;
  const double* freqs;
  const strata_kv_layer* kv_layers;
  const strata_expert_set* expert_sets;
  const strata_op* ops;
  int32_t n_states;
  int32_t reserved;
  const strata_state* states;
} strata_model_desc;

/* ---- library ---------------------------------------------------------------------------------------------------- */

int32_t strata_abi_version(void);
int64_t strata_struct_bytes(
    const char* name);               /* sizeof(struct name), -1: no struct of this file; for the caller's handshake */
const char* strata_build_info(void); /* "compiler; build type; tiers"; static storage */
const char* strata_status_name(int32_t status);
const char* strata_last_error(void); /* of this thread's last failed call; valid until its next call */
int64_t strata_packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols); /* -1: unknown type or ragged row */
const char* strata_cpu_tier(void); /* "scalar", "avx2", "avx512", "neon": best tier of this processor */
int32_t strata_cpu_count(void);    /* processors this process may use: affinity mask and cgroup quota */
/* Reads `bytes` of touched memory with n_threads, several times; best rate in bytes per second. Blocks for about 1 s. */
int32_t strata_measure_read(int32_t n_threads, int64_t bytes, double* bytes_per_s);

typedef struct strata_gpu {
  uint32_t struct_size;
  int32_t sm; /* compute capability: 89 is 8.9 */
  int32_t n_multiprocessors;
  int32_t reserved;
  int64_t total_bytes;
  int64_t free_bytes; /* beside all that runs on it now, this process's own context included */
  char name[128];
} strata_gpu;
/* STRATA_E_UNSUPPORTED: no driver, no such GPU, or too old a one; the text says which. */
int32_t strata_gpu_info(int32_t ordinal, strata_gpu* gpu);
/* Rates of large transfers, the best of several, in bytes per second. Blocks for about 0.2 s and takes 512 MiB of the card. */
int32_t strata_gpu_measure(int32_t ordinal, double* memory_read_per_s, double* link_per_s);

/* ---- model ------------------------------------------------------------------------------------------------------ */

typedef struct strata_model strata_model;

#define STRATA_LOAD_DIRECT 0   /* O_DIRECT reads, repacked into the arena; plain reads where refused (see stats) */
#define STRATA_LOAD_BUFFERED 1 /* plain reads */
#define STRATA_LOAD_MAPPED 2   /* expert tensors stay in the mapped file in row layout; dense ones are loaded */
typedef struct strata_load_config {
  uint32_t struct_size;
  int32_t mode; /* STRATA_LOAD_* */
  int32_t n_threads;
  int32_t consume_file; /* 1: free each piece of the file once it is in the arena (punches holes: files in RAM) */
} strata_load_config;

typedef struct strata_load_stats {
  uint32_t struct_size;
  int32_t direct_refused; /* 1: direct reads were refused and plain reads took their place */
  int64_t bytes_read;
  int64_t arena_bytes; /* touched */
  int64_t mapped_bytes;
  double seconds;
} strata_load_stats;

int32_t strata_model_open(const strata_model_desc* desc, strata_model** model); /* validates; allocates no weights */
int32_t strata_model_load(strata_model* model, const strata_load_config* config, strata_load_stats* stats); /* slow */
int32_t strata_model_progress(const strata_model* model, int64_t* done_bytes, int64_t* total_bytes);
int32_t strata_model_cancel(strata_model* model); /* a running load returns STRATA_E_CANCELLED soon */
/* Instead of load: allocate, then hand over rows of each matrix in the file's layout (synthetic models). */
int32_t strata_model_reserve(strata_model* model);
int32_t strata_model_fill(strata_model* model, int32_t tensor, int64_t mat, int64_t row_first, int64_t n_rows,
                          const uint8_t* file_bytes, int64_t n_bytes);
int32_t strata_model_close(strata_model* model);

/* ---- engine ----------------------------------------------------------------------------------------------------- */

typedef struct strata_engine strata_engine;

#define STRATA_KV_F32 0
#define STRATA_KV_F16 1
#define STRATA_KV_Q8_0 8
#define STRATA_KV_BLOCK_TOKENS 64
/* What computes beside the CPU. SIM: a thread with memory of its own that speaks the protocol of a GPU (tests). */
#define STRATA_DEVICE_CPU 0
#define STRATA_DEVICE_SIM 1
#define STRATA_DEVICE_CUDA 2
typedef struct strata_engine_config {
  uint32_t struct_size;
  int32_t n_threads;     /* workers of one step, the engine thread included; 1..256, more than strata_cpu_count() is slow */
  int32_t kv_type;       /* STRATA_KV_* (GGML type numbers) */
  int32_t n_kv_blocks;   /* blocks of STRATA_KV_BLOCK_TOKENS positions */
  int32_t max_seqs;      /* sequences of one step */
  int32_t poison;        /* 1: fill activations and scratch with 0x7fc00000 before every step and check every op's result */
  int32_t tier;          /* -1: best; else 0 scalar, 1 avx2, 2 avx512 (tests; a tier this CPU lacks is refused) */
  int32_t spin_us;       /* how long idle workers spin before they sleep while a request is active; -1: default */
  int32_t n_state_slots; /* sequences whose recurrent states are kept; 0 for plans without states */
  int32_t queue_steps;   /* submitted steps not yet polled; power of two, 1..64 */
  int64_t step_deadline_us; /* a step that takes longer fails with STRATA_E_DEADLINE, looked at between ops; 0: none. Also
                               how long a finished worker waits for the others before the engine is dead; with 0: 30 s */
  int32_t device;          /* STRATA_DEVICE_*; the fields below are for SIM and CUDA */
  int32_t ordinal;         /* of the GPU */
  int32_t n_classes;       /* size classes of slots; 0: no slots, every expert is computed by the CPU */
  int32_t reserved;
  const int32_t* class_of_set; /* [n_expert_sets] class of each set; all sets of a class have equal slot_bytes */
  const int32_t* n_slots;      /* [n_classes]; slots are numbered class by class */
  int64_t handoff_deadline_us; /* how long a device waits for missed experts, for every 8 tokens of a step; 0: 900 ms */
  int64_t vram_limit_bytes;    /* most that the engine may hold on the card, context included; 0: what is free */
  int64_t pin_limit_bytes;     /* most RAM that is page-locked for copies of experts; the others go through a ring */
  const char* nvrtc_path;      /* NVRTC's library or folder; NULL: the system's */
  const char* cubin_cache;     /* folder for compiled kernels; NULL: none */
} strata_engine_config;

typedef struct strata_engine_bytes {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t activations;
  int64_t kv;
  int64_t scratch; /* rounded activations, routing tables, sampler, per-thread buffers */
  int64_t state;   /* recurrent states of all slots */
  int64_t device;  /* on the device: dense weights, activations, KV cache, slots; 0: no device */
  int64_t slots;   /* of `device`, the slots */
  int64_t shared;  /* host memory that both sides see: mailbox and payloads */
} strata_engine_bytes;

/* Sampling of one output row. Order: bias, mask, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC,
 * temperature, draw. Pools are int32/float arrays of strata_step. */
typedef struct strata_sample {
  int32_t output; /* index into output_row; samples have ascending outputs */
  int32_t top_k;  /* 0: off */
  uint64_t seed;
  uint64_t counter;              /* the token's index in its sequence: draw = philox(seed, counter) */
  float temperature;             /* <= 0: greedy, lowest id wins ties */
  float top_p, min_p, typical_p; /* 1, 0, 1: off */
  float top_n_sigma;             /* <= 0: off */
  float xtc_probability, xtc_threshold;
  float repeat_penalty; /* 1: off */
  float presence_penalty, frequency_penalty;
  float dry_multiplier; /* 0: off */
  float dry_base;
  int32_t dry_allowed_length, dry_last_n;
  int32_t penalty_last_n;             /* tokens of history looked at by the penalties; 0: none, -1: all */
  int32_t history_first, n_history;   /* token ids, oldest first, in strata_step.ints */
  int32_t breakers_first, n_breakers; /* DRY sequence breakers: token ids in ints */
  int32_t bias_first, n_bias;         /* pairs: token id in ints[bias_first + j], value in floats[bias_value_first + j] */
  int32_t bias_value_first;
  int32_t mask_first; /* -1: none; else bit set of allowed tokens: ceil(n_vocab / 32) words in ints */
  int32_t n_logprobs; /* -1: none; 0..STRATA_MAX_LOGPROBS: the chosen token's and that many of the best */
  int32_t min_keep;   /* candidates that filters always leave, >= 1 */
  int32_t reserved[3];
} strata_sample;

#define STRATA_MAX_LOGPROBS 20
typedef struct strata_sampled {
  int32_t token; /* -1: nothing was drawn, the step failed or this row's logits hold NaN (STRATA_E_NUMERIC) */
  int32_t n_top;
  float logprob;  /* natural log, of the model's distribution before temperature and filters */
  int32_t status; /* of this sample; a failed one has token -1, and the step has the first such status */
  int32_t top_token[20];
  float top_logprob[20];
} strata_sampled;

typedef struct strata_step {
  uint32_t struct_size;
  int32_t n_tokens; /* 1..n_batch */
  int32_t n_seqs;
  int32_t n_outputs; /* 0..n_outputs_max */
  int32_t n_samples;
  int32_t max_blocks; /* row length of block_table */
  int32_t n_ints, n_floats;
  const int32_t* token;         /* [n_tokens] */
  const int32_t* pos;           /* [n_tokens] position in its sequence; rows of one sequence ascend by one */
  const int32_t* seq;           /* [n_tokens] 0..n_seqs-1; rows of one sequence are adjacent */
  const int32_t* block_table;   /* [n_seqs][max_blocks] KV block of positions 64 b .. 64 b + 63; unused entries -1 */
  const int32_t* output_row;    /* [n_outputs] ascending rows whose logits are wanted */
  const strata_sample* samples; /* [n_samples] */
  const int32_t* ints;
  const float* floats;
  float* logits_out;           /* [n_outputs][n_vocab] or NULL */
  strata_sampled* sampled_out; /* [n_samples] or NULL */
  int32_t* routing_out; /* [n_expert_sets][n_tokens][n_used of the set, at most routing_stride] ids, -1 padded; or NULL */
  float* routing_weights_out; /* the same shape; or NULL */
  int32_t routing_stride;
  int32_t reserved;
  const int32_t* state_slot; /* [n_seqs] different slots; NULL for plans without states. Position 0 starts from zeros; any
                                other first position must be the one that the slot has reached, else STRATA_E_STATE */
} strata_step;

typedef struct strata_completion {
  uint32_t struct_size;
  int32_t status;
  uint64_t ticket;
  int64_t queued_ns, run_ns, sample_ns;
  int64_t weight_bytes; /* bytes of weights read from RAM by the CPU for this step */
  int64_t kv_bytes;
  int64_t expert_rows;     /* (token, expert) pairs computed */
  int64_t experts_touched; /* distinct (layer, expert) pairs; with a device: those that the CPU computed */
  int64_t expert_hits;     /* (token, expert) pairs that the device computed from its slots */
  int64_t handoff_wait_ns; /* time the CPU waited for doorbells */
} strata_completion;

typedef struct strata_engine_stats {
  uint32_t struct_size;
  int32_t phase; /* 0 idle, 1 running a step, 2 dead */
  int32_t layer; /* of the op being run */
  int32_t op;
  int64_t heartbeat_age_ns; /* since the engine thread last made progress */
  int64_t steps, tokens, failed_steps, aborted_steps;
  int64_t pinned_bytes; /* experts in page-locked RAM */
  int64_t weight_bytes, run_ns;
  int64_t sleeps, wakes; /* of pool workers */
} strata_engine_stats;

/* Memory that an engine of this config will hold, before anything is allocated. */
int32_t strata_engine_measure(const strata_model* model, const strata_engine_config* config, strata_engine_bytes* bytes);
int32_t strata_engine_open(strata_model* model, const strata_engine_config* config, strata_engine** engine);
/* Descriptor, readable when a completion waits; owned by the engine. strata_engine_poll clears it. */
int32_t strata_engine_eventfd(const strata_engine* engine);
int32_t strata_engine_submit(strata_engine* engine, const strata_step* step, uint64_t* ticket);
int32_t strata_engine_poll(strata_engine* engine, strata_completion* completions, int32_t capacity, int32_t* n);
int32_t strata_engine_abort(strata_engine* engine, uint64_t ticket); /* honoured between ops; idempotent; 0 = all */
/* Text of a failed step, kept for 64 tickets; copied, NUL-terminated, cut to capacity. */
int32_t strata_engine_error(strata_engine* engine, uint64_t ticket, char* text, int32_t capacity);
int32_t strata_engine_stats_read(strata_engine* engine, strata_engine_stats* stats);
/* Aborts and joins; bounded by the running op. STRATA_E_INTERNAL: a worker is lost; what it may touch stays allocated. */
int32_t strata_engine_close(strata_engine* engine);
/* Copies KV block `from` over block `to` in every layer (copy on write of a shared prefix block). Between steps only. */
int32_t strata_engine_kv_copy(strata_engine* engine, int32_t from, int32_t to);
/* Copies the states of slot `from`, and the position they have reached, over slot `to`. Between steps only. */
int32_t strata_engine_state_copy(strata_engine* engine, int32_t from, int32_t to);

/* Expert slots. A copy starts at once beside running steps and never blocks; the slot must not be named by the table. Copies
 * end in order: strata_experts_copied gives the number of the newest that has ended with all before it. */
typedef struct strata_slot_entry {
  int32_t set;
  int32_t expert;
  int32_t slot; /* -1: not resident */
} strata_slot_entry;
int32_t strata_experts_copy(strata_engine* engine, int32_t set, int32_t expert, int32_t slot, uint64_t* number);
int32_t strata_experts_copied(strata_engine* engine, uint64_t* number);
/* Changes table entries; between steps only. All or none. */
int32_t strata_experts_commit(strata_engine* engine, const strata_slot_entry* entries, int32_t n);
/* Times of jobs with missed experts since the engine was opened: bins[i] counts 2^(i/4) ns .. 2^((i+1)/4) ns, the last one
 * all that is longer. OVERHEAD: from the device's first payload word to its last read row, less COMPUTE; COMPUTE: from the
 * doorbell seen to the done word, on the CPU; WAIT: how long the CPU had waited for that doorbell. */
#define STRATA_HANDOFF_BINS 160
#define STRATA_HANDOFF_OVERHEAD 0
#define STRATA_HANDOFF_COMPUTE 1
#define STRATA_HANDOFF_WAIT 2
int32_t strata_engine_handoffs(strata_engine* engine, int32_t kind, int64_t* bins);

/* cffi: end */
/* clang-format on */

#ifdef __cplusplus
}
#endif
#endif
