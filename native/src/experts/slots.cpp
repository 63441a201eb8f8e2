#include "experts/slots.h"

namespace strata {

Status SlotTable::open(const Plan& plan, int32_t n_classes, const int32_t* class_of_set, const int32_t* n_slots,
                       Error& error) {
  plan_ = &plan;
  const int64_t n_sets = plan.expert_sets.size();
  n_classes_ = n_classes;
  if (n_classes_ < 0 || n_classes_ > n_sets || (n_classes_ > 0 && (class_of_set == nullptr || n_slots == nullptr)))
    return error.fail(STRATA_E_ARGUMENT, "n_classes is %d; accepted: 0 to the %lld expert sets, with their tables",
                      n_classes_, static_cast<long long>(n_sets));
  for (const strata_expert_set& set : plan.expert_sets) width_ = set.n_expert > width_ ? set.n_expert : width_;
  int64_t n = 0;
  for (int32_t c = 0; c < n_classes_; ++c) {
    if (n_slots[c] < 0 || (n += n_slots[c]) > (1 << 24))
      return error.fail(STRATA_E_ARGUMENT, "n_slots[%d] is %d; accepted: 0 to %d in all", c, n_slots[c], 1 << 24);
  }
  if (!class_of_set_.resize(n_sets) || !first_slot_.resize(n_classes_ + 1) || !offsets_.resize(n) || !holder_.resize(n) ||
      !table_.resize(n_sets * width_))
    return error.fail(STRATA_E_MEMORY, "no memory for the slot table");
  n_slots_ = static_cast<int32_t>(n);
  for (int64_t i = 0; i < table_.size(); ++i) table_[i] = -1;
  for (int64_t i = 0; i < holder_.size(); ++i) holder_[i] = -1;
  int32_t slot = 0;
  for (int32_t c = 0; c < n_classes_; ++c) {
    first_slot_[c] = slot;
    int64_t slot_bytes = -1;
    for (int32_t s = 0; s < n_sets; ++s) {
      if (class_of_set[s] != c) continue;
      const int64_t own = plan.expert_sets[s].slot_bytes;
      if (slot_bytes >= 0 && own != slot_bytes)
        return error.fail(STRATA_E_ARGUMENT, "class_of_set[%d] is %d, whose slots have %lld bytes; the set needs %lld", s, c,
                          static_cast<long long>(slot_bytes), static_cast<long long>(own));
      slot_bytes = own;
    }
    for (int32_t k = 0; k < n_slots[c]; ++k, ++slot) {
      offsets_[slot] = bytes_;
      bytes_ += slot_bytes < 0 ? 0 : slot_bytes;
    }
  }
  first_slot_[n_classes_] = slot;
  for (int32_t s = 0; s < n_sets; ++s) {
    class_of_set_[s] = n_classes_ == 0 ? 0 : class_of_set[s];
    if (n_classes_ > 0 && (class_of_set_[s] < 0 || class_of_set_[s] >= n_classes_))
      return error.fail(STRATA_E_ARGUMENT, "class_of_set[%d] is %d; accepted: 0 to %d", s, class_of_set_[s], n_classes_ - 1);
  }
  return STRATA_OK;
}

Status SlotTable::check(int32_t set, int32_t expert, int32_t slot, Error& error) const {
  if (set < 0 || set >= plan_->expert_sets.size())
    return error.fail(STRATA_E_ARGUMENT, "set is %d; accepted: 0 to %lld", set,
                      static_cast<long long>(plan_->expert_sets.size()) - 1);
  if (expert < 0 || expert >= plan_->expert_sets[set].n_expert)
    return error.fail(STRATA_E_ARGUMENT, "expert is %d; accepted: 0 to %d", expert, plan_->expert_sets[set].n_expert - 1);
  if (n_classes_ == 0) return error.fail(STRATA_E_ARGUMENT, "the engine was opened without expert slots");
  const int32_t c = class_of_set_[set];
  if (slot < first_slot_[c] || slot >= first_slot_[c + 1])
    return error.fail(STRATA_E_ARGUMENT, "slot is %d; set %d has the slots %d to %d", slot, set, first_slot_[c],
                      first_slot_[c + 1] - 1);
  return STRATA_OK;
}

Status SlotTable::check_copy(int32_t set, int32_t expert, int32_t slot, Error& error) const {
  STRATA_TRY(check(set, expert, slot, error));
  if (holder_[slot] < 0) return STRATA_OK;
  return error.fail(STRATA_E_STATE, "slot %d holds expert %lld of set %lld, which steps may read", slot,
                    static_cast<long long>(holder_[slot] % width_), static_cast<long long>(holder_[slot] / width_));
}

Status SlotTable::commit(const SlotEntry* entries, int32_t n, Error& error) {
  for (int32_t i = 0; i < n; ++i) {
    const SlotEntry& e = entries[i];
    STRATA_TRY(check(e.set, e.expert,
                     e.slot < 0 && n_classes_ > 0 && e.set >= 0 && e.set < class_of_set_.size()
                         ? first_slot_[class_of_set_[e.set]]
                         : e.slot,
                     error));
  }
  // First all leave, then all arrive: a victim and its newcomer come in one call, in any order.
  for (int32_t i = 0; i < n; ++i) {
    const int32_t old = slot(entries[i].set, entries[i].expert);
    if (old >= 0) holder_[old] = -1;
  }
  Status status = STRATA_OK;
  int32_t n_placed = 0;
  for (; n_placed < n && status == STRATA_OK; ++n_placed) {
    const SlotEntry& e = entries[n_placed];
    if (e.slot < 0) continue;
    if (holder_[e.slot] >= 0) {
      status = error.fail(STRATA_E_STATE, "slot %d would serve two experts", e.slot);
      break;
    }
    holder_[e.slot] = int64_t{e.set} * width_ + e.expert;
  }
  if (status != STRATA_OK) {
    for (int32_t i = 0; i < n_placed; ++i)
      if (entries[i].slot >= 0) holder_[entries[i].slot] = -1;
    for (int32_t i = 0; i < n; ++i) {
      const int32_t old = slot(entries[i].set, entries[i].expert);
      if (old >= 0) holder_[old] = int64_t{entries[i].set} * width_ + entries[i].expert;
    }
    return status;
  }
  for (int32_t i = 0; i < n; ++i)
    table_[int64_t{entries[i].set} * width_ + entries[i].expert] = entries[i].slot < 0 ? -1 : entries[i].slot;
  return STRATA_OK;
}

}  // namespace strata
