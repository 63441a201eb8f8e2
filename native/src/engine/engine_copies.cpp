// What callers do between steps: copies of cache blocks and states, and expert slots.
#include <string.h>

#include "engine/engine.h"

namespace strata {
// Under the mutex: the engine lives and no step is queued or running.
Status Engine::check_idle(Error& error) const {
  if (dead_.load(std::memory_order_relaxed)) return error.fail(STRATA_E_STATE, "the engine is dead: %s", dead_text_);
  for (uint64_t t = poll_ticket_; t != next_ticket_; ++t) {
    if (slots_[t % static_cast<uint64_t>(n_slots_)].state != State::done) {
      return error.fail(STRATA_E_STATE, "step %llu has not finished; this is done between steps only",
                        static_cast<unsigned long long>(t));
    }
  }
  return STRATA_OK;
}

// Under the mutex: both numbers are below n, and nothing runs.
Status Engine::check_copy(int32_t from, int32_t to, int32_t n, Error& error) const {
  const int32_t last = n - 1;
  if (from < 0 || from > last) return error.fail(STRATA_E_ARGUMENT, "from is %d; accepted: 0 to %d", from, last);
  if (to < 0 || to > last) return error.fail(STRATA_E_ARGUMENT, "to is %d; accepted: 0 to %d", to, last);
  return check_idle(error);
}

Status Engine::kv_copy(int32_t from, int32_t to, Error& error) {
  Lock lock(mutex_);
  STRATA_TRY(check_copy(from, to, config_.n_kv_blocks, error));
  if (side_.used()) return side_.device().kv_copy(from, to, error);
  kv_.copy_block(from, to);
  return STRATA_OK;
}

Status Engine::state_copy(int32_t from, int32_t to, Error& error) {
  Lock lock(mutex_);
  STRATA_TRY(check_copy(from, to, config_.n_state_slots, error));
  if (side_.used()) return side_.device().state_copy(from, to, error);
  states_.copy_slot(from, to);
  return STRATA_OK;
}

Status Engine::experts_copy(int32_t set, int32_t expert, int32_t slot, uint64_t* number, Error& error) {
  Lock lock(mutex_);
  if (dead_.load(std::memory_order_relaxed)) return error.fail(STRATA_E_STATE, "the engine is dead: %s", dead_text_);
  if (!side_.used()) return error.fail(STRATA_E_ARGUMENT, "the engine was opened without expert slots");
  return side_.copy(set, expert, slot, number, error);
}

Status Engine::experts_copied(uint64_t* number, Error& error) {
  Lock lock(mutex_);
  if (!side_.used()) return error.fail(STRATA_E_ARGUMENT, "the engine was opened without expert slots");
  *number = side_.copied();
  return STRATA_OK;
}

Status Engine::experts_commit(const strata_slot_entry* entries, int32_t n, Error& error) {
  Lock lock(mutex_);
  if (!side_.used()) return error.fail(STRATA_E_ARGUMENT, "the engine was opened without expert slots");
  STRATA_TRY(check_idle(error));
  return side_.commit(entries, n, error);
}

Status Engine::handoffs(int32_t kind, int64_t* bins, Error& error) const {
  if (kind < 0 || kind >= Handoffs::kKinds)
    return error.fail(STRATA_E_ARGUMENT, "kind is %d; accepted: 0 to %d", kind, Handoffs::kKinds - 1);
  for (int32_t i = 0; i < STRATA_HANDOFF_BINS; ++i) bins[i] = side_.handoffs().bins[kind][i].load(std::memory_order_relaxed);
  return STRATA_OK;
}

}  // namespace strata
