#include "engine/state.h"

#include <string.h>

namespace strata {
namespace {

// Where a state begins that follows `end` bytes of others; end moves behind it. False: the number does not fit.
bool place(const strata_state& state, int64_t& offset, int64_t& end) {
  offset = end;
  int64_t bytes;
  if (__builtin_mul_overflow(state.n_floats, static_cast<int64_t>(sizeof(float)), &bytes)) return false;
  bytes = round_up(bytes, 64);
  return bytes >= 0 && !__builtin_add_overflow(end, bytes, &end);
}

}  // namespace

int64_t StateStore::measure_bytes(const Plan& plan, int32_t n_slots) {
  int64_t end = 0, offset, bytes;
  for (const strata_state& state : plan.states) {
    if (!place(state, offset, end)) return -1;
  }
  return __builtin_mul_overflow(end, int64_t{n_slots}, &bytes) ? -1 : bytes;
}

Status StateStore::open(const Plan& plan, int32_t n_slots, Error& error) {
  const int64_t bytes = measure_bytes(plan, n_slots);
  if (bytes < 0 || !offsets_.resize(plan.states.size()) || !reached_.resize(n_slots) || !arena_.open(bytes)) {
    return error.fail(STRATA_E_MEMORY, "no memory for the states of %d sequences: %lld bytes", n_slots,
                      static_cast<long long>(bytes));
  }
  if (bytes > 0) memset(arena_.data(), 0, static_cast<size_t>(bytes));  // touched now, as the KV cache is
  for (int64_t k = 0; k < offsets_.size(); ++k) place(plan.states[k], offsets_[k], slot_bytes_);
  for (int32_t& reached : reached_) reached = -1;
  return STRATA_OK;
}

Status StateStore::begin_step(const strata_step& step, Error& error) {
  if (offsets_.size() == 0) return STRATA_OK;
  for (int32_t t = 0; t < step.n_tokens; ++t) {
    if (t > 0 && step.seq[t] == step.seq[t - 1]) continue;
    const int32_t slot = step.state_slot[step.seq[t]], pos = step.pos[t];
    if (pos != 0 && reached_[slot] != pos) {
      return error.fail(STRATA_E_STATE, "step.pos[%d] is %d, but the states of slot %d have reached position %d", t, pos,
                        slot, reached_[slot]);
    }
  }
  for (int32_t t = 0; t < step.n_tokens; ++t) {
    if (t > 0 && step.seq[t] == step.seq[t - 1]) continue;
    const int32_t slot = step.state_slot[step.seq[t]];
    if (step.pos[t] == 0) memset(arena_.data() + slot * slot_bytes_, 0, static_cast<size_t>(slot_bytes_));
    reached_[slot] = -1;
  }
  return STRATA_OK;
}

void StateStore::end_step(const strata_step& step) {
  if (offsets_.size() == 0) return;
  for (int32_t t = 0; t < step.n_tokens; ++t) reached_[step.state_slot[step.seq[t]]] = step.pos[t] + 1;
}

void StateStore::copy_slot(int32_t from, int32_t to) {
  if (from == to) return;
  if (slot_bytes_ > 0)
    memcpy(arena_.data() + to * slot_bytes_, arena_.data() + from * slot_bytes_, static_cast<size_t>(slot_bytes_));
  reached_[to] = reached_[from];
}

}  // namespace strata
