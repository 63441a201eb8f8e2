// Large steps, launched by a thread of their own: they have more launches than the driver takes before it blocks, and their
// first jobs want the CPU's answer while the last launches are still to come.
#pragma once
#include <pthread.h>

#include <atomic>

#include "base/threads.h"
#include "cuda/gpu_ops.h"

namespace strata::cuda {

class GpuLauncher {
 public:
  GpuLauncher() = default;
  ~GpuLauncher() { close(); }
  GpuLauncher(const GpuLauncher&) = delete;
  GpuLauncher& operator=(const GpuLauncher&) = delete;

  // `gpu` outlives the launcher.
  Status open(const GpuContext& gpu, CUcontext context, Error& error);
  // No step may be in progress.
  void close();

  void start(const StepShape& shape, const uint8_t* inputs, uint64_t sequence);
  // False: the launches have not ended at the deadline.
  bool wait(int64_t deadline_ns);
  // After wait: what the launches failed with; a step that was given up did not fail.
  Status result(Error& error) const;

 private:
  static void* thread_main(void* launcher);
  void loop();
  void launch();

  const GpuContext* gpu_ = nullptr;
  CUcontext context_ = nullptr;
  pthread_t thread_{};
  bool started_ = false;
  std::atomic<bool> closing_{false};
  EventWord begun_, ended_;
  std::atomic<uint64_t> finished_{0};  // sequence of the newest step whose launches have ended
  StepShape shape_{};
  const uint8_t* inputs_ = nullptr;
  uint64_t sequence_ = 0;
  Error error_;
};

}  // namespace strata::cuda
