// Validates the expert sets: shapes of the parts, and the layout of one expert's slot.
#include "cpu/kernels.h"
#include "model/validate.h"

namespace strata {
namespace {

// One part of the slot: which tensor, of which role and shape.
struct Part {
  const char* field;
  int32_t tensor;
  int32_t role;
  int64_t n_cols, n_rows;
  bool required;
};

Status validate_numbers(const Plan& plan, const strata_expert_set& set, const Row& row) {
  STRATA_TRY(row.range("layer", set.layer, 0, plan.n_layer - 1));
  STRATA_TRY(row.range("n_expert", set.n_expert, 1, kMaxMats));
  STRATA_TRY(row.range("n_used", set.n_used, 1, set.n_expert));
  STRATA_TRY(row.range("glu", set.glu, STRATA_GLU_SILU, STRATA_GLU_UP_GELU));
  STRATA_TRY(row.range("n_in", set.n_in, 1, kMaxCols));
  STRATA_TRY(row.range("n_ff", set.n_ff, 1, kMaxCols));
  STRATA_TRY(row.range("n_out", set.n_out, 1, kMaxCols));
  STRATA_TRY(row.range("weight_on_input", set.weight_on_input, 0, 1));
  STRATA_TRY(row.finite("p0", set.p0));
  STRATA_TRY(row.finite("p1", set.p1));
  STRATA_TRY(row.range("arena_offset", set.arena_offset, 0, plan.weights_bytes));
  if (set.arena_offset % 64 != 0) return row.bad("arena_offset", set.arena_offset, "a multiple of 64 is needed");
  STRATA_TRY(row.range("slot_bytes", set.slot_bytes, 64, plan.weights_bytes));
  if (set.slot_bytes % 64 != 0) return row.bad("slot_bytes", set.slot_bytes, "a multiple of 64 is needed");
  int64_t bytes;
  if (mul_overflows(set.slot_bytes, set.n_expert, &bytes) || bytes > plan.weights_bytes - set.arena_offset) {
    return row.bad("slot_bytes", set.slot_bytes, "the experts' slots do not fit in the arena");
  }
  return STRATA_OK;
}

// Checks one part and advances `at`, the next part's place inside the slot. `owners[t]` is the set that holds tensor t.
Status validate_part(const Plan& plan, const strata_expert_set& set, const Part& part, Array<int32_t>& owners, int64_t* at,
                     const Row& row) {
  STRATA_TRY(row.range(part.field, part.tensor, part.required ? 0 : -1, plan.tensors.size() - 1));
  if (part.tensor < 0) return STRATA_OK;
  const strata_tensor& tensor = plan.tensors[part.tensor];
  const Row at_tensor{row.error, "tensors", part.tensor};
  STRATA_TRY(at_tensor.equal("role", tensor.role, part.role, "the role of this part of an expert"));
  STRATA_TRY(at_tensor.equal("n_cols", tensor.n_cols, part.n_cols, "the width of this part of an expert"));
  STRATA_TRY(at_tensor.equal("n_rows", tensor.n_rows, part.n_rows, "the row count of this part of an expert"));
  STRATA_TRY(at_tensor.equal("n_mats", tensor.n_mats, set.n_expert, "the set's n_expert"));
  STRATA_TRY(at_tensor.equal("mat_stride_bytes", tensor.mat_stride_bytes, set.slot_bytes, "the set's slot_bytes"));
  STRATA_TRY(at_tensor.equal("arena_offset", tensor.arena_offset, set.arena_offset + *at, "its place in the slot"));
  if (owners[part.tensor] != 0) return row.bad(part.field, part.tensor, "this tensor is a part already");
  owners[part.tensor] = 1;
  const int64_t bytes =
      tensor_is_vector(tensor) ? tensor.n_cols * 4 : cpu::packed_bytes(tensor.type, tensor.n_rows, tensor.n_cols);
  *at = round_up(*at + bytes, 64);
  if (*at > set.slot_bytes) return row.bad("slot_bytes", set.slot_bytes, "the parts do not fit");
  return STRATA_OK;
}

Status validate_set(const Plan& plan, const strata_expert_set& set, Array<int32_t>& owners, const Row& row) {
  STRATA_TRY(validate_numbers(plan, set, row));
  const bool gated = !glu_is_ungated(set.glu);
  if (!gated && (set.gate >= 0 || set.gate_bias >= 0 || set.gate_scale >= 0)) {
    return row.bad("gate", set.gate, "this glu has no gate matrix");
  }
  const int32_t m = STRATA_ROLE_EXPERT_MATRIX, v = STRATA_ROLE_EXPERT_VECTOR;
  const Part parts[] = {
      {"gate", set.gate, m, set.n_in, set.n_ff, gated}, {"up", set.up, m, set.n_in, set.n_ff, true},
      {"down", set.down, m, set.n_ff, set.n_out, true}, {"gate_bias", set.gate_bias, v, set.n_ff, 1, false},
      {"up_bias", set.up_bias, v, set.n_ff, 1, false},  {"down_bias", set.down_bias, v, set.n_out, 1, false},
      {"gate_scale", set.gate_scale, v, 1, 1, false},   {"up_scale", set.up_scale, v, 1, 1, false},
      {"down_scale", set.down_scale, v, 1, 1, false},
  };
  int64_t at = 0;
  for (const Part& part : parts) STRATA_TRY(validate_part(plan, set, part, owners, &at, row));
  return STRATA_OK;
}

}  // namespace

Status validate_expert_sets(const Plan& plan, Error& error) {
  Array<int32_t> owners;
  if (!owners.resize(plan.tensors.size())) return error.fail(STRATA_E_MEMORY, "no memory to check the expert sets");
  for (int64_t i = 0; i < plan.expert_sets.size(); ++i) {
    STRATA_TRY(validate_set(plan, plan.expert_sets[i], owners, Row{error, "expert_sets", i}));
  }
  for (int64_t i = 0; i < plan.tensors.size(); ++i) {
    const strata_tensor& tensor = plan.tensors[i];
    if ((tensor.role == STRATA_ROLE_EXPERT_MATRIX || tensor.role == STRATA_ROLE_EXPERT_VECTOR) && owners[i] == 0) {
      return Row{error, "tensors", i}.bad("role", tensor.role, "the tensor is a part of no expert set");
    }
  }
  return STRATA_OK;
}

}  // namespace strata
