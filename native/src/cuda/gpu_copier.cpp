#include "cuda/gpu_copier.h"

#include <algorithm>
#include <cstring>

namespace strata::cuda {

Status GpuCopier::open(const Driver& driver, CUcontext context, CUdeviceptr slots, const GpuPins& pins, Error& error) {
  driver_ = &driver;
  context_ = context;
  slots_ = slots;
  pins_ = &pins;
  void* ring = nullptr;
  STRATA_CU(driver, error, cuMemHostAlloc(&ring, kPieces * kPieceBytes, kHostPortable));
  ring_ = static_cast<uint8_t*>(ring);
  STRATA_CU(driver, error, cuStreamCreate(&stream_, kStreamNonBlocking));
  for (CUevent& event : free_) STRATA_CU(driver, error, cuEventCreate(&event, kEventSleeps | kEventNoTiming));
  return queue_.open(make, this, error);
}

void GpuCopier::close() {
  queue_.close();
  if (driver_ == nullptr) return;
  for (CUevent& event : free_) {
    if (event != nullptr) driver_->cuEventDestroy(event);
    event = nullptr;
  }
  if (stream_ != nullptr) driver_->cuStreamDestroy(stream_);
  if (ring_ != nullptr) driver_->cuMemFreeHost(ring_);
  stream_ = nullptr;
  ring_ = nullptr;
}

Status GpuCopier::make(void* copier, const ExpertCopy& copy, Error& error) {
  GpuCopier& self = *static_cast<GpuCopier*>(copier);
  if (!self.is_current_) STRATA_CU(*self.driver_, error, cuCtxSetCurrent(self.context_));
  self.is_current_ = true;
  return self.copy_pieces(copy, error);
}

Status GpuCopier::copy_pieces(const ExpertCopy& copy, Error& error) {
  const Driver& driver = *driver_;
  int32_t piece = 0;
  int64_t n;
  for (int64_t at = 0; at < copy.bytes; at += n) {
    const CUdeviceptr to = slots_ + static_cast<uint64_t>(copy.slot_offset + at);
    n = pins_->run(copy.from + at, copy.bytes - at);
    if (n > 0) {
      STRATA_CU(driver, error, cuMemcpyHtoDAsync(to, copy.from + at, static_cast<size_t>(n), stream_));
      STRATA_CU(driver, error, cuEventRecord(free_[piece], stream_));
      continue;
    }
    piece = (piece + 1) % kPieces;
    n = std::min(kPieceBytes, copy.bytes - at);
    uint8_t* staged = ring_ + piece * kPieceBytes;
    STRATA_CU(driver, error, cuEventSynchronize(free_[piece]));  // an event that was never recorded is done
    memcpy(staged, copy.from + at, static_cast<size_t>(n));
    STRATA_CU(driver, error, cuMemcpyHtoDAsync(to, staged, static_cast<size_t>(n), stream_));
    STRATA_CU(driver, error, cuEventRecord(free_[piece], stream_));
  }
  // By the event, which sleeps: a wait for the stream would keep a core from the CPU's experts.
  STRATA_CU(driver, error, cuEventSynchronize(free_[piece]));
  return STRATA_OK;
}

}  // namespace strata::cuda
