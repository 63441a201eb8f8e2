// Sampling: from one row of logits to one token, and the log-probabilities that go with it.
//
// Order: bias, mask, penalties, DRY, then (temperature > 0) top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature,
// draw. Greedy (temperature <= 0) takes the largest logit after DRY, the lowest id among equals; filters and XTC play no
// part in it. Each filter sees the distribution that is left by the one before it, normalised anew, and leaves at least
// min_keep candidates. A draw depends on (seed, counter) alone. Bits are the same on every tier and thread count: float32
// exponentials of vecmath over whole vocabularies, double ones over candidates, no libm.
#pragma once
#include "cpu/vecmath.h"
#include "engine/step.h"

namespace strata {

struct Candidate {
  float logit;
  int32_t id;
};
// The order of candidates: larger logit first, then lower id.
inline bool candidate_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Memory of one sample in work, each array of n_vocab elements unless stated otherwise.
struct SamplerMemory {
  float* adjusted;
  float* work;
  Candidate* list;
  double* prob;
  double* score;
  int32_t* order;
  int32_t* counts;   // used by token id: initialised where a sample looks, and nowhere else
  int32_t* repeats;  // [max_history]

  static int64_t bytes(int64_t n_vocab, int64_t max_history);
  static SamplerMemory at(uint8_t* memory, int64_t n_vocab, int64_t max_history);
};

struct SampleArgs {
  const cpu::VecMath& vec;
  const float* logits;  // raw, not changed
  int64_t n_vocab;
  const strata_sample& params;
  const int32_t* ints;  // pools of strata_step
  const float* floats;
  int64_t max_history;  // DRY looks at no more tokens than these
};

// STRATA_E_NUMERIC: the logits hold NaN or plus infinity, or are minus infinity alone. STRATA_E_ARGUMENT: the bias and the
// mask allow no token, or the history names a token that does not exist. out.token is then -1.
Status sample_row(const SampleArgs& args, const SamplerMemory& memory, strata_sampled& out);

int64_t sampler_scratch_bytes(const ScratchQuery& query);
// Fills sampled_out from rows of logits. A sample that fails has its status and token -1; the others are drawn all the
// same. Returns the first failure's status with its row named in ctx.error.
Status sample_step(StepContext& ctx, const float* logits, int64_t logits_stride);

}  // namespace strata
