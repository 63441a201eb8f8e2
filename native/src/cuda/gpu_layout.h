// What the device holds on the card, all of it in one allocation: every place is known before anything is allocated.
//
// Order: dense tensors, activations (at the plan's own offsets), KV cache, expert slots, tables, scratch. Places are bytes
// from the allocation's start, multiples of 256.
#pragma once
#include "base/arena.h"
#include "base/error.h"
#include "cpu/kernels.h"
#include "cuda/attention_args.h"
#include "engine/kv.h"
#include "model/plan.h"

namespace strata::cuda {

struct GpuConfig {
  int32_t ordinal;
  int32_t kv_type;           // STRATA_KV_*
  int32_t n_kv_blocks;       // of STRATA_KV_BLOCK_TOKENS positions
  int32_t max_seqs;          // sequences of one step
  int32_t poison;            // 1: activations are filled with quiet NaNs before every step
  int64_t slots_bytes;       // of all expert slots
  int64_t vram_limit_bytes;  // most that may be held, context included; 0: what is free
  int64_t pin_limit_bytes;   // most bytes of experts that are page-locked
  const char* nvrtc_path;    // NVRTC's library or folder; null: the system's
  const char* cubin_cache;   // folder for compiled kernels; null: none
};

constexpr int32_t kMaxGraphTokens = 8;  // larger steps are launched without a capture

// Scratch of the EXPERTS ops: places.
struct ExpertPlaces {
  int64_t counts, tasks, pair_token, pair_id, pair_out, missed;
  int64_t weighted;     // [pair][n_in] floats
  int64_t hidden, up;   // [pair][n_ff] floats
  int64_t hidden_acts;  // the same, rounded for down
};

struct GpuLayout {
  Array<int64_t> tensors;      // by tensor; -1: part of an expert
  Array<KvLayer> kv_layers;    // offset counts from `kv`
  Array<int64_t> rope_tables;  // [n_batch][n_rot] floats each
  ExpertPlaces experts{};
  int64_t activations = 0, kv = 0, slots = 0;
  int64_t addresses = 0;  // [n_expert_sets][width] uint64: where an expert's slot begins, 0: not resident
  int64_t freqs = 0;      // the plan's doubles
  int64_t inputs = 0;     // of the running step
  int64_t state = 0;      // StepState
  int64_t acts[3] = {};   // by ActForm: rounded rows of one input
  int64_t attention = 0;  // scratch
  int64_t inputs_bytes = 0, attention_bytes = 0;
  int64_t dense_bytes = 0, kv_bytes = 0, slots_bytes = 0;
  int64_t scratch_bytes = 0, bytes = 0;  // scratch: all that is none of the others
  int32_t width = 0;                     // of `addresses`

  // STRATA_E_UNSUPPORTED: the cache's type does not fit the plan's heads.
  Status plan_places(const Plan& plan, const GpuConfig& config, Error& error);
};

// Bytes of one rounded row of n_cols values as the kernels want it; f32: the floats.
int64_t gpu_act_row_bytes(cpu::ActForm form, int64_t n_cols);
cpu::ActForm act_form(int32_t type);
// Bytes of a dense tensor, all its matrices.
int64_t dense_tensor_bytes(const strata_tensor& tensor);
inline bool is_expert_part(const strata_tensor& tensor) {
  return tensor.role == STRATA_ROLE_EXPERT_MATRIX || tensor.role == STRATA_ROLE_EXPERT_VECTOR;
}
// Most tasks of n_pairs pairs.
int64_t max_expert_tasks(int64_t n_pairs, int64_t n_expert, int64_t task_pairs);

// Blocks of a block table's row for a step whose longest sequence has n_blocks: few values, since each is a graph.
int32_t block_bucket(int32_t n_blocks, int32_t n_kv_blocks);
AttentionShape attention_shape(const Plan& plan, const strata_op& op, int32_t n_tokens, int32_t n_blocks);

// A step's inputs: places inside the input area, packed for its shape.
struct InputPlaces {
  int64_t token, pos, seq, output_row, block_table, bytes;
};
InputPlaces input_places(int32_t n_tokens, int32_t n_outputs, int32_t n_rows, int32_t n_blocks);
// Rows of the block table: sequences are numbered anew in the order of their rows.
int32_t block_table_rows(int32_t n_tokens, int32_t max_seqs);

}  // namespace strata::cuda
