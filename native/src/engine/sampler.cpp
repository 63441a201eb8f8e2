#include "engine/sampler.h"

#include <algorithm>

#include "base/ieee_math.h"
#include "engine/kv.h"
#include "engine/philox.h"
#include "engine/sampler_adjust.h"
#include "engine/sampler_dense.h"

namespace strata {
namespace {

constexpr int32_t kMaxSlots = 4;  // samples drawn at the same time: each holds memory for a whole vocabulary

float infinity() { return v_from_bits(static_cast<int32_t>(0x7f800000)); }

float min_p_bound(float min_p, float largest) {
  if (!(min_p > 0.0f)) return -infinity();
  return static_cast<float>(static_cast<double>(largest) + m_log_double(static_cast<double>(min_p)));
}

// Candidates after top-n-sigma, top-k, typical, top-p and min-p.
CandidateList candidates(const Sampling& s) {
  const strata_sample& p = s.params();
  const int64_t min_keep = s.min_keep();
  float sigma = sigma_bound(s);
  CandidateList list{s.memory.list, 0, s.memory.prob};
  if (sigma > -infinity() && min_keep > 1) {
    list.n = select_best(s.logits, s.args.n_vocab, min_keep, list.data);
    sigma = std::min(sigma, list.data[list.n - 1].logit);
  }
  if (p.top_k > 0) {
    list.n = select_best(s.logits, s.args.n_vocab, std::max(int64_t{p.top_k}, min_keep), list.data);
    filter_bound(list, sigma, min_keep);
    filter_typical(list, p.typical_p, min_keep, s.memory);
    filter_top_p(list, p.top_p, min_keep, 0.0);
  } else if (p.typical_p < 1.0f) {
    list = typical_of_all(s, sigma);
    filter_top_p(list, p.top_p, min_keep, 0.0);
  } else if (p.top_p < 1.0f) {
    list = top_p_of_all(s, sigma);
  } else {
    // Nothing stands between them: min-p is one more bound.
    list.n = select_above(s.logits, s.args.n_vocab, std::max(sigma, min_p_bound(p.min_p, s.largest)), list.data);
    if (list.n < min_keep) list.n = select_best(s.logits, s.args.n_vocab, min_keep, list.data);
  }
  filter_bound(list, min_p_bound(p.min_p, list.data[0].logit), min_keep);
  return list;
}

int32_t draw_token(Sampling& s) {
  const strata_sample& p = s.params();
  int64_t first = 0;
  if (p.temperature <= 0.0f || s.largest == infinity()) {
    while (s.logits[first] != s.largest) ++first;
    return static_cast<int32_t>(first);
  }
  const double uniform = philox_uniform(p.seed, p.counter, Draw::token);
  const bool xtc = p.xtc_probability > 0.0f && p.xtc_threshold <= 0.5f;
  const double xtc_uniform = xtc ? philox_uniform(p.seed, p.counter, Draw::xtc) : 1.0;
  const bool filters = p.top_k > 0 || p.top_p < 1.0f || p.min_p > 0.0f || p.typical_p < 1.0f || p.top_n_sigma > 0.0f;
  if (!filters) {
    if (xtc) xtc_on_all(s, xtc_uniform);
    return draw_from_all(s, uniform);
  }
  CandidateList list = candidates(s);
  if (xtc) filter_xtc(list, p.xtc_probability, p.xtc_threshold, s.min_keep(), xtc_uniform);
  return draw_from_list(list, p.temperature, uniform);
}

// Natural logarithms of the raw distribution.
void add_logprobs(const SampleArgs& args, const SamplerMemory& memory, float largest, strata_sampled& out) {
  const int32_t wanted = args.params.n_logprobs;
  if (wanted < 0) return;
  const double log_sum =
      static_cast<double>(largest) + m_log_double(exp_all(args, memory, args.logits, largest, -infinity()));
  out.logprob = static_cast<float>(static_cast<double>(args.logits[out.token]) - log_sum);
  if (wanted == 0) return;
  out.n_top =
      static_cast<int32_t>(select_best(args.logits, args.n_vocab, std::min(wanted, STRATA_MAX_LOGPROBS), memory.list));
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
    const SampleArgs args{
        *cpu::vec_math(ctx.tier), logits + sample.output * logits_stride, n_vocab, sample, step.ints, step.floats, history};
    step.sampled_out[i].status =
        sample_row(args, SamplerMemory::at(memory + slot * slot_bytes, n_vocab, history), step.sampled_out[i]);
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
               : ctx.error.fail(
                     status,
                     "sample %d (row %d): the mask and the bias allow no token, or a token id is outside the vocabulary", i,
                     row);
  }
  return STRATA_OK;
}

}  // namespace strata
