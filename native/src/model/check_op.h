// What the checks of single op kinds share. Only plan_ops.cpp and plan_state_ops.cpp include this.
#pragma once
#include "model/validate.h"

namespace strata {

// What an op kind has. Bits of `needs` and `may` are operand positions; everything else has to be absent (-1, or 0 for
// parameters).
struct Kind {
  const char* name;
  uint32_t in_needs, in_may;
  uint32_t out_needs, out_may;
  uint32_t weight_needs, weight_may;
  int32_t n_i, n_f;
};

constexpr const char* kInField[] = {"in[0]", "in[1]", "in[2]", "in[3]"};
constexpr const char* kOutField[] = {"out[0]", "out[1]", "out[2]", "out[3]"};
constexpr const char* kWeightField[] = {"weight[0]", "weight[1]", "weight[2]", "weight[3]", "weight[4]",  "weight[5]",
                                        "weight[6]", "weight[7]", "weight[8]", "weight[9]", "weight[10]", "weight[11]"};

// One op under examination.
struct Check {
  const Plan& plan;
  const strata_op& op;
  Row row;  // complains as "ops (LINEAR)[17]"

  const strata_tensor& tensor(int32_t k) const { return plan.tensors[op.weight[k]]; }
  Status i_range(int32_t k, const char* name, int64_t low, int64_t high) const {
    return row.range(name, op.i[k], low, high);
  }

  Status vector(int32_t k, int64_t n_cols) const {
    if (op.weight[k] < 0) return STRATA_OK;
    if (tensor(k).role != STRATA_ROLE_VECTOR) return row.bad(kWeightField[k], op.weight[k], "this tensor is no vector");
    if (tensor(k).n_cols == n_cols) return STRATA_OK;
    return row.error.fail(STRATA_E_ARGUMENT, "%s[%lld].%s is %d, a vector of %lld; one of %lld is needed", row.table,
                          static_cast<long long>(row.index), kWeightField[k], op.weight[k],
                          static_cast<long long>(tensor(k).n_cols), static_cast<long long>(n_cols));
  }
  Status matrix(int32_t k, int64_t n_mats) const {
    if (tensor(k).role != STRATA_ROLE_MATRIX) return row.bad(kWeightField[k], op.weight[k], "this tensor is no matrix");
    if (tensor(k).n_mats == n_mats) return STRATA_OK;
    return row.error.fail(STRATA_E_ARGUMENT, "%s[%lld].%s is %d, %lld matrices; %lld needed", row.table,
                          static_cast<long long>(row.index), kWeightField[k], op.weight[k],
                          static_cast<long long>(tensor(k).n_mats), static_cast<long long>(n_mats));
  }
  Status in_place() const { return row.equal("out[0]", op.out[0], op.in[0], "the op works in place, and in[0]"); }
  Status tokens(const char* field, int32_t buffer) const {
    return row.equal(field, plan.buffers[buffer].rows, STRATA_ROWS_TOKENS,
                     "the op needs positions: the buffer's `rows` for TOKENS");
  }
};

using CheckFn = Status (*)(const Check& c);

// The kinds with a state, from STRATA_OP_CONV on: null when there is none of this number.
const Kind* state_kind(int32_t kind);
Status check_state_op(const Check& c);

}  // namespace strata
