// Arguments of the CUDA kernels: one definition for the host, which fills them, and for NVRTC.
//
// All pointers are device addresses. Rows of activations are act.h's sections in the form that the weight type asks for;
// rows of form A32 carry one section more on the GPU, see a32_pairs_offset. "Absent" is a null pointer or -1.
#pragma once
#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

namespace strata::cuda {

constexpr int32_t kMaxTokens = 8;  // tokens of a block of the decode kernels
constexpr int32_t kMaxParts = 4;   // matrices of one k_linear launch
// Outputs and threads of a block of the batched kernels.
constexpr int32_t kTileRows = 64, kTileTokens = 64, kBatchThreads = 256;

// Rounds rows of floats. Grid (units of 32 or 256 in eights, rows).
struct ActArgs {
  const float* x;
  int64_t x_stride;  // floats
  uint8_t* acts;
  int64_t act_stride;  // bytes
  int64_t n_cols;
  const int32_t* n_rows;  // null: the grid's
};

// One matrix of k_linear_*: y[t][r] = (W x_t)[r] * scale + bias[r], then softcapped.
struct LinearPart {
  const uint8_t* w;
  float* y;
  const float* bias;   // [n_rows], or absent
  const float* scale;  // [1], or absent
  int64_t y_stride;    // floats
  int32_t n_rows;
  int32_t first_block;  // of the grid
};
struct LinearArgs {
  LinearPart part[kMaxParts];
  int32_t n_parts;
  int32_t n_tokens;  // of the launch: row y of the grid takes those from y times the kernel's token count on
  int64_t n_cols;
  const uint8_t* acts;
  int64_t act_stride;
  float factor;   // multiplies scale; 1: none
  float softcap;  // 0: none
};

// One resident expert and its pairs (token, router rank), which lie side by side in the pair tables.
struct ExpertTask {
  const uint8_t* slot;
  int32_t first_pair;
  int32_t n_pairs;  // 1 .. the kernel's token count
};
// One matrix of an expert's slot; offsets in bytes from the slot's start, -1 for an absent bias or scale.
struct SlotMatrix {
  int64_t w, bias, scale;
};
// k_expert_in_*: hidden[pair] = act(gate x, up x). Grid (groups of 16 rows, tasks). gate.w = -1: no gate matrix.
// k_expert_rows_*: out[pair_out[pair]] = W x (in up; gate is not read).
struct ExpertArgs {
  const ExpertTask* tasks;
  const int32_t* n_tasks;   // device word; null: the grid's
  const int32_t* pair_in;   // activation row of a pair; null: the pair's own
  const int32_t* pair_out;  // output row of a pair; null: the pair's own
  const uint8_t* acts;
  int64_t act_stride;
  int64_t n_cols;
  float* out;
  int64_t out_stride;  // floats
  SlotMatrix gate, up;
  int32_t n_rows;
  int32_t glu;  // STRATA_GLU_*
  float p0, p1;
};

// k_norm: n_vec vectors of `width` in each of the grid's rows. Kinds are STRATA_NORM_*.
struct NormArgs {
  const float* x;
  float* out;
  const float* gain;
  const float* bias;
  int64_t x_row, x_vec, out_row, out_vec;  // strides in floats
  int64_t gain_stride;                     // floats between the gains of vectors; 0: shared
  int32_t width;
  int32_t kind;
  float eps;
};

// k_rope_table: row t of `table` has n_rot / 2 cosines, then as many sines.
struct RopeTableArgs {
  const int32_t* pos;
  const double* freqs;
  const float* factors;  // or absent
  float* table;
  int32_t n_rot;
  float magnitude;
};
// k_rope: rotates n_head vectors of each of the grid's rows in place. Styles are STRATA_ROPE_*.
struct RopeArgs {
  float* x;
  const float* table;
  int64_t x_row, x_head;  // floats
  int32_t n_rot, n_head, style;
};

// k_router: the fields of STRATA_OP_ROUTER; one warp for each token, 8 * n_expert bytes of dynamic shared memory.
struct RouterArgs {
  const float* logits;
  const float* bias;                        // or absent
  int32_t* selection;                       // n_used ids, then n_used float weights
  int64_t logits_stride, selection_stride;  // elements of 4 bytes
  int32_t n_expert, n_used, scores, n_group, n_group_used, normalize, select_logits;
  float scale, norm_min;
  int32_t chunk;  // above 1: id e becomes e / chunk once chosen
};

// k_combine: the fields of STRATA_OP_COMBINE.
struct CombineArgs {
  const float* y;
  const int32_t* selection;
  const float* shared;       // or absent
  const float* shared_gate;  // or absent
  float* out;
  int64_t y_stride, selection_stride, shared_stride, gate_stride, out_stride;
  int32_t n_used, width, unit_weights;
};

// k_glu, k_add, k_mul, k_clamp: `width` elements in each of the grid's rows.
struct ElementArgs {
  const float* x;  // gate of k_glu, or absent there
  const float* y;  // up of k_glu; absent in k_add: out = a * x
  float* out;
  int64_t x_stride, y_stride, out_stride;
  int32_t width;
  int32_t kind;   // STRATA_GLU_* or STRATA_ACT_*
  int32_t n_vec;  // k_mul: y holds one factor for each of n_vec vectors; 0: elementwise
  float a, b;     // k_glu: p0, p1; k_clamp: a is the limit
};

// k_embed_*: row of each token as floats, times scale.
struct EmbedArgs {
  const uint8_t* w;
  const int32_t* tokens;
  float* out;
  int64_t out_stride;
  int64_t n_cols;
  float scale;  // 1: none
};

}  // namespace strata::cuda
