// Passes over the whole vocabulary: what sampling does before (or without) a sorted list of candidates.
#pragma once
#include "engine/sampler_filters.h"

namespace strata {

// One sample in work: the logits in force (raw or adjusted) and their largest value, which is finite.
struct Sampling {
  const SampleArgs& args;
  const SamplerMemory& memory;
  const float* logits;
  float largest;

  const strata_sample& params() const { return args.params; }
  int64_t min_keep() const { return params().min_keep < 1 ? 1 : params().min_keep; }
};

// memory.work[i] = exp(x_i - largest) where x_i >= bound, else 0; returns their sum, in double over blocks.
double exp_all(const SampleArgs& args, const SamplerMemory& memory, const float* x, float largest, float bound);
// largest - n_sigma * (standard deviation of the logits that are not minus infinity); minus infinity when off.
float sigma_bound(const Sampling& s);
// Draws without sorting: the cumulative sum runs in order of ids.
int32_t draw_from_all(const Sampling& s, double uniform);

// Head of the distribution of the logits >= bound that holds all that top-p keeps, then top-p itself: sorting a few
// hundred candidates is cheaper than sorting the vocabulary.
CandidateList top_p_of_all(const Sampling& s, float bound);
// The same for typical.
CandidateList typical_of_all(const Sampling& s, float bound);
// XTC when no other filter is in force: makes the excluded logits minus infinity, in memory.adjusted.
void xtc_on_all(Sampling& s, double uniform);

}  // namespace strata
