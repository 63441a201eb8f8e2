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

// A shard mapped for MAPPED mode.
struct Mapping {
  const uint8_t* data;
  int64_t bytes;
};

class Weights : public ExpertSource {
 public:
  explicit Weights(const Plan& plan) : plan_(plan) {}
  ~Weights() override;
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  Status load(const strata_load_config& config, strata_load_stats& stats, Error& error);
  Status reserve(Error& error);
  // Rows [row_first, row_first + n_rows) of matrix `mat` in the file's layout; row_first is a multiple of kGroupRows.
  Status fill(int32_t tensor, int64_t mat, int64_t row_first, int64_t n_rows, const uint8_t* bytes, int64_t n_bytes,
              Error& error);
  // For good: a load that runs or comes later ends with STRATA_E_CANCELLED.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  void progress(int64_t* done, int64_t* total) const;
  bool ready() const { return ready_.load(std::memory_order_acquire); }

  // Matrix m of a MATRIX or EXPERT_MATRIX tensor; a null view for tensor -1.
  cpu::MatView matrix(int32_t tensor, int64_t m = 0) const;
  // Vector m of a VECTOR or EXPERT_VECTOR tensor; null for tensor -1.
  const float* vector(int32_t tensor, int64_t m = 0) const;

  // The slot_bytes bytes of one expert, laid out as expert slots are; null where experts stay in mapped files.
  const uint8_t* expert_bytes(int32_t set, int32_t expert) const {
    const strata_expert_set& s = plan_.expert_sets[set];
    return mappings_.size() != 0 ? nullptr : arena_.data() + s.arena_offset + int64_t{expert} * s.slot_bytes;
  }
  ExpertSource& experts() const { return const_cast<Weights&>(*this); }
  Status fetch(int32_t set, int32_t expert, ExpertView* view) override;
  void release(int32_t, int32_t) override {}

 private:
  friend class Loader;
  // Puts rows that start at row_first of one matrix, or one vector, into the arena.
  void place(const strata_tensor& tensor, int64_t mat, int64_t row_first, int64_t n_rows, const uint8_t* bytes);

  const Plan& plan_;
  Arena arena_;
  Array<Mapping> mappings_;  // by shard; empty unless mapped
  std::atomic<bool> cancelled_{false};
  std::atomic<int64_t> done_bytes_{0}, total_bytes_{0};
  std::atomic<bool> ready_{false};
};

}  // namespace strata
