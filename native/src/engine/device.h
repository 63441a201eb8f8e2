// What a device is to the engine: it computes a step's plan and hands the pairs of experts that it does not hold to the CPU.
#pragma once
#include "cpu/kernels.h"
#include "experts/slots.h"
#include "mailbox/host.h"
#include "model/model.h"

namespace strata {

// What both sides know; outlives the device.
struct DeviceSetup {
  Model& model;
  const strata_engine_config& config;  // pointers inside are valid during open only
  Mailbox& mailbox;
  const SlotTable& slots;
  cpu::Tier tier;
  int64_t handoff_ns;  // longest wait for a done word, for every 8 tokens of a step
};

class Device {
 public:
  virtual ~Device() = default;
  // Allocates all it ever holds and uploads the dense weights. All other calls come after it, one at a time, from any
  // thread, except copy_expert and copies_done, which may come beside a running step.
  virtual Status open(const DeviceSetup& setup, Error& error) = 0;
  // Starts a step and returns at once. The step's arrays stay valid until end_step has returned.
  virtual Status begin_step(const strata_step& step, uint64_t sequence, Error& error) = 0;
  // After step_done, a failure, or an abort: returns when nothing of the step runs any more. A step that failed on the
  // device (not by abort) gives its text.
  virtual Status end_step(Error& error) = 0;
  virtual Status kv_copy(int32_t from, int32_t to, Error& error) = 0;
  virtual Status state_copy(int32_t from, int32_t to, Error& error) = 0;
  // Starts copying one expert's bytes (the weights arena's layout) to `slot_offset` of the slot arena; never blocks.
  virtual Status copy_expert(const uint8_t* from, int64_t bytes, int64_t slot_offset, uint64_t number, Error& error) = 0;
  // Newest number whose copy, and all before it, have ended.
  virtual uint64_t copies_done() = 0;
  // Bytes of the experts' RAM that are page-locked.
  virtual int64_t pinned_bytes() const { return 0; }
  // The slot table has changed; no step runs.
  virtual Status table_changed(Error& error) = 0;
};

// Bytes on the device: all that open allocates, with slots_bytes of expert slots.
Status sim_device_bytes(const Model& model, const strata_engine_config& config, int64_t slots_bytes, int64_t* bytes,
                        Error& error);
Status cuda_device_bytes(const Model& model, const strata_engine_config& config, int64_t slots_bytes, int64_t* bytes,
                         Error& error);
// Null: no memory.
Device* new_sim_device();
Device* new_cuda_device();

}  // namespace strata
