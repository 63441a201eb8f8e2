// Expert slots: where each lies in the device's arena, and which expert is in which.
//
// Slots are numbered class by class. The table (set, expert) -> slot changes between steps only; a device keeps a copy of
// its own, which commit brings up to date.
#pragma once
#include "base/arena.h"
#include "base/error.h"
#include "model/plan.h"

namespace strata {

// One entry of the table.
struct SlotEntry {
  int32_t set, expert;
  int32_t slot;  // -1: not resident
};

class SlotTable {
 public:
  // class_of_set: [n_expert_sets] size class of each set; n_slots: [n_classes]. Sets of a class have equal slot_bytes. The
  // arena's bytes are known from then on.
  Status open(const Plan& plan, int32_t n_classes, const int32_t* class_of_set, const int32_t* n_slots, Error& error);

  int32_t n_slots() const { return n_slots_; }
  int64_t bytes() const { return bytes_; }  // of the arena
  int32_t width() const { return width_; }  // experts of the largest set
  // Slot of an expert, -1: not resident.
  int32_t slot(int32_t set, int32_t expert) const { return table_[int64_t{set} * width_ + expert]; }
  const int32_t* row(int32_t set) const { return &table_[int64_t{set} * width_]; }
  int64_t offset(int32_t slot) const { return offsets_[slot]; }  // in the arena
  // Number of the first slot of a set's class.
  int32_t first_slot(int32_t set) const { return first_slot_[class_of_set_[set]]; }

  // STRATA_E_ARGUMENT: no such expert, or a slot of another class.
  Status check(int32_t set, int32_t expert, int32_t slot, Error& error) const;
  // The same, and nothing in the table names the slot.
  Status check_copy(int32_t set, int32_t expert, int32_t slot, Error& error) const;
  // Sets entries, all or none; no slot may serve two experts afterwards.
  Status commit(const SlotEntry* entries, int32_t n, Error& error);

 private:
  const Plan* plan_ = nullptr;
  int32_t n_classes_ = 0, n_slots_ = 0, width_ = 0;
  int64_t bytes_ = 0;
  Array<int32_t> class_of_set_, first_slot_;
  Array<int64_t> offsets_;
  Array<int32_t> table_;
  Array<int64_t> holder_;  // by slot: set * width + expert, -1: nobody
};

}  // namespace strata
