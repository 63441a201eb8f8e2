// What an engine with a device has beside the CPU's: the device, the mailbox, the expert slots and what is in them.
#pragma once
#include <atomic>
#include <memory>

#include "engine/device.h"
#include "engine/tiered.h"

namespace strata {

class DeviceSide {
 public:
  // Ranges of the config's device fields.
  static Status check(const strata_engine_config& config, Error& error);
  // Bytes of the device, of its slots, and of the mailbox's memory; zeros without a device.
  static Status measure(const Model& model, const strata_engine_config& config, strata_engine_bytes& bytes, Error& error);

  Status open(Model& model, const strata_engine_config& config, cpu::Tier tier, Error& error);
  bool used() const { return device_ != nullptr; }
  Device& device() { return *device_; }
  Mailbox& mailbox() { return mailbox_; }
  const SlotTable& slots() const { return slots_; }
  Handoffs& handoffs() { return handoffs_; }
  const Handoffs& handoffs() const { return handoffs_; }
  // A new step's part of the walk. Engine thread only.
  TieredStep next_step(int32_t n_tokens);
  // From any thread: lets the device give up the running step.
  void give_up();

  // The caller holds the engine's mutex.
  Status copy(int32_t set, int32_t expert, int32_t slot, uint64_t* number, Error& error);
  uint64_t copied() { return device_->copies_done(); }
  // No step may run. Refuses a slot whose copy has not ended, or that holds another expert.
  Status commit(const strata_slot_entry* entries, int32_t n, Error& error);

 private:
  struct Content {
    int32_t set, expert;
    uint64_t number;  // of the copy; 0: never filled
  };

  const Model* model_ = nullptr;
  std::unique_ptr<Device> device_;
  Mailbox mailbox_;
  SlotTable slots_;
  Handoffs handoffs_;
  Array<Content> contents_;   // by slot
  Array<SlotEntry> entries_;  // of one commit
  Array<int64_t> job_ns_;
  int64_t handoff_ns_ = 0;
  uint64_t n_copies_ = 0;
  std::atomic<uint64_t> sequence_{0};  // of the newest step
};

}  // namespace strata
