// The sim device's expert slots: their memory, the copies into them, and experts as the ops read them from there.
#pragma once
#include <pthread.h>

#include <atomic>

#include "base/arena.h"
#include "base/threads.h"
#include "experts/slots.h"
#include "model/model.h"

namespace strata {

class SimSlots final : public ExpertSource {
 public:
  Status open(const Model& model, const SlotTable& table, Error& error);
  void close();
  // Queues a copy for the copying thread. STRATA_E_BUSY: kQueue copies wait already.
  Status copy(const uint8_t* from, int64_t bytes, int64_t slot_offset, uint64_t number, Error& error);
  uint64_t done() const { return done_.load(std::memory_order_acquire); }

  // The parts of a resident expert, in its slot.
  Status fetch(int32_t set, int32_t expert, ExpertView* view) override;
  void release(int32_t, int32_t) override {}

 private:
  struct Copy {
    const uint8_t* from;
    int64_t bytes, offset;
    uint64_t number;
  };
  static constexpr uint64_t kQueue = 4096;

  static void* thread_main(void* slots);
  void loop();
  void make(const Copy& copy);

  const Model* model_ = nullptr;
  const SlotTable* table_ = nullptr;
  Arena arena_;
  Array<Copy> queue_;
  std::atomic<uint64_t> queued_{0}, made_{0}, done_{0};
  EventWord changed_;
  std::atomic<bool> closing_{false};
  pthread_t thread_{};
  bool started_ = false;
};

}  // namespace strata
