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
  if (!arena_.open(table.bytes()) || !queue_.resize(static_cast<int64_t>(kQueue)))
    return error.fail(STRATA_E_MEMORY, "no memory for %lld bytes of expert slots", static_cast<long long>(table.bytes()));
  const int failed = pthread_create(&thread_, nullptr, thread_main, this);
  if (failed != 0) return error.fail(STRATA_E_MEMORY, "the copying thread could not be started: %s", strerror(failed));
  started_ = true;
  return STRATA_OK;
}

void SimSlots::close() {
  if (!started_) return;
  closing_.store(true, std::memory_order_release);
  changed_.advance();
  pthread_join(thread_, nullptr);
  started_ = false;
}

Status SimSlots::copy(const uint8_t* from, int64_t bytes, int64_t slot_offset, uint64_t number, Error& error) {
  const uint64_t queued = queued_.load(std::memory_order_relaxed);
  if (queued - made_.load(std::memory_order_acquire) == kQueue)
    return error.fail(STRATA_E_BUSY, "%llu copies of experts wait already", static_cast<unsigned long long>(kQueue));
  queue_[static_cast<int64_t>(queued % kQueue)] = {from, bytes, slot_offset, number};
  queued_.store(queued + 1, std::memory_order_release);
  changed_.advance();
  return STRATA_OK;
}

void* SimSlots::thread_main(void* slots) {
  pthread_setname_np(pthread_self(), "strata-copies");
  static_cast<SimSlots*>(slots)->loop();
  return nullptr;
}

void SimSlots::loop() {
  while (!closing_.load(std::memory_order_acquire)) {
    const uint32_t seen = changed_.load();
    const uint64_t made = made_.load(std::memory_order_relaxed);
    if (made == queued_.load(std::memory_order_acquire)) {
      changed_.wait(seen, 0, false, 0);
      continue;
    }
    make(queue_[static_cast<int64_t>(made % kQueue)]);
    made_.store(made + 1, std::memory_order_release);
  }
}

void SimSlots::make(const Copy& copy) {
  const int64_t delay = sim_faults.delay_ns.load(std::memory_order_relaxed);
  if (delay > 0) {
    const int64_t ns = static_cast<int64_t>(copy.number * 2654435761u % static_cast<uint64_t>(delay));
    const timespec time{ns / 1000000000, ns % 1000000000};
    nanosleep(&time, nullptr);
  }
  memcpy(arena_.data() + copy.offset, copy.from, static_cast<size_t>(copy.bytes));
  const int64_t flipped = sim_faults.flipped_byte.load(std::memory_order_relaxed);
  if (flipped >= copy.offset && flipped < copy.offset + copy.bytes) arena_.data()[flipped] ^= 0x10;
  done_.store(copy.number, std::memory_order_release);
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
