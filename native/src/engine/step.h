// One step as the ops see it, and the walk that runs them.
//
// Ops run on the engine thread and open regions of the pool. An op reads and writes only the buffers it names; its
// scratch is planned by its scratch_bytes and starts anew for every op.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "base/threads.h"
#include "cpu/kernels.h"
#include "model/model.h"
#include "strata.h"

namespace strata {

class KvStore;
class SlotTable;
class StateStore;

// Which pairs of an EXPERTS op its caller computes: those whose expert has a slot, those whose expert has none, or all.
enum class ExpertSide { all, missed, resident };

// What a step counted, for strata_completion. Written by the engine thread only: workers' sums are added after a region.
struct StepCounters {
  int64_t weight_bytes = 0;  // bytes of weights read
  int64_t kv_bytes = 0;
  int64_t expert_rows = 0;      // (token, expert) pairs
  int64_t experts_touched = 0;  // distinct (layer, expert) pairs
  int64_t expert_hits = 0;      // (token, expert) pairs that a device computed
  int64_t handoff_wait_ns = 0;  // waited for doorbells
};

// Sizes that scratch is planned for.
struct ScratchQuery {
  const Model& model;
  int32_t n_tokens;   // rows of TOKENS buffers: the plan's n_batch
  int32_t n_outputs;  // rows of OUTPUTS buffers: the plan's n_outputs_max
  int32_t n_workers;
  int32_t n_kv_blocks;
  int32_t max_seqs;
  cpu::Tier tier;

  int32_t n_rows(int32_t buffer) const {
    return model.plan.buffers[buffer].rows == STRATA_ROWS_OUTPUTS ? n_outputs : n_tokens;
  }
};

struct StepContext {
  const Model& model;
  const strata_step& step;
  Pool& pool;
  KvStore& kv;
  StateStore& states;
  cpu::Tier tier;
  uint8_t* activations;  // 64-byte aligned
  uint8_t* scratch;      // 64-byte aligned
  int64_t scratch_bytes;
  const std::atomic<bool>& stop;  // abort or deadline: inner loops may end early, the walk then drops the step
  int64_t scratch_used = 0;       // the walk sets it to zero before each op
  uint8_t* tables = nullptr;      // 64-byte aligned, step_tables_bytes (ops.h): filled once, read by the step's ops
  StepCounters counters;
  Error error;
  const SlotTable* slots = nullptr;  // null: there are none, and the side is `all`
  ExpertSide side = ExpertSide::all;
  ExpertSource* source = nullptr;  // null: the model's weights

  const Plan& plan() const { return model.plan; }
  const Weights& weights() const { return model.weights; }
  int32_t n_workers() const { return pool.n_workers(); }
  bool stopped() const { return stop.load(std::memory_order_relaxed); }

  // ---- buffers: row t at row(b, t), rows row_stride(b) floats apart
  const strata_buffer& buffer(int32_t b) const { return model.plan.buffers[b]; }
  int32_t n_rows(int32_t b) const { return buffer(b).rows == STRATA_ROWS_OUTPUTS ? step.n_outputs : step.n_tokens; }
  int64_t row_stride(int32_t b) const { return buffer(b).row_stride; }
  float* row(int32_t b, int64_t t) const {
    return reinterpret_cast<float*>(activations + buffer(b).offset) + t * buffer(b).row_stride;
  }
  // A selection row: n_used ids, then n_used weights.
  int32_t* selection_ids(int32_t b, int64_t t) const { return reinterpret_cast<int32_t*>(row(b, t)); }
  float* selection_weights(int32_t b, int64_t t, int32_t n_used) const { return row(b, t) + n_used; }

  // ---- weights
  cpu::MatView matrix(int32_t tensor, int64_t m = 0) const { return model.weights.matrix(tensor, m); }
  const float* vector(int32_t tensor) const { return model.weights.vector(tensor); }
  const strata_expert_set& expert_set(int32_t set) const { return model.plan.expert_sets[set]; }
  ExpertSource& experts() const { return source != nullptr ? *source : model.weights.experts(); }

  // ---- scratch: n elements, 64-byte aligned, not initialised; engine thread only. Null when the plan was too small,
  // which is an error of the op's scratch_bytes: error is then set and the op returns error.status.
  template <class T>
  T* scratch_array(int64_t n) {
    const int64_t bytes = (n * static_cast<int64_t>(sizeof(T)) + 63) & ~int64_t{63};
    if (bytes > scratch_bytes - scratch_used) {
      error.fail(STRATA_E_INTERNAL, "scratch was planned too small: %lld of %lld bytes used, %lld more wanted",
                 static_cast<long long>(scratch_used), static_cast<long long>(scratch_bytes), static_cast<long long>(bytes));
      return nullptr;
    }
    T* p = reinterpret_cast<T*>(scratch + scratch_used);
    scratch_used += bytes;
    return p;
  }
};

// Bytes that scratch_array takes for n elements of T.
template <class T>
constexpr int64_t scratch_array_bytes(int64_t n) {
  return (n * static_cast<int64_t>(sizeof(T)) + 63) & ~int64_t{63};
}

}  // namespace strata
