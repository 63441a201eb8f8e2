#include "cuda/gpu_pins.h"

#include <algorithm>

namespace strata::cuda {
namespace {

constexpr int64_t kPage = 4096;

}  // namespace

Status GpuPins::open(const Driver& driver, const uint8_t* memory, int64_t bytes, int64_t limit, Error& error) {
  driver_ = &driver;
  const int64_t shift = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) % kPage);
  memory_ = const_cast<uint8_t*>(memory) - shift;
  const int64_t whole = round_up(bytes + shift, kPage);
  if (whole < 0) return error.fail(STRATA_E_ARGUMENT, "%lld bytes to lock", static_cast<long long>(bytes));
  while (locked_ < whole) {
    const int64_t n = std::min(kPieceBytes, whole - locked_);
    if (locked_ + n > limit) break;
    if (driver.cuMemHostRegister(memory_ + locked_, static_cast<size_t>(n), kRegisterPortable) != kCudaSuccess) break;
    locked_ += n;
    ++n_pieces_;
  }
  return STRATA_OK;
}

void GpuPins::close() {
  for (int64_t i = 0; i < n_pieces_; ++i) driver_->cuMemHostUnregister(memory_ + i * kPieceBytes);
  locked_ = n_pieces_ = 0;
}

int64_t GpuPins::run(const uint8_t* from, int64_t n) const {
  const int64_t at = from - memory_;
  if (memory_ == nullptr || at < 0 || at >= locked_) return 0;
  return std::min({n, kPieceBytes - at % kPieceBytes, locked_ - at});
}

}  // namespace strata::cuda
