#include "engine/sampler_filters.h"

#include <algorithm>

#include "base/ieee_math.h"

namespace strata {
namespace {

float minus_infinity() { return v_from_bits(static_cast<int32_t>(0xff800000)); }
// m_exp_double holds for |x| <= 700; e^-700 is as good as nothing.
double exp_bounded(double x) { return m_exp_double(x < -700.0 ? -700.0 : x); }

}  // namespace

double CandidateList::exponentials() const {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    prob[i] = exp_bounded(static_cast<double>(data[i].logit) - static_cast<double>(data[0].logit));
    sum += prob[i];
  }
  return sum;
}

void sort_candidates(Candidate* list, int64_t n) { std::sort(list, list + n, candidate_before); }

// A heap with the worst candidate on top; ids ascend, so that an equal later value never gets in.
int64_t select_best(const float* logits, int64_t n, int64_t limit, Candidate* list) {
  int64_t kept = 0, i = 0;
  for (; i < n && kept < limit; ++i) {
    if (logits[i] != minus_infinity()) list[kept++] = {logits[i], static_cast<int32_t>(i)};
  }
  if (i < n && kept > 0) {
    std::make_heap(list, list + kept, candidate_before);
    float worst = list[0].logit;
    for (; i < n; ++i) {
      if (!(logits[i] > worst)) continue;
      std::pop_heap(list, list + kept, candidate_before);
      list[kept - 1] = {logits[i], static_cast<int32_t>(i)};
      std::push_heap(list, list + kept, candidate_before);
      worst = list[0].logit;
    }
  }
  sort_candidates(list, kept);
  return kept;
}

int64_t select_above(const float* logits, int64_t n, float bound, Candidate* list) {
  int64_t kept = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (logits[i] >= bound && logits[i] != minus_infinity()) list[kept++] = {logits[i], static_cast<int32_t>(i)};
  }
  sort_candidates(list, kept);
  return kept;
}

void filter_top_p(CandidateList& list, float top_p, int64_t min_keep, double mass) {
  if (top_p >= 1.0f || list.n == 0) return;
  const double own = list.exponentials();
  const double wanted = static_cast<double>(top_p) * (mass > 0.0 ? mass : own);
  double sum = 0.0;
  for (int64_t i = 0; i < list.n; ++i) {
    sum += list.prob[i];
    if (sum >= wanted && i + 1 >= min_keep) {
      list.n = i + 1;
      return;
    }
  }
}

void filter_typical(CandidateList& list, float typical_p, int64_t min_keep, const SamplerMemory& memory) {
  if (typical_p >= 1.0f || list.n == 0) return;
  const float largest = list.data[0].logit;
  TypicalFacts facts{list.exponentials(), 0.0, 0.0};
  facts.log_mass = m_log_double(facts.mass);
  for (int64_t i = 0; i < list.n; ++i) {
    const double below = static_cast<double>(list.data[i].logit) - static_cast<double>(largest);
    facts.entropy += list.prob[i] / facts.mass * (facts.log_mass - below);
  }
  keep_typical(list, typical_p, min_keep, memory, largest, facts);
}

void keep_typical(CandidateList& list, float typical_p, int64_t min_keep, const SamplerMemory& memory, float largest,
                  const TypicalFacts& facts) {
  for (int64_t i = 0; i < list.n; ++i) {
    const double below = static_cast<double>(list.data[i].logit) - static_cast<double>(largest);
    list.prob[i] = exp_bounded(below);
    memory.score[i] = facts.distance(below);
    memory.order[i] = static_cast<int32_t>(i);
  }
  std::sort(memory.order, memory.order + list.n, [&](int32_t a, int32_t b) {
    return memory.score[a] < memory.score[b] || (memory.score[a] == memory.score[b] && a < b);
  });
  int64_t kept = list.n;
  double mass = 0.0;
  for (int64_t i = 0; i < list.n; ++i) {
    mass += list.prob[memory.order[i]] / facts.mass;
    if (mass > static_cast<double>(typical_p) && i + 1 >= min_keep) {
      kept = i + 1;
      break;
    }
  }
  std::sort(memory.order, memory.order + kept);
  for (int64_t i = 0; i < kept; ++i) list.data[i] = list.data[memory.order[i]];
  list.n = kept;
}

void filter_bound(CandidateList& list, float bound, int64_t min_keep) {
  while (list.n > min_keep && list.data[list.n - 1].logit < bound) --list.n;
}

int64_t xtc_count(const CandidateList& list, float threshold, int64_t min_keep, double mass, int64_t n_all) {
  if (list.n < 2) return 0;
  list.exponentials();
  int64_t last = 0;
  while (last + 1 < list.n && list.prob[last + 1] >= static_cast<double>(threshold) * mass) ++last;
  return n_all - last < min_keep ? 0 : last;
}

void filter_xtc(CandidateList& list, float probability, float threshold, int64_t min_keep, double uniform) {
  if (!(uniform < static_cast<double>(probability)) || list.n < 2) return;
  const int64_t first = xtc_count(list, threshold, min_keep, list.exponentials(), list.n);
  for (int64_t i = first; i < list.n; ++i) list.data[i - first] = list.data[i];
  list.n -= first;
}

int32_t draw_from_list(const CandidateList& list, float temperature, double uniform) {
  double sum = 0.0;
  for (int64_t i = 0; i < list.n; ++i) {
    const double below = static_cast<double>(list.data[i].logit) - static_cast<double>(list.data[0].logit);
    list.prob[i] = exp_bounded(below / static_cast<double>(temperature));
    sum += list.prob[i];
  }
  const double target = uniform * sum;
  double mass = 0.0;
  for (int64_t i = 0; i < list.n; ++i) {
    mass += list.prob[i];
    if (mass > target) return list.data[i].id;
  }
  return list.data[list.n - 1].id;
}

}  // namespace strata
