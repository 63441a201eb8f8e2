#include "engine/sampler_adjust.h"

#include <string.h>

#include "base/ieee_math.h"

namespace strata {
namespace {

float minus_infinity() { return v_from_bits(static_cast<int32_t>(0xff800000)); }

bool wants_penalties(const strata_sample& p) {
  return p.penalty_last_n != 0 && (p.repeat_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f);
}
bool wants_dry(const strata_sample& p) { return p.dry_multiplier != 0.0f && p.dry_base >= 1.0f && p.dry_last_n != 0; }

// The newest `last_n` tokens of the history, -1: all.
struct Recent {
  const int32_t* tokens;  // oldest first
  int64_t n;

  Recent(const SampleArgs& args, int64_t last_n) {
    n = args.params.n_history;
    if (last_n >= 0 && n > last_n) n = last_n;
    tokens = args.ints + args.params.history_first + args.params.n_history - n;
  }
  // Token i counted from the newest one.
  int32_t back(int64_t i) const { return tokens[n - 1 - i]; }
};

bool ids_exist(const int32_t* ids, int64_t n, int64_t n_vocab) {
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0 || ids[i] >= n_vocab) return false;
  }
  return true;
}

void add_bias(const SampleArgs& args, float* logits) {
  const strata_sample& p = args.params;
  for (int32_t j = 0; j < p.n_bias; ++j) logits[args.ints[p.bias_first + j]] += args.floats[p.bias_value_first + j];
}

void apply_mask(const SampleArgs& args, float* logits) {
  if (args.params.mask_first < 0) return;
  const int32_t* words = args.ints + args.params.mask_first;
  for (int64_t first = 0; first < args.n_vocab; first += 32) {
    const uint32_t word = static_cast<uint32_t>(words[first / 32]);
    if (word == 0xffffffffu) continue;
    const int64_t n = args.n_vocab - first < 32 ? args.n_vocab - first : 32;
    for (int64_t bit = 0; bit < n; ++bit) {
      if ((word >> bit & 1u) == 0) logits[first + bit] = minus_infinity();
    }
  }
}

void apply_penalties(const SampleArgs& args, float* logits, int32_t* counts) {
  const strata_sample& p = args.params;
  const Recent recent(args, p.penalty_last_n);
  for (int64_t i = 0; i < recent.n; ++i) counts[recent.tokens[i]] = 0;
  for (int64_t i = 0; i < recent.n; ++i) ++counts[recent.tokens[i]];
  for (int64_t i = 0; i < recent.n; ++i) {
    const int32_t token = recent.tokens[i];
    if (counts[token] == 0) continue;  // done already
    const float count = static_cast<float>(counts[token]);
    counts[token] = 0;
    float& logit = logits[token];
    logit = logit > 0.0f ? logit / p.repeat_penalty : logit * p.repeat_penalty;
    logit = logit - (count * p.frequency_penalty + p.presence_penalty);
  }
}

// repeats[k] = how many tokens back from token k equal those back from token 0 (the newest), for k >= 1: the Z function
// of the reversed history.
void find_repeats(const Recent& recent, int32_t* repeats) {
  int64_t left = 0, right = 0;  // the match that reaches farthest covers [left, right)
  for (int64_t k = 1; k < recent.n; ++k) {
    int64_t length = 0;
    if (k < right) length = repeats[k - left] < right - k ? repeats[k - left] : right - k;
    while (k + length < recent.n && recent.back(length) == recent.back(k + length)) ++length;
    repeats[k] = static_cast<int32_t>(length);
    if (k + length > right) {
      left = k;
      right = k + length;
    }
  }
}

// Tokens since the newest sequence breaker: no repeat reaches farther back.
int64_t repeat_limit(const SampleArgs& args, const Recent& recent, int32_t* marks) {
  const strata_sample& p = args.params;
  const int32_t* breakers = args.ints + p.breakers_first;
  for (int64_t i = 0; i < recent.n; ++i) marks[recent.tokens[i]] = 0;
  for (int32_t j = 0; j < p.n_breakers; ++j) marks[breakers[j]] = 1;
  for (int64_t i = 0; i < recent.n; ++i) {
    if (marks[recent.back(i)] != 0) return i;
  }
  return recent.n;
}

// multiplier * base^exponent, kept finite.
float dry_penalty(const strata_sample& p, int64_t exponent) {
  constexpr double kMost = 3.0e38;
  double penalty = static_cast<double>(p.dry_multiplier);
  for (int64_t i = 0; i < exponent && penalty < kMost && penalty > -kMost && p.dry_base > 1.0f; ++i) {
    penalty *= static_cast<double>(p.dry_base);
  }
  penalty = penalty > kMost ? kMost : penalty < -kMost ? -kMost : penalty;
  return static_cast<float>(penalty);
}

// DRY: a token that would continue a repeat of the newest tokens is punished by the repeat's length.
void apply_dry(const SampleArgs& args, float* logits, const SamplerMemory& memory) {
  const strata_sample& p = args.params;
  const int64_t last_n = p.dry_last_n < 0 || p.dry_last_n > args.max_history ? args.max_history : p.dry_last_n;
  const Recent recent(args, last_n);
  if (recent.n <= p.dry_allowed_length) return;
  const int64_t limit = repeat_limit(args, recent, memory.counts);
  if (limit < p.dry_allowed_length) return;
  find_repeats(recent, memory.repeats);
  int32_t* longest = memory.counts;
  for (int64_t i = 0; i < recent.n; ++i) longest[recent.tokens[i]] = -1;
  for (int64_t k = 1; k < recent.n; ++k) {
    const int32_t length = static_cast<int32_t>(memory.repeats[k] < limit ? memory.repeats[k] : limit);
    if (length < p.dry_allowed_length) continue;
    int32_t& most = longest[recent.back(k - 1)];  // the token that came after that repeat
    if (length > most) most = length;
  }
  for (int64_t i = 0; i < recent.n; ++i) {
    const int32_t token = recent.tokens[i];
    if (longest[token] < 0) continue;
    logits[token] = logits[token] - dry_penalty(p, longest[token] - p.dry_allowed_length);
    longest[token] = -1;
  }
}

}  // namespace

bool sample_adjusts(const strata_sample& params) {
  return params.n_bias > 0 || params.mask_first >= 0 || wants_penalties(params) || wants_dry(params);
}

Status adjust_logits(const SampleArgs& args, const SamplerMemory& memory) {
  const strata_sample& p = args.params;
  if (!ids_exist(args.ints + p.bias_first, p.n_bias, args.n_vocab)) return STRATA_E_ARGUMENT;
  if (!ids_exist(args.ints + p.history_first, p.n_history, args.n_vocab)) return STRATA_E_ARGUMENT;
  if (!ids_exist(args.ints + p.breakers_first, p.n_breakers, args.n_vocab)) return STRATA_E_ARGUMENT;
  memcpy(memory.adjusted, args.logits, static_cast<size_t>(args.n_vocab) * sizeof(float));
  add_bias(args, memory.adjusted);
  apply_mask(args, memory.adjusted);
  if (wants_penalties(p)) apply_penalties(args, memory.adjusted, memory.counts);
  if (wants_dry(p)) apply_dry(args, memory.adjusted, memory);
  return STRATA_OK;
}

}  // namespace strata
