// The filters that work on a list of candidates sorted by candidate_before, and the draw.
#pragma once
#include "engine/sampler.h"

namespace strata {

struct CandidateList {
  Candidate* data;
  int64_t n;
  double* prob;  // [n] scratch of the filters

  // prob[i] = exp(logit_i - logit_0); returns their sum.
  double exponentials() const;
};

// The best `limit` values that are not minus infinity, sorted, into `list`; returns their number.
int64_t select_best(const float* logits, int64_t n, int64_t limit, Candidate* list);
// All values >= bound that are not minus infinity, sorted, into `list`; returns their number.
int64_t select_above(const float* logits, int64_t n, float bound, Candidate* list);
void sort_candidates(Candidate* list, int64_t n);

// `mass`: sum of exp(logit - logit_0) over the distribution that the list is the head of; 0: over the list itself.
void filter_top_p(CandidateList& list, float top_p, int64_t min_keep, double mass);
// What locally typical sampling knows of a distribution of weights exp(logit - largest).
struct TypicalFacts {
  double mass, log_mass, entropy;

  // Between the surprise -log p and the entropy; below = logit - largest.
  double distance(double below) const {
    const double surprise = log_mass - below;
    return surprise < entropy ? entropy - surprise : surprise - entropy;
  }
};
// Candidates whose surprise is nearest to the entropy, until their mass exceeds typical_p.
void filter_typical(CandidateList& list, float typical_p, int64_t min_keep, const SamplerMemory& memory);
// The same for a part of a larger distribution that holds all that is kept.
void keep_typical(CandidateList& list, float typical_p, int64_t min_keep, const SamplerMemory& memory, float largest,
                  const TypicalFacts& facts);
// Candidates below `bound` leave.
void filter_bound(CandidateList& list, float bound, int64_t min_keep);
// "Exclude top choices": when uniform < probability, all candidates at or above the threshold but the last of them leave.
void filter_xtc(CandidateList& list, float probability, float threshold, int64_t min_keep, double uniform);
// How many candidates it removes: `list` is the head of n_all candidates with this mass, down to the threshold at least.
int64_t xtc_count(const CandidateList& list, float threshold, int64_t min_keep, double mass, int64_t n_all);
int32_t draw_from_list(const CandidateList& list, float temperature, double uniform);

}  // namespace strata
