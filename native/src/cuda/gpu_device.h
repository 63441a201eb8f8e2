// The GPU as the engine's device: memory, captured steps, slots and the page-locked mailbox.
#pragma once
#include <optional>

#include "cuda/compiler.h"
#include "cuda/gpu_copier.h"
#include "cuda/gpu_graphs.h"
#include "cuda/gpu_launcher.h"
#include "engine/device.h"

namespace strata::cuda {

class GpuDevice final : public strata::Device {
 public:
  ~GpuDevice() override { close(); }
  Status open(const DeviceSetup& setup, Error& error) override;
  Status begin_step(const strata_step& step, uint64_t sequence, Error& error) override;
  Status end_step(Error& error) override;
  Status kv_copy(int32_t from, int32_t to, Error& error) override;
  Status state_copy(int32_t from, int32_t to, Error& error) override;
  Status copy_expert(const uint8_t* from, int64_t bytes, int64_t slot_offset, uint64_t number, Error& error) override {
    return copier_.queue().add({from, bytes, slot_offset, number}, error);
  }
  uint64_t copies_done() override { return copier_.queue().done(); }
  Status table_changed(Error& error) override;
  int64_t pinned_bytes() const override { return pins_.locked_bytes(); }

 private:
  void close();
  Status open_card(Error& error);
  Status open_memory(Error& error);
  Status upload(Error& error);
  Status pin_experts(Error& error);
  Status check_room(int64_t free_bytes, Error& error) const;
  Status check_vram(size_t free_before, Error& error);
  Status use_context(Error& error) const;
  StepShape pack(const strata_step& step, uint64_t sequence);
  Status wait_stream(int64_t deadline_ns, Error& error);
  CUdeviceptr at(int64_t place) const { return arena_ + static_cast<uint64_t>(place); }

  std::optional<DeviceSetup> setup_;
  GpuConfig config_{};
  Driver driver_;
  cuda::Device card_;
  Compiler compiler_;
  GpuModules modules_;
  GpuFunctions functions_{};
  GpuLayout layout_;
  GpuGraphs graphs_;
  GpuLauncher launcher_;
  GpuPins pins_;
  GpuCopier copier_;
  GpuContext gpu_{};
  CUdeviceptr arena_ = 0;
  CUstream stream_ = nullptr;
  CUevent ended_ = nullptr;
  uint8_t* inputs_ = nullptr;  // page-locked, layout_.inputs_bytes
  bool mailbox_locked_ = false;
  bool running_ = false, launching_ = false;
  bool lost_ = false;          // a step has never ended
  Array<uint64_t> addresses_;  // the table as the kernels read it
};

}  // namespace strata::cuda
