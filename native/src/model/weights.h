// The model's weights in memory: the arena, mapped files, and what the ops see of both.
#pragma once
#include <atomic>

#include "base/arena.h"
#include "base/error.h"
#include "cpu/kernels.h"
#include "model/plan.h"
#include "strata.h"

namespace strata {

// One expert's parts. Absent ones: data or pointer null.
struct ExpertView {
  cpu::MatView gate, up, down;
  const float* gate_bias;
  const float* up_bias;
  const float* down_bias;
  const float* gate_scale;  // one float
  const float* up_scale;
  const float* down_scale;
};

// Where experts come from: the arena, a mapped file, later a RAM cache in front of NVMe.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;
  // The parts of one expert, valid until release. Any thread; may block where experts are not in memory.
  virtual Status fetch(int32_t set, int32_t expert, ExpertView* view) = 0;
  virtual void release(int32_t set, int32_t expert) = 0;
};

class Weights {
 public:
  explicit Weights(const Plan& plan) : plan_(plan) {}
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  Status load(const strata_load_config& config, strata_load_stats& stats, Error& error);
  Status reserve(Error& error);
  Status fill(int32_t tensor, int64_t mat, int64_t row_first, int64_t n_rows, const uint8_t* bytes, int64_t n_bytes, Error& error);
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  void progress(int64_t* done, int64_t* total) const;
  bool ready() const { return ready_; }

  // Matrix m of a MATRIX or EXPERT_MATRIX tensor.
  cpu::MatView matrix(int32_t tensor, int64_t m = 0) const;
  // Vector m of a VECTOR or EXPERT_VECTOR tensor; null for tensor -1.
  const float* vector(int32_t tensor, int64_t m = 0) const;
  ExpertSource& experts() const { return *experts_; }

 private:
  const Plan& plan_;
  Arena arena_;
  ExpertSource* experts_ = nullptr;
  std::atomic<bool> cancelled_{false};
  std::atomic<int64_t> done_bytes_{0}, total_bytes_{0};
  bool ready_ = false;
};

}  // namespace strata
