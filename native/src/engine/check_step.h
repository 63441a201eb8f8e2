// Validation of one submitted step, so that no op needs to distrust it.
#pragma once
#include "base/arena.h"
#include "base/error.h"
#include "model/plan.h"

namespace strata {

constexpr int32_t kMaxRoutingStride = 1 << 16;

class StepChecker {
 public:
  bool open(const Plan& plan, const strata_engine_config& config);
  // STRATA_E_ARGUMENT texts name field and value. One caller at a time.
  Status check(const strata_step& step, Error& error);

 private:
  Status check_sizes(const strata_step& step, Error& error) const;
  Status check_tokens(const strata_step& step, Error& error);
  Status check_slots(const strata_step& step, Error& error);
  Status check_outputs(const strata_step& step, Error& error) const;
  Status check_samples(const strata_step& step, Error& error) const;

  const Plan* plan_ = nullptr;
  int32_t n_kv_blocks_ = 0, max_seqs_ = 0, n_state_slots_ = 0;
  uint64_t epoch_ = 0;             // of this check; stamps of earlier ones do not count
  Array<uint64_t> seq_seen_;       // by sequence
  Array<uint64_t> block_written_;  // by block: epoch of the last step that writes it
  Array<uint64_t> slot_used_;      // by state slot: epoch of the last step that uses it
  Array<int32_t> block_writer_;    // by block: that step's sequence
};

}  // namespace strata
