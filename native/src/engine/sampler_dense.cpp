#include "engine/sampler_dense.h"

#include <string.h>

#include <algorithm>

#include "base/ieee_math.h"

namespace strata {
namespace {

constexpr int64_t kBlock = 1024;  // vocabulary entries of one partial sum

float infinity() { return v_from_bits(static_cast<int32_t>(0x7f800000)); }

// Mass by distance, to find how far a filter can reach before anything is sorted.
class MassByDistance {
 public:
  void add(float distance, double mass) {
    const float bucket = distance * kPerUnit;
    mass_[bucket < static_cast<float>(kBuckets - 1) ? static_cast<int32_t>(bucket) : kBuckets - 1] += mass;
  }
  // A distance within which there is more mass than `wanted`, with room for the rounding of sums.
  float reach(double wanted) const {
    double sum = 0.0;
    for (int32_t b = 0; b < kBuckets - 1; ++b) {
      sum += mass_[b];
      if (sum > wanted * 1.000001) return static_cast<float>(b + 2) / kPerUnit;
    }
    return infinity();
  }

 private:
  static constexpr int32_t kBuckets = 512;
  static constexpr float kPerUnit = 16.0f;
  double mass_[kBuckets] = {};
};

}  // namespace

double exp_all(const SampleArgs& args, const SamplerMemory& memory, const float* x, float largest, float bound) {
  double sum = 0.0;
  for (int64_t first = 0; first < args.n_vocab; first += kBlock) {
    const int64_t n = std::min(kBlock, args.n_vocab - first);
    float* work = memory.work + first;
    const float all = args.vec.exp_sub(x + first, largest, work, n);
    if (bound == -infinity()) {
      sum += static_cast<double>(all);
      continue;
    }
    for (int64_t i = 0; i < n; ++i) {
      if (!(x[first + i] >= bound)) work[i] = 0.0f;
      sum += static_cast<double>(work[i]);
    }
  }
  return sum;
}

float sigma_bound(const Sampling& s) {
  const float n_sigma = s.params().top_n_sigma;
  if (!(n_sigma > 0.0f)) return -infinity();
  double sums[8] = {}, squares[8] = {};
  int64_t count = 0;
  for (int64_t i = 0; i < s.args.n_vocab; ++i) {
    const bool valid = s.logits[i] != -infinity();
    sums[i % 8] += valid ? static_cast<double>(s.logits[i]) : 0.0;
    count += valid ? 1 : 0;
  }
  double sum = 0.0, square = 0.0;
  for (const double part : sums) sum += part;
  const double mean = sum / static_cast<double>(count);
  for (int64_t i = 0; i < s.args.n_vocab; ++i) {
    const double off = s.logits[i] != -infinity() ? static_cast<double>(s.logits[i]) - mean : 0.0;
    squares[i % 8] += off * off;
  }
  for (const double part : squares) square += part;
  const double deviation = __builtin_sqrt(square / static_cast<double>(count));
  return static_cast<float>(static_cast<double>(s.largest) - static_cast<double>(n_sigma) * deviation);
}

int32_t draw_from_all(const Sampling& s, double uniform) {
  const int64_t n_vocab = s.args.n_vocab;
  const float temperature = s.params().temperature;
  double sum = 0.0;
  for (int64_t first = 0; first < n_vocab; first += kBlock) {
    const int64_t n = std::min(kBlock, n_vocab - first);
    float* p = s.memory.work + first;
    for (int64_t i = 0; i < n; ++i) p[i] = (s.logits[first + i] - s.largest) / temperature;
    s.memory.prob[first / kBlock] = static_cast<double>(s.args.vec.exp_sub(p, 0.0f, p, n));
    sum += s.memory.prob[first / kBlock];
  }
  const double target = uniform * sum;
  double mass = 0.0;
  int64_t first = 0;
  while (first + kBlock < n_vocab && mass + s.memory.prob[first / kBlock] <= target) {
    mass += s.memory.prob[first / kBlock];
    first += kBlock;
  }
  // A block's sum and the sum of its values differ in rounding: past its end the last value with any mass is taken.
  int64_t token = -1;
  for (int64_t i = first; i < n_vocab; ++i) {
    if (s.memory.work[i] == 0.0f) continue;
    if (token >= 0 && i >= first + kBlock) break;
    token = i;
    mass += static_cast<double>(s.memory.work[i]);
    if (mass > target) break;
  }
  for (int64_t i = first; token < 0; --i) token = s.memory.work[i] != 0.0f ? i : -1;
  return static_cast<int32_t>(token);
}

CandidateList top_p_of_all(const Sampling& s, float bound) {
  CandidateList list{s.memory.list, 0, s.memory.prob};
  const double mass = exp_all(s.args, s.memory, s.logits, s.largest, bound);
  MassByDistance by_distance;
  for (int64_t i = 0; i < s.args.n_vocab; ++i) {
    if (s.memory.work[i] > 0.0f) by_distance.add(s.largest - s.logits[i], static_cast<double>(s.memory.work[i]));
  }
  const float reach = by_distance.reach(static_cast<double>(s.params().top_p) * mass);
  list.n = select_above(s.logits, s.args.n_vocab, std::max(bound, s.largest - reach), list.data);
  if (list.n < s.min_keep()) list.n = select_best(s.logits, s.args.n_vocab, s.min_keep(), list.data);
  filter_top_p(list, s.params().top_p, s.min_keep(), mass);
  return list;
}

CandidateList typical_of_all(const Sampling& s, float bound) {
  CandidateList list{s.memory.list, 0, s.memory.prob};
  TypicalFacts facts{exp_all(s.args, s.memory, s.logits, s.largest, bound), 0.0, 0.0};
  facts.log_mass = m_log_double(facts.mass);
  for (int64_t i = 0; i < s.args.n_vocab; ++i) {
    if (s.memory.work[i] == 0.0f) continue;
    const double below = static_cast<double>(s.logits[i]) - static_cast<double>(s.largest);
    facts.entropy += static_cast<double>(s.memory.work[i]) / facts.mass * (facts.log_mass - below);
  }
  MassByDistance by_distance;
  const auto distance = [&](float logit) {
    return static_cast<float>(facts.distance(static_cast<double>(logit) - static_cast<double>(s.largest)));
  };
  for (int64_t i = 0; i < s.args.n_vocab; ++i) {
    if (s.memory.work[i] > 0.0f) by_distance.add(distance(s.logits[i]), static_cast<double>(s.memory.work[i]));
  }
  const auto gather = [&](float reach) {
    list.n = 0;
    for (int64_t i = 0; i < s.args.n_vocab; ++i) {
      const bool inside = s.logits[i] >= bound && s.logits[i] != -infinity();
      if (inside && distance(s.logits[i]) <= reach) list.data[list.n++] = {s.logits[i], static_cast<int32_t>(i)};
    }
  };
  gather(by_distance.reach(static_cast<double>(s.params().typical_p) * facts.mass));
  if (list.n < s.min_keep()) gather(infinity());
  sort_candidates(list.data, list.n);
  keep_typical(list, s.params().typical_p, s.min_keep(), s.memory, s.largest, facts);
  return list;
}

void xtc_on_all(Sampling& s, double uniform) {
  const strata_sample& p = s.params();
  if (!(uniform < static_cast<double>(p.xtc_probability))) return;
  const double mass = exp_all(s.args, s.memory, s.logits, s.largest, -infinity());
  int64_t n_candidates = 0;
  for (int64_t i = 0; i < s.args.n_vocab; ++i) n_candidates += s.logits[i] != -infinity() ? 1 : 0;
  // With room for rounding; the filter's own comparison decides.
  const double share = static_cast<double>(p.xtc_threshold) * mass * 0.999999;
  const float bound =
      share > 0.0 ? static_cast<float>(static_cast<double>(s.largest) + m_log_double(share) - 1e-3) : -infinity();
  CandidateList list{s.memory.list, 0, s.memory.prob};
  list.n = select_above(s.logits, s.args.n_vocab, bound, list.data);
  const int64_t first = xtc_count(list, p.xtc_threshold, s.min_keep(), mass, n_candidates);
  if (first == 0) return;
  if (s.logits != s.memory.adjusted)
    memcpy(s.memory.adjusted, s.logits, static_cast<size_t>(s.args.n_vocab) * sizeof(float));
  for (int64_t i = 0; i < first; ++i) s.memory.adjusted[list.data[i].id] = -infinity();
  s.logits = s.memory.adjusted;
  s.largest = list.data[first].logit;
}

}  // namespace strata
