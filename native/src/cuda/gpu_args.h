// Arguments of the kernels that only the device's own walk launches: the mailbox's, and rows without arithmetic of matrices.
// One definition for the host and for NVRTC; kernel_args.h has the others.
//
// All pointers are device addresses; "host" ones lead into the page-locked mailbox.
#pragma once
#include "cuda/kernel_args.h"

namespace strata::cuda {

// First bytes of a step's inputs.
struct StepHeader {
  uint64_t sequence;
  uint64_t handoff_ns;  // longest wait for one done word, by the GPU's clock
  int32_t n_tokens, n_outputs;
};
// Words that live as long as the device.
struct StepState {
  uint64_t stopped;        // sequence of the newest step that was aborted or waited in vain: its jobs are passed over
  uint64_t dispatched_ns;  // when the first payload word of the newest job with misses was written, by the GPU's clock
  uint32_t n_finished;     // blocks of the running launch that have written their share
};

// Where the chosen experts of one job go.
struct PairCounts {
  int32_t n_tasks, n_pairs, n_missed;  // n_pairs: resident ones
};
// k_gpu_group: pairs p = token * n_used + rank as tasks of at most task_pairs pairs, and as misses.
struct GroupPairsArgs {
  const int32_t* ids;  // selection row of token t at t * selection_stride
  int64_t selection_stride;
  const uint64_t* slots;  // [n_expert] address of the resident slot, 0: missed
  ExpertTask* tasks;      // ascending experts
  PairCounts* counts;
  int32_t* pair_token;  // of the resident pairs, in the order of the tasks
  int32_t* pair_id;     // p
  int32_t* pair_out;    // floats from the output's first row
  int32_t* missed;      // p, ascending
  int64_t out_row;      // floats between the output's rows
  int32_t n_out, n_tokens, n_used, n_expert, task_pairs;
};

// k_gpu_dispatch: a job's selection, with misses its payload too, then its doorbell. Strides in elements of 4 bytes.
struct DispatchArgs {
  const StepHeader* step;
  StepState* state;
  const PairCounts* counts;
  const uint32_t* x;
  const uint32_t* selection;
  uint32_t* host_x;          // at the buffer's own place in the host's activations, as `x` in the device's
  uint32_t* host_selection;  // the same
  uint32_t* routing;         // packed rows of 2 * n_used words
  uint64_t* doorbell;
  int64_t x_stride, selection_stride;
  int32_t n_tokens, n_in, n_used;
};
// k_gpu_wait: one thread.
struct WaitArgs {
  const StepHeader* step;
  StepState* state;
  const PairCounts* counts;
  const uint64_t* abort;
  const uint64_t* done;
  uint64_t* failure;
  int32_t job;
};
// k_gpu_collect: the missed pairs' rows from the host, then the job's time.
struct CollectArgs {
  const StepHeader* step;
  StepState* state;
  const PairCounts* counts;
  const int32_t* missed;
  const float* host;
  float* out;
  uint64_t* timing;
  int64_t row_stride;  // floats, the same on both sides
  int32_t n_used, width;
};
// k_gpu_finish: the logits, then step_done.
struct FinishArgs {
  const StepHeader* step;
  StepState* state;
  const float* logits;
  float* host;
  uint64_t* step_done;
  int64_t row_stride;  // floats, the same on both sides
  int32_t n_rows, width;
};

// k_gpu_copy: n_vec vectors of `width` in each of the grid's rows.
struct CopyArgs {
  const float* x;
  float* out;
  int64_t x_row, x_vec, out_row, out_vec;  // strides in floats
  int32_t n_vec, width;
};
// k_gpu_gather: row rows[o] of x becomes row o of out.
struct GatherArgs {
  const float* x;
  float* out;
  const int32_t* rows;
  int64_t x_stride, out_stride;
  int32_t width;
};
// k_gpu_scale: x *= factor, in place.
struct ScaleArgs {
  float* x;
  const float* factor;
  int64_t stride;
  int32_t width;
};
// k_gpu_temperature: the fields of STRATA_OP_TEMPERATURE, in place.
struct TemperatureArgs {
  float* x;
  const int32_t* pos;
  int64_t stride;
  int64_t length, offset;
  int32_t width;
  float scale;
};
// k_gpu_weigh: row p of out is x's row p / n_used times the pair's router weight. Grid rows are pairs from first_pair on.
struct WeighArgs {
  const float* x;
  const int32_t* selection;
  float* out;  // [pair][width]
  int64_t x_stride, selection_stride;
  int32_t n_used, width, first_pair;
};

}  // namespace strata::cuda
