#include "engine/sim_slots.h"

#include <cstring>
#include <ctime>

#include "engine/sim_device.h"

namespace strata {
namespace {

template <class T>
void rebase(const T*& pointer, int64_t bytes) {
  if (pointer != nullptr) pointer = reinterpret_cast<const T*>(reinterpret_cast<const uint8_t*>(pointer) + bytes);
}

}  // namespace

Status SimSlots::open(const Model& model, const SlotTable& table, Error& error) {
  model_ = &model;
  table_ = &table;
  if (!arena_.open(table.bytes()))
    return error.fail(STRATA_E_MEMORY, "no memory for %lld bytes of expert slots", static_cast<long long>(table.bytes()));
  return copies_.open(make, this, error);
}

Status SimSlots::make(void* slots, const ExpertCopy& copy, Error&) {
  const int64_t delay = sim_faults.delay_ns.load(std::memory_order_relaxed);
  if (delay > 0) {
    const auto ns = static_cast<int64_t>(copy.number * 2654435761u % static_cast<uint64_t>(delay));
    const timespec time{ns / 1000000000, ns % 1000000000};
    nanosleep(&time, nullptr);
  }
  uint8_t* arena = static_cast<SimSlots*>(slots)->arena_.data();
  memcpy(arena + copy.slot_offset, copy.from, static_cast<size_t>(copy.bytes));
  const int64_t flipped = sim_faults.flipped_byte.load(std::memory_order_relaxed);
  if (flipped >= copy.slot_offset && flipped < copy.slot_offset + copy.bytes) arena[flipped] ^= 0x10;
  return STRATA_OK;
}

Status SimSlots::fetch(int32_t set, int32_t expert, ExpertView* view) {
  const int32_t slot = table_->slot(set, expert);
  if (slot < 0) return STRATA_E_INTERNAL;
  STRATA_TRY(model_->weights.experts().fetch(set, expert, view));
  const int64_t moved = arena_.data() + table_->offset(slot) - model_->weights.expert_bytes(set, expert);
  for (cpu::MatView* matrix : {&view->gate, &view->up, &view->down}) rebase(matrix->data, moved);
  for (const float** vector :
       {&view->gate_bias, &view->up_bias, &view->down_bias, &view->gate_scale, &view->up_scale, &view->down_scale})
    rebase(*vector, moved);
  return STRATA_OK;
}

}  // namespace strata
