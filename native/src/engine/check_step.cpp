#include "engine/check_step.h"

#include <cmath>

namespace strata {
namespace {

Status bad(Error& error, const char* field, int64_t index, int64_t value, int64_t low, int64_t high) {
  return error.fail(STRATA_E_ARGUMENT, "step.%s[%lld] is %lld; accepted: %lld to %lld", field, static_cast<long long>(index),
                    static_cast<long long>(value), static_cast<long long>(low), static_cast<long long>(high));
}

Status scalar_range(Error& error, const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return STRATA_OK;
  return error.fail(STRATA_E_ARGUMENT, "step.%s is %lld; accepted: %lld to %lld", field, static_cast<long long>(value),
                    static_cast<long long>(low), static_cast<long long>(high));
}

Status not_null(Error& error, const char* field, const void* pointer, int64_t n) {
  if (n == 0 || pointer != nullptr) return STRATA_OK;
  return error.fail(STRATA_E_ARGUMENT, "step.%s is null; %lld elements are needed", field, static_cast<long long>(n));
}

// One sample under examination.
struct SampleCheck {
  const strata_step& step;
  const strata_sample& sample;
  int32_t index;
  int32_t n_vocab;
  Error& error;

  Status range(const char* field, int64_t value, int64_t low, int64_t high) const {
    if (value >= low && value <= high) return STRATA_OK;
    return error.fail(STRATA_E_ARGUMENT, "step.samples[%d].%s is %lld; accepted: %lld to %lld", index, field,
                      static_cast<long long>(value), static_cast<long long>(low), static_cast<long long>(high));
  }
  Status real(const char* field, float value, float low, float high) const {
    if (value >= low && value <= high) return STRATA_OK;
    return error.fail(STRATA_E_ARGUMENT, "step.samples[%d].%s is %g; accepted: %g to %g", index, field,
                      static_cast<double>(value), static_cast<double>(low), static_cast<double>(high));
  }
  // ints[first .. first + n) exists and holds token ids.
  Status token_list(const char* first_field, const char* n_field, int32_t first, int32_t n) const {
    STRATA_TRY(range(n_field, n, 0, step.n_ints));
    if (n == 0) return STRATA_OK;
    STRATA_TRY(range(first_field, first, 0, step.n_ints - n));
    for (int32_t j = 0; j < n; ++j) {
      const int32_t token = step.ints[first + j];
      if (token < 0 || token >= n_vocab) return bad(error, "ints", first + j, token, 0, n_vocab - 1);
    }
    return STRATA_OK;
  }
  Status numbers() const {
    constexpr float kMax = 3.4e38f;
    STRATA_TRY(range("top_k", sample.top_k, 0, INT32_MAX));
    STRATA_TRY(real("temperature", sample.temperature, -kMax, kMax));
    STRATA_TRY(real("top_p", sample.top_p, 0, 1));
    STRATA_TRY(real("min_p", sample.min_p, 0, 1));
    STRATA_TRY(real("typical_p", sample.typical_p, 0, 1));
    STRATA_TRY(real("top_n_sigma", sample.top_n_sigma, -kMax, kMax));
    STRATA_TRY(real("xtc_probability", sample.xtc_probability, 0, 1));
    STRATA_TRY(real("xtc_threshold", sample.xtc_threshold, 0, 1));
    STRATA_TRY(real("repeat_penalty", sample.repeat_penalty, 1e-30f, kMax));
    STRATA_TRY(real("presence_penalty", sample.presence_penalty, -kMax, kMax));
    STRATA_TRY(real("frequency_penalty", sample.frequency_penalty, -kMax, kMax));
    STRATA_TRY(real("dry_multiplier", sample.dry_multiplier, 0, kMax));
    if (sample.dry_multiplier > 0) STRATA_TRY(real("dry_base", sample.dry_base, 1, kMax));
    STRATA_TRY(range("dry_allowed_length", sample.dry_allowed_length, 0, INT32_MAX));
    STRATA_TRY(range("dry_last_n", sample.dry_last_n, -1, INT32_MAX));
    STRATA_TRY(range("penalty_last_n", sample.penalty_last_n, -1, INT32_MAX));
    STRATA_TRY(range("n_logprobs", sample.n_logprobs, -1, STRATA_MAX_LOGPROBS));
    return range("min_keep", sample.min_keep, 1, INT32_MAX);
  }
  Status pools() const {
    STRATA_TRY(token_list("history_first", "n_history", sample.history_first, sample.n_history));
    STRATA_TRY(token_list("breakers_first", "n_breakers", sample.breakers_first, sample.n_breakers));
    STRATA_TRY(token_list("bias_first", "n_bias", sample.bias_first, sample.n_bias));
    if (sample.n_bias > 0) {
      STRATA_TRY(range("n_bias", sample.n_bias, 0, step.n_floats));
      STRATA_TRY(range("bias_value_first", sample.bias_value_first, 0, step.n_floats - sample.n_bias));
      for (int32_t j = 0; j < sample.n_bias; ++j) {
        const float value = step.floats[sample.bias_value_first + j];
        if (std::isnan(value) || value == INFINITY) {
          return error.fail(STRATA_E_ARGUMENT, "step.floats[%d], a bias, is %g; a finite number or -inf is accepted",
                            sample.bias_value_first + j, static_cast<double>(value));
        }
      }
    }
    const int64_t mask_words = (int64_t{n_vocab} + 31) / 32;
    return range("mask_first", sample.mask_first, -1, step.n_ints - mask_words < -1 ? -1 : step.n_ints - mask_words);
  }
};

}  // namespace

bool StepChecker::open(const Plan& plan, const strata_engine_config& config) {
  plan_ = &plan;
  n_kv_blocks_ = config.n_kv_blocks;
  max_seqs_ = config.max_seqs;
  n_state_slots_ = config.n_state_slots;
  return seq_seen_.resize(max_seqs_) && block_written_.resize(n_kv_blocks_) && block_writer_.resize(n_kv_blocks_) &&
         slot_used_.resize(n_state_slots_);
}

Status StepChecker::check_sizes(const strata_step& step, Error& error) const {
  STRATA_TRY(scalar_range(error, "n_tokens", step.n_tokens, 1, plan_->n_batch));
  STRATA_TRY(scalar_range(error, "n_seqs", step.n_seqs, 1, max_seqs_));
  STRATA_TRY(scalar_range(error, "n_outputs", step.n_outputs, 0, plan_->n_outputs_max));
  STRATA_TRY(scalar_range(error, "n_samples", step.n_samples, 0, step.n_outputs));
  STRATA_TRY(scalar_range(error, "max_blocks", step.max_blocks, 1, INT32_MAX / STRATA_KV_BLOCK_TOKENS));
  STRATA_TRY(scalar_range(error, "n_ints", step.n_ints, 0, INT32_MAX));
  STRATA_TRY(scalar_range(error, "n_floats", step.n_floats, 0, INT32_MAX));
  STRATA_TRY(scalar_range(error, "reserved", step.reserved, 0, 0));
  const bool routing = step.routing_out != nullptr || step.routing_weights_out != nullptr;
  STRATA_TRY(scalar_range(error, "routing_stride", step.routing_stride, routing ? 1 : 0, kMaxRoutingStride));
  STRATA_TRY(not_null(error, "token", step.token, step.n_tokens));
  STRATA_TRY(not_null(error, "pos", step.pos, step.n_tokens));
  STRATA_TRY(not_null(error, "seq", step.seq, step.n_tokens));
  STRATA_TRY(not_null(error, "block_table", step.block_table, step.n_seqs));
  STRATA_TRY(not_null(error, "output_row", step.output_row, step.n_outputs));
  STRATA_TRY(not_null(error, "samples", step.samples, step.n_samples));
  STRATA_TRY(not_null(error, "sampled_out", step.sampled_out, step.n_samples));
  STRATA_TRY(not_null(error, "ints", step.ints, step.n_ints));
  return not_null(error, "floats", step.floats, step.n_floats);
}

Status StepChecker::check_tokens(const strata_step& step, Error& error) {
  ++epoch_;
  for (int32_t t = 0; t < step.n_tokens; ++t) {
    const int32_t seq = step.seq[t], pos = step.pos[t];
    if (step.token[t] < 0 || step.token[t] >= plan_->n_vocab)
      return bad(error, "token", t, step.token[t], 0, plan_->n_vocab - 1);
    if (seq < 0 || seq >= step.n_seqs) return bad(error, "seq", t, seq, 0, step.n_seqs - 1);
    const int64_t positions = int64_t{step.max_blocks} * STRATA_KV_BLOCK_TOKENS;
    if (pos < 0 || pos >= positions) return bad(error, "pos", t, pos, 0, positions - 1);
    const bool goes_on = t > 0 && step.seq[t - 1] == seq;
    if (goes_on && pos != step.pos[t - 1] + 1)
      return bad(error, "pos", t, pos, int64_t{step.pos[t - 1]} + 1, int64_t{step.pos[t - 1]} + 1);
    if (!goes_on && seq_seen_[seq] == epoch_) {
      return error.fail(STRATA_E_ARGUMENT, "step.seq[%d] is %d again; rows of one sequence are adjacent", t, seq);
    }
    seq_seen_[seq] = epoch_;
    const int32_t* blocks = step.block_table + int64_t{seq} * step.max_blocks;
    const int32_t last = pos / STRATA_KV_BLOCK_TOKENS;
    for (int32_t b = goes_on ? last : 0; b <= last; ++b) {
      if (blocks[b] < 0 || blocks[b] >= n_kv_blocks_) {
        return error.fail(STRATA_E_ARGUMENT, "step.block_table[%d][%d] is %d; position %d needs a block from 0 to %d", seq,
                          b, blocks[b], pos, n_kv_blocks_ - 1);
      }
    }
    const int32_t block = blocks[last];
    if (block_written_[block] == epoch_ && block_writer_[block] != seq) {
      return error.fail(STRATA_E_ARGUMENT, "step.block_table[%d][%d] is %d, which sequence %d of this step writes too", seq,
                        last, block, block_writer_[block]);
    }
    block_written_[block] = epoch_;
    block_writer_[block] = seq;
  }
  return STRATA_OK;
}

// Every sequence has a slot of its own.
Status StepChecker::check_slots(const strata_step& step, Error& error) {
  if (plan_->states.size() == 0) return STRATA_OK;
  STRATA_TRY(not_null(error, "state_slot", step.state_slot, step.n_seqs));
  for (int32_t s = 0; s < step.n_seqs; ++s) {
    const int32_t slot = step.state_slot[s];
    if (slot < 0 || slot >= n_state_slots_) return bad(error, "state_slot", s, slot, 0, n_state_slots_ - 1);
    if (slot_used_[slot] == epoch_)
      return error.fail(STRATA_E_ARGUMENT, "step.state_slot[%d] is %d, as of an earlier sequence", s, slot);
    slot_used_[slot] = epoch_;
  }
  return STRATA_OK;
}

Status StepChecker::check_outputs(const strata_step& step, Error& error) const {
  int64_t least = 0;
  for (int32_t i = 0; i < step.n_outputs; ++i) {
    if (step.output_row[i] < least || step.output_row[i] >= step.n_tokens) {
      return bad(error, "output_row", i, step.output_row[i], least, step.n_tokens - 1);
    }
    least = int64_t{step.output_row[i]} + 1;
  }
  return STRATA_OK;
}

Status StepChecker::check_samples(const strata_step& step, Error& error) const {
  int64_t least = 0;
  for (int32_t i = 0; i < step.n_samples; ++i) {
    const SampleCheck sample{step, step.samples[i], i, plan_->n_vocab, error};
    STRATA_TRY(sample.range("output", step.samples[i].output, least, step.n_outputs - 1));
    least = int64_t{step.samples[i].output} + 1;
    STRATA_TRY(sample.numbers());
    STRATA_TRY(sample.pools());
  }
  return STRATA_OK;
}

Status StepChecker::check(const strata_step& step, Error& error) {
  STRATA_TRY(check_sizes(step, error));
  STRATA_TRY(check_tokens(step, error));
  STRATA_TRY(check_slots(step, error));
  STRATA_TRY(check_outputs(step, error));
  return check_samples(step, error);
}

}  // namespace strata
