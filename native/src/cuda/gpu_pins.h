// Page-locked stretches of ordinary memory: copies from them need no staging.
#pragma once
#include "base/arena.h"
#include "cuda/driver.h"

namespace strata::cuda {

class GpuPins {
 public:
  GpuPins() = default;
  GpuPins(const GpuPins&) = delete;
  GpuPins& operator=(const GpuPins&) = delete;

  // Locks [memory, memory + bytes) piece by piece from its start until `limit` bytes are locked or the system refuses one:
  // neither is a failure. The context must be current.
  Status open(const Driver& driver, const uint8_t* memory, int64_t bytes, int64_t limit, Error& error);
  void close();
  int64_t locked_bytes() const { return locked_; }
  // Bytes from `from` on that one locked piece holds, at most n; 0: `from` is not locked.
  int64_t run(const uint8_t* from, int64_t n) const;

  static constexpr int64_t kPieceBytes = int64_t{256} << 20;

 private:
  const Driver* driver_ = nullptr;
  uint8_t* memory_ = nullptr;  // page aligned
  int64_t locked_ = 0;         // from memory_ on
  int64_t n_pieces_ = 0;
};

}  // namespace strata::cuda
