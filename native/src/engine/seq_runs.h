// The rows of a step by sequence: what ops with a state walk in order.
#pragma once
#include "engine/state.h"
#include "engine/step.h"

namespace strata {

// Consecutive rows of one sequence, and the state that they update.
struct SeqRun {
  int32_t row, n_rows;
  float* state;
};

struct SeqRuns {
  SeqRun* runs = nullptr;
  int64_t n = 0;

  static int64_t scratch(const ScratchQuery& query) { return scratch_array_bytes<SeqRun>(query.max_seqs); }
  // False: see ctx.error.
  bool find(StepContext& ctx, int32_t state) {
    const strata_step& step = ctx.step;
    runs = ctx.scratch_array<SeqRun>(step.n_seqs);
    if (runs == nullptr) return false;
    for (int32_t first = 0, end; first < step.n_tokens; first = end) {
      for (end = first + 1; end < step.n_tokens && step.seq[end] == step.seq[first];) ++end;
      runs[n++] = {first, end - first, ctx.states.of(step.state_slot[step.seq[first]], state)};
    }
    return true;
  }
};

}  // namespace strata
