// The recurrent states of sequences: slots of float32 values, all states of one sequence next to each other.
//
// Memory map: [slot][state of the plan's table, each begun at a multiple of 64 bytes]. A slot also knows the position that
// it has reached, so that a state never meets a token that does not follow it: a step that fails half-way leaves its
// slots at no position, and only position 0, which starts from zeros, may use them again.
#pragma once
#include "base/arena.h"
#include "model/plan.h"

namespace strata {

class StateStore {
 public:
  // Bytes of n_slots slots; -1 when the number does not fit.
  static int64_t measure_bytes(const Plan& plan, int32_t n_slots);

  Status open(const Plan& plan, int32_t n_slots, Error& error);
  // Before the ops of a step: zeros for sequences that start, STRATA_E_STATE for those that do not follow their slot.
  Status begin_step(const strata_step& step, Error& error);
  // After all ops: the slots have reached the ends of their sequences.
  void end_step(const strata_step& step);
  void copy_slot(int32_t from, int32_t to);

  int32_t n_slots() const { return static_cast<int32_t>(reached_.size()); }
  float* of(int32_t slot, int32_t state) const {
    return reinterpret_cast<float*>(arena_.data() + slot * slot_bytes_ + offsets_[state]);
  }

 private:
  Arena arena_;
  Array<int64_t> offsets_;  // of each state in its slot
  Array<int32_t> reached_;  // by slot: tokens taken in; -1: unknown
  int64_t slot_bytes_ = 0;
};

}  // namespace strata
