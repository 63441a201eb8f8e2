// Copies experts to the card on a stream of its own: straight from page-locked memory, else through a page-locked ring.
#pragma once
#include "cuda/driver.h"
#include "cuda/gpu_pins.h"
#include "engine/copy_queue.h"

namespace strata::cuda {

class GpuCopier {
 public:
  GpuCopier() = default;
  GpuCopier(const GpuCopier&) = delete;
  GpuCopier& operator=(const GpuCopier&) = delete;

  // `slots`: address of the slot arena. The context is the one that is current.
  Status open(const Driver& driver, CUcontext context, CUdeviceptr slots, const GpuPins& pins, Error& error);
  // The context must be current.
  void close();
  CopyQueue& queue() { return queue_; }

  static constexpr int64_t kPieceBytes = 1 << 20;
  static constexpr int32_t kPieces = 8;

 private:
  static Status make(void* copier, const ExpertCopy& copy, Error& error);
  Status copy_pieces(const ExpertCopy& copy, Error& error);

  const Driver* driver_ = nullptr;
  const GpuPins* pins_ = nullptr;
  CUcontext context_ = nullptr;
  CUdeviceptr slots_ = 0;
  CUstream stream_ = nullptr;
  uint8_t* ring_ = nullptr;  // page-locked
  CUevent free_[kPieces] = {};
  bool is_current_ = false;  // on the queue's thread
  CopyQueue queue_;
};

}  // namespace strata::cuda
