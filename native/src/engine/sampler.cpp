#include "engine/sampler.h"

#include <algorithm>

#include "base/ieee_math.h"
#include "engine/kv.h"
#include "engine/philox.h"
#include "engine/sampler_adjust.h"
#include "engine/sampler_filters.h"

namespace strata {
namespace {

constexpr int64_t kBlock = 1024;       // vocabulary entries of one partial sum
constexpr int32_t kMaxSlots = 4;       // samples drawn at the same time: each holds memory for a whole vocabulary

float infinity() { return v_from_bits(static_cast<int32_t>(0x7f800000)); }

// One sample in work: the logits in force (raw or adjusted) and their largest value.
struct Sampling {
  const SampleArgs& args;
  const SamplerMemory& memory;
  const float* logits;
  float largest;

  const strata_sample& params() const { return args.params; }
  int64_t min_keep() const { return params().min_keep < 1 ? 1 : params().min_keep; }
};

// Sum of exp(x - largest) over values >= bound, in double over blocks; minus infinity counts nothing.
double exp_sum(const SampleArgs& args, const SamplerMemory& memory, const float* x, float largest, float bound) {
  double sum = 0.0;
  for (int64_t first = 0; first < args.n_vocab; first += kBlock) {
    const int64_t n = std::min(kBlock, args.n_vocab - first);
    const float all = args.vec.exp_sub(x + first, largest, memory.work, n);
    if (bound == -infinity()) {
      sum += static_cast<double>(all);
      continue;
    }
    for (int64_t i = 0; i < n; ++i) sum += x[first + i] >= bound ? static_cast<double>(memory.work[i]) : 0.0;
  }
  return sum;
}

// largest - n_sigma * (standard deviation of the logits that are not minus infinity).
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

float min_p_bound(float min_p, float largest) {
  if (!(min_p > 0.0f)) return -infinity();
  return static_cast<float>(static_cast<double>(largest) + m_log_double(static_cast<double>(min_p)));
}

// Draws from the whole vocabulary without sorting it: the cumulative sum runs in order of ids.
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

// Head of the distribution that holds what top-p may keep, found by ever lower bounds: sorting a few hundred candidates
// is cheaper than sorting the vocabulary.
CandidateList top_p_head(const Sampling& s, float bound) {
  CandidateList list{s.memory.list, 0, s.memory.prob};
  const double mass = exp_sum(s.args, s.memory, s.logits, s.largest, bound);
  const double wanted = static_cast<double>(s.params().top_p) * mass;
  for (const float cut : {8.0f, 16.0f, 32.0f, infinity()}) {
    list.n = select_above(s.logits, s.args.n_vocab, std::max(bound, s.largest - cut), list.data);
    if (cut == infinity() || (list.n >= s.min_keep() && list.exponentials() > wanted * 1.000001)) break;
  }
  if (list.n < s.min_keep()) list.n = select_best(s.logits, s.args.n_vocab, s.min_keep(), list.data);
  filter_top_p(list, s.params().top_p, s.min_keep(), mass);
  return list;
}

// Candidates after top-n-sigma, top-k, typical, top-p and min-p.
CandidateList candidates(const Sampling& s) {
  const strata_sample& p = s.params();
  const int64_t min_keep = s.min_keep();
  const float sigma = sigma_bound(s), min_p = min_p_bound(p.min_p, s.largest);
  CandidateList list{s.memory.list, 0, s.memory.prob};
  if (p.top_k > 0) {
    list.n = select_best(s.logits, s.args.n_vocab, std::max(int64_t{p.top_k}, min_keep), list.data);
    filter_bound(list, sigma, min_keep);
  } else if (p.typical_p >= 1.0f && p.top_p < 1.0f) {
    list = top_p_head(s, sigma);
    filter_bound(list, min_p, min_keep);
    return list;
  } else {
    // Without typical and top-p in between, min-p is one more bound.
    const float bound = p.typical_p >= 1.0f ? std::max(sigma, min_p) : sigma;
    list.n = select_above(s.logits, s.args.n_vocab, bound, list.data);
    if (list.n < min_keep) list.n = select_best(s.logits, s.args.n_vocab, min_keep, list.data);
  }
  filter_typical(list, p.typical_p, min_keep, s.memory);
  filter_top_p(list, p.top_p, min_keep, 0.0);
  filter_bound(list, min_p_bound(p.min_p, list.data[0].logit), min_keep);
  return list;
}

int32_t draw_token(const Sampling& s) {
  const strata_sample& p = s.params();
  int64_t first = 0;
  if (p.temperature <= 0.0f || s.largest == infinity()) {
    while (s.logits[first] != s.largest) ++first;
    return static_cast<int32_t>(first);
  }
  const double uniform = philox_uniform(p.seed, p.counter, Draw::token);
  const bool xtc = p.xtc_probability > 0.0f && p.xtc_threshold <= 0.5f;
  const bool filters = p.top_k > 0 || p.top_p < 1.0f || p.min_p > 0.0f || p.typical_p < 1.0f || p.top_n_sigma > 0.0f || xtc;
  if (!filters) return draw_from_all(s, uniform);
  CandidateList list = candidates(s);
  if (xtc) filter_xtc(list, p.xtc_probability, p.xtc_threshold, s.min_keep(), philox_uniform(p.seed, p.counter, Draw::xtc));
  return draw_from_list(list, p.temperature, uniform);
}

// Natural logarithms of the raw distribution.
void add_logprobs(const SampleArgs& args, const SamplerMemory& memory, float largest, strata_sampled& out) {
  const int32_t wanted = args.params.n_logprobs;
  if (wanted < 0) return;
  const double log_sum = static_cast<double>(largest) + m_log_double(exp_sum(args, memory, args.logits, largest, -infinity()));
  out.logprob = static_cast<float>(static_cast<double>(args.logits[out.token]) - log_sum);
  if (wanted == 0) return;
  out.n_top = static_cast<int32_t>(select_best(args.logits, args.n_vocab, std::min(wanted, STRATA_MAX_LOGPROBS), memory.list));
  for (int32_t i = 0; i < out.n_top; ++i) {
    out.top_token[i] = memory.list[i].id;
    out.top_logprob[i] = static_cast<float>(static_cast<double>(memory.list[i].logit) - log_sum);
  }
}

int64_t array_bytes(int64_t n, int64_t size) { return (n * size + 63) / 64 * 64; }

int64_t max_history(int32_t n_kv_blocks) { return int64_t{n_kv_blocks} * STRATA_KV_BLOCK_TOKENS + 1; }

int32_t slots(int32_t n_workers, int32_t n_outputs) { return std::max(1, std::min({n_workers, n_outputs, kMaxSlots})); }

}  // namespace

int64_t SamplerMemory::bytes(int64_t n_vocab, int64_t max_history) {
  const int64_t n = std::max<int64_t>(n_vocab, 1);
  return 2 * array_bytes(n, 4) + array_bytes(n, sizeof(Candidate)) + 2 * array_bytes(n, 8) + 2 * array_bytes(n, 4) +
         array_bytes(max_history, 4);
}

SamplerMemory SamplerMemory::at(uint8_t* memory, int64_t n_vocab, int64_t max_history) {
  const auto take = [&](int64_t n, int64_t size) {
    uint8_t* part = memory;
    memory += array_bytes(n, size);
    return part;
  };
  SamplerMemory m;
  m.adjusted = reinterpret_cast<float*>(take(n_vocab, 4));
  m.work = reinterpret_cast<float*>(take(n_vocab, 4));
  m.list = reinterpret_cast<Candidate*>(take(n_vocab, sizeof(Candidate)));
  m.prob = reinterpret_cast<double*>(take(n_vocab, 8));
  m.score = reinterpret_cast<double*>(take(n_vocab, 8));
  m.order = reinterpret_cast<int32_t*>(take(n_vocab, 4));
  m.counts = reinterpret_cast<int32_t*>(take(n_vocab, 4));
  m.repeats = reinterpret_cast<int32_t*>(take(max_history, 4));
  return m;
}

Status sample_row(const SampleArgs& args, const SamplerMemory& memory, strata_sampled& out) {
  out = strata_sampled{};
  out.token = -1;
  const float raw_largest = args.vec.max(args.logits, args.n_vocab);
  if (raw_largest != raw_largest || raw_largest == infinity() || raw_largest == -infinity()) return STRATA_E_NUMERIC;
  Sampling sampling{args, memory, args.logits, raw_largest};
  if (sample_adjusts(args.params)) {
    STRATA_TRY(adjust_logits(args, memory));
    sampling.logits = memory.adjusted;
    sampling.largest = args.vec.max(memory.adjusted, args.n_vocab);
    if (sampling.largest != sampling.largest || sampling.largest == -infinity()) return STRATA_E_ARGUMENT;
  }
  out.token = draw_token(sampling);
  add_logprobs(args, memory, raw_largest, out);
  return STRATA_OK;
}

int64_t sampler_scratch_bytes(const ScratchQuery& query) {
  const int64_t slot = SamplerMemory::bytes(query.model.plan.n_vocab, max_history(query.n_kv_blocks));
  return scratch_array_bytes<uint8_t>(slots(query.n_workers, query.n_outputs) * slot);
}

Status sample_step(StepContext& ctx, const float* logits, int64_t logits_stride) {
  const strata_step& step = ctx.step;
  const int64_t n_vocab = ctx.plan().n_vocab, history = max_history(ctx.kv.n_blocks());
  const int32_t n_slots = slots(ctx.n_workers(), std::min(ctx.plan().n_outputs_max, step.n_samples));
  const int64_t slot_bytes = SamplerMemory::bytes(n_vocab, history);
  uint8_t* memory = ctx.scratch_array<uint8_t>(n_slots * slot_bytes);
  if (memory == nullptr) return ctx.error.status;
  const auto draw = [&](int64_t i, int32_t slot) {
    const strata_sample& sample = step.samples[i];
    const SampleArgs args{*cpu::vec_math(ctx.tier), logits + sample.output * logits_stride, n_vocab, sample, step.ints, step.floats, history};
    step.sampled_out[i].status = sample_row(args, SamplerMemory::at(memory + slot * slot_bytes, n_vocab, history), step.sampled_out[i]);
  };
  if (n_slots == 1) {
    for (int64_t i = 0; i < step.n_samples; ++i) draw(i, 0);
  } else {
    STRATA_TRY(ctx.pool.parallel([&](int32_t worker) {
      int64_t begin, end;
      while (worker < n_slots && ctx.pool.take(0, step.n_samples, 1, &begin, &end)) draw(begin, worker);
    }));
  }
  for (int32_t i = 0; i < step.n_samples; ++i) {
    const Status status = step.sampled_out[i].status;
    if (status == STRATA_OK) continue;
    const int32_t row = step.output_row[step.samples[i].output];
    return status == STRATA_E_NUMERIC
               ? ctx.error.fail(status, "sample %d: the logits of row %d hold NaN or an infinity", i, row)
               : ctx.error.fail(status, "sample %d (row %d): the mask and the bias allow no token, or a token id is outside the vocabulary", i, row);
  }
  return STRATA_OK;
}

}  // namespace strata
