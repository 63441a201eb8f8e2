// The walk: runs a plan's ops for one step.
#pragma once
#include <atomic>

#include "engine/step.h"

namespace strata {

// What poison mode fills memory with: a quiet NaN that no op writes by itself.
constexpr uint32_t kPoison = 0x7fc00000u;
void poison_fill(uint8_t* bytes, int64_t n_bytes);

// Where the walk is, for the health of the engine and for the text about a lost worker. Read by any thread.
struct WalkPlace {
  std::atomic<int32_t> op{-1}, layer{-1};
  std::atomic<int64_t> heartbeat_ns{0};
};

struct WalkConfig {
  bool poison = false;
  int64_t deadline_ns = 0;  // of the monotonic clock; 0: none
};

// Bytes of scratch for the plan's ops and the sampler, and of the step's tables.
int64_t walk_scratch_bytes(const ScratchQuery& query);
int64_t walk_tables_bytes(const ScratchQuery& query);

// The walk's parts, for those who run a step's ops by themselves. begin: poison, tables, states. Texts of failures are in
// ctx.error.
Status walk_begin(StepContext& ctx, const WalkConfig& config);
Status walk_op(StepContext& ctx, const WalkConfig& config, WalkPlace& place, int64_t index);
// In poison mode, for an op that was run by other means: STRATA_E_NUMERIC when it left a NaN.
Status walk_check_op(StepContext& ctx, const WalkConfig& config, int64_t index);
// Values of a step that reaches no output: no token, no routing.
void walk_prepare_outputs(const StepContext& ctx);
// One token's selection row (n_used ids, n_used weights) of a set's EXPERTS op into the step's routing arrays.
void walk_note_routing(const StepContext& ctx, int32_t set_id, int64_t token, const int32_t* selection);
// Logits, NaN checks and samples, from the logits in ctx.activations.
Status walk_finish_outputs(StepContext& ctx, const WalkConfig& config, WalkPlace& place, int64_t* sample_ns);

// Runs the ops, then fills the step's outputs. sample_ns: the part of it that drew tokens. On failure ctx.error has the
// text.
Status walk_step(StepContext& ctx, const WalkConfig& config, WalkPlace& place, int64_t* sample_ns);

}  // namespace strata
