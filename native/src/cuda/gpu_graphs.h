// Captured steps: one graph for each shape, replayed for every step of it.
#pragma once
#include "cuda/gpu_ops.h"

namespace strata::cuda {

class GpuGraphs {
 public:
  GpuGraphs() = default;
  GpuGraphs(const GpuGraphs&) = delete;
  GpuGraphs& operator=(const GpuGraphs&) = delete;

  // Launches a step of this shape whose inputs lie in `inputs`; captures it first where that has not been done.
  Status launch(const GpuContext& gpu, const StepShape& shape, const uint8_t* inputs, Error& error);
  // The context must be current, and nothing may run.
  void close(const Driver& driver);

 private:
  struct Entry {
    StepShape shape;
    CUgraphExec exec;
    uint64_t used;  // turn of the newest launch
  };
  static constexpr int32_t kMost = 96;

  Status capture(const GpuContext& gpu, const StepShape& shape, const uint8_t* inputs, Entry& entry, Error& error);

  Entry entries_[kMost] = {};
  int32_t n_ = 0;
  uint64_t turn_ = 0;
};

}  // namespace strata::cuda
