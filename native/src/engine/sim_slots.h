// The sim device's expert slots: their memory, the copies into them, and experts as the ops read them from there.
#pragma once
#include "base/arena.h"
#include "engine/copy_queue.h"
#include "experts/slots.h"
#include "model/model.h"

namespace strata {

class SimSlots final : public ExpertSource {
 public:
  Status open(const Model& model, const SlotTable& table, Error& error);
  void close() { copies_.close(); }
  CopyQueue& copies() { return copies_; }

  // The parts of a resident expert, in its slot.
  Status fetch(int32_t set, int32_t expert, ExpertView* view) override;
  void release(int32_t, int32_t) override {}

 private:
  static Status make(void* slots, const ExpertCopy& copy, Error& error);

  const Model* model_ = nullptr;
  const SlotTable* table_ = nullptr;
  Arena arena_;
  CopyQueue copies_;  // closed first: its thread writes the arena
};

}  // namespace strata
