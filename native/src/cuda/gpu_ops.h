// The walk of a plan on the GPU: one launch or a few for each op, in plan order on one stream.
//
// Nothing here reads a step's numbers: what differs between two steps of one shape is in device memory when the kernels run,
// so that a walk can be captured once and replayed.
#pragma once
#include "cuda/gpu_args.h"
#include "cuda/gpu_layout.h"
#include "cuda/gpu_modules.h"
#include "mailbox/host.h"

namespace strata::cuda {

// What the launches of all steps share.
struct GpuContext {
  const Driver* driver;
  const Plan* plan;
  const GpuLayout* layout;
  const GpuFunctions* functions;
  Mailbox* mailbox;
  CUdeviceptr arena;         // the layout's
  CUdeviceptr mailbox_base;  // the mailbox's memory as the GPU sees it
  CUstream stream;
  int32_t max_seqs;
  bool poison;
  bool has_slots;  // false: no expert is ever resident
};

// What a capture fixes.
struct StepShape {
  int32_t n_tokens, n_outputs;
  int32_t n_blocks;  // of a block table's row: a block_bucket
};

// Refuses, with the op's place, what no kernel here computes.
Status check_plan(const Plan& plan, Error& error);

class Walk {
 public:
  // `inputs`: page-locked host memory with the step's inputs, packed as input_places says.
  Walk(const GpuContext& gpu, const StepShape& shape, const uint8_t* inputs, Error& error);
  // Launches the whole step, from the copy of its inputs to step_done. sequence: of the step; when the host or the device
  // gives it up, the launches end with STRATA_E_CANCELLED. 0: a capture, which nobody gives up.
  Status run(uint64_t sequence);
  int32_t n_jobs() const { return n_jobs_; }

 private:
  // Rounded rows that are still what their buffer holds.
  struct Rounded {
    int32_t buffer = -1;
    int64_t n_cols = 0, n_rows = 0;
  };
  struct Acts {
    const uint8_t* rows;
    int64_t stride;  // bytes
  };
  // One EXPERTS op on its way.
  struct ExpertJob;

  template <class T = float>
  T* at(int64_t place) const {
    return reinterpret_cast<T*>(gpu_.arena + static_cast<uint64_t>(place));
  }
  template <class T = uint8_t>
  T* shared(int64_t offset) const {
    return reinterpret_cast<T*>(gpu_.mailbox_base + static_cast<uint64_t>(offset));
  }
  const strata_buffer& buffer(int32_t b) const { return gpu_.plan->buffers[b]; }
  float* row(int32_t b) const { return at(gpu_.layout->activations + buffer(b).offset); }
  // The same buffer in the host's activations.
  float* host_row(int32_t b) const { return shared<float>(gpu_.mailbox->activations_offset() + buffer(b).offset); }
  int64_t stride(int32_t b) const { return buffer(b).row_stride; }
  int32_t n_rows(int32_t b) const { return buffer(b).rows == STRATA_ROWS_OUTPUTS ? shape_.n_outputs : shape_.n_tokens; }
  const uint8_t* matrix(int32_t tensor, int64_t m = 0) const;
  const float* vector(int32_t tensor) const;
  const TypeFunctions& type_of(int32_t tensor) const;
  template <class T>
  const T* input(int64_t place) const {
    return at<const T>(gpu_.layout->inputs + place);
  }
  const StepHeader* header() const { return input<StepHeader>(0); }
  StepState* state() const { return at<StepState>(gpu_.layout->state); }

  template <class Args>
  Status go(CUfunction function, int64_t grid_x, int64_t grid_y, int64_t threads, const Args& args,
            int64_t shared_bytes = 0) {
    return launch(*gpu_.driver, function, static_cast<uint32_t>(grid_x), static_cast<uint32_t>(grid_y),
                  static_cast<uint32_t>(threads), static_cast<uint32_t>(shared_bytes), gpu_.stream, args, error_);
  }

  // gpu_ops.cpp
  Status begin();
  Status finish();
  bool given_up(uint64_t sequence) const;
  Status op(int64_t index);
  Status run_op(const strata_op& op);
  Status name_place(Status status, int64_t index);
  void forget_written(const strata_op& op);
  Status embed(const strata_op& op);
  Status norm(const strata_op& op);
  Status rope(const strata_op& op);
  Status copy(const strata_op& op);
  Status attention(const strata_op& op);
  Status router(const strata_op& op);
  Status combine(const strata_op& op);
  Status glu(const strata_op& op);
  Status add(const strata_op& op);
  Status mul(const strata_op& op);
  Status gather(const strata_op& op);
  Status clamp(const strata_op& op);
  Status temperature(const strata_op& op);
  Status scale(const strata_op& op);

  // gpu_ops_matmul.cpp
  Status round_rows(cpu::ActForm form, const float* x, int64_t x_stride, int64_t n_cols, int64_t n_rows,
                    const int32_t* device_rows, int64_t place);
  Status acts_of(int32_t buffer, int32_t type, int64_t n_cols, Acts& acts);
  Status multiply(int32_t type, const LinearPart* parts, int32_t n_parts, int64_t n_cols, const Acts& acts, int32_t n_tokens,
                  float factor, float softcap);
  Status linear(const strata_op& op);
  Status head_linear(const strata_op& op);
  Status head(const strata_op& op);

  // gpu_ops_experts.cpp
  Status experts(const strata_op& op);
  Status group(const ExpertJob& job);
  Status dispatch(const ExpertJob& job);
  Status input_acts(const ExpertJob& job, int32_t tensor, Acts& acts);
  Status resident(const ExpertJob& job);
  Status hidden_rows(const ExpertJob& job, ExpertArgs& args);
  Status apart(const ExpertJob& job, ExpertArgs& args);
  Status down_rows(const ExpertJob& job, ExpertArgs& args);
  Status expert_rows(const ExpertJob& job, const TypeFunctions& type, const ExpertArgs& args);
  Status collect(const ExpertJob& job);

  const GpuContext& gpu_;
  const StepShape shape_;
  const InputPlaces inputs_;
  const uint8_t* host_inputs_;
  Error& error_;
  Rounded rounded_[3];  // by ActForm
  int32_t n_jobs_ = 0;  // EXPERTS ops so far
};

// Rows of one launch: grids are at most 65,535 high.
constexpr int64_t kMaxGridRows = 32768;
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace strata::cuda
