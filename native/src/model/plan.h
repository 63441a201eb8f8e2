// The plan: copies of the caller's tables, validated once so that nothing behind this line checks them again.
#pragma once
#include "base/arena.h"
#include "base/error.h"
#include "strata.h"

namespace strata {

struct Plan {
  Array<strata_tensor> tensors;
  Array<strata_source> sources;
  Array<strata_buffer> buffers;
  Array<strata_rope> ropes;
  Array<double> freqs;
  Array<strata_kv_layer> kv_layers;
  Array<strata_expert_set> expert_sets;
  Array<strata_op> ops;
  Array<strata_state> states;
  Array<char> path_bytes;  // all paths, NUL-terminated
  Array<const char*> paths;
  int32_t n_layer = 0, n_vocab = 0, n_embd = 0;
  int32_t n_batch = 0;  // tokens of the largest step
  int32_t n_outputs_max = 0;
  int64_t weights_bytes = 0, activations_bytes = 0;
};

// Copies and validates. STRATA_E_ARGUMENT texts name table, index, field and value.
Status plan_open(const strata_model_desc& desc, Plan& plan, Error& error);

// Where an operand of an op lies inside its buffer's rows: vector v of row t at row(t) + offset + v * stride (floats).
struct Extent {
  int32_t buffer;
  bool written;
  bool exact;         // the operand is the buffer's whole width
  const char* field;  // "in[0]"
  int64_t n_vec, width, stride, offset;
};
constexpr int32_t kMaxExtents = STRATA_OP_N_IN + STRATA_OP_N_OUT;
// Fills every operand of an op whose ids and parameters are valid; returns their number.
int32_t op_extents(const Plan& plan, const strata_op& op, Extent* extents);
const char* op_name(int32_t kind);  // "LINEAR"; "?" when unknown

// The glu kinds that have no gate matrix.
inline bool glu_is_ungated(int32_t glu) { return glu >= STRATA_GLU_UP_SILU; }
// Rows that a buffer was planned for.
inline int32_t rows_max(const Plan& plan, int32_t rows) {
  return rows == STRATA_ROWS_OUTPUTS ? plan.n_outputs_max : plan.n_batch;
}
// Bytes of one matrix or vector of a tensor, in the file and in the arena (without padding to the stride).
int64_t tensor_file_bytes(const strata_tensor& tensor);
int64_t tensor_row_bytes(const strata_tensor& tensor);  // one row in the file
bool tensor_is_vector(const strata_tensor& tensor);

}  // namespace strata
