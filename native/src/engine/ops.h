// The vocabulary: one function and one scratch plan for every op kind.
#pragma once
#include "engine/step.h"

namespace strata {

// Runs one op for the step's rows. A region's status is returned as it is; other failures set ctx.error.
using OpFn = Status (*)(StepContext& ctx, const strata_op& op);
// Upper bound of the scratch that the op takes for steps up to the query's sizes; null: none.
using OpScratchFn = int64_t (*)(const ScratchQuery& query, const strata_op& op);

struct OpEntry {
  OpFn run;
  OpScratchFn scratch_bytes;
};

// Null when the kind is unknown.
const OpEntry* op_function(int32_t kind);

// What all ops of a step share (rotary angles): the walk gives ctx.tables that many bytes, 64-byte aligned, and calls fill
// before the first op.
int64_t step_tables_bytes(const ScratchQuery& query);
Status step_tables_fill(StepContext& ctx);
// cos[n_rot / 2], then sin[n_rot / 2], magnitude included, of token row t.
const float* step_rope_row(const StepContext& ctx, int32_t table, int64_t t);

}  // namespace strata
