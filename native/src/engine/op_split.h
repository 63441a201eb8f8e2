// How ops split their work: rows for the light ops, chunks of matrix rows for the heavy ones.
#pragma once
#include "cpu/vecmath.h"
#include "engine/step.h"

namespace strata {

// Floats of work that pay for waking the pool; lighter ops run on the engine thread alone.
constexpr int64_t kRegionFloats = 16384;

// f(row) for every row of [0, n_rows), each about `floats_per_row` of work.
template <class F>
Status for_rows(StepContext& ctx, int64_t n_rows, int64_t floats_per_row, F&& f) {
  const int64_t chunk = floats_per_row >= kRegionFloats ? 1 : kRegionFloats / (floats_per_row > 0 ? floats_per_row : 1);
  return ctx.pool.run(n_rows, chunk, [&](int64_t row, int32_t) { f(row); });
}

// Weight bytes of one task: large enough that the memory's prefetchers run in one stream for long (128 KiB cost 15 %
// of decode speed on two cores, 2026-12, Zen 4), small enough that no worker waits long for the last one.
constexpr int64_t kTaskBytesMin = 16 << 10, kTaskBytesMax = 1 << 20;

// Rows of one task (a multiple of kGroupRows) where `total_bytes` are shared by the workers and a row has `row_bytes`.
inline int64_t rows_of_task(int64_t total_bytes, int64_t row_bytes, int32_t n_workers) {
  int64_t bytes = total_bytes / (int64_t{n_workers} * 4);
  bytes = bytes < kTaskBytesMin ? kTaskBytesMin : bytes > kTaskBytesMax ? kTaskBytesMax : bytes;
  const int64_t groups = bytes / (row_bytes * cpu::kGroupRows);
  return (groups > 0 ? groups : 1) * cpu::kGroupRows;
}

// Bytes of a matrix as the kernels read it.
inline int64_t matrix_bytes(const cpu::MatView& w, const cpu::TypeKernels& kernels) {
  if (w.layout == cpu::Layout::packed) return cpu::packed_bytes(w.type, w.n_rows, w.n_cols);
  return w.n_cols / kernels.block * kernels.block_bytes * w.n_rows;
}

inline cpu::MatmulFn matmul_function(const cpu::MatView& w, const cpu::TypeKernels& kernels) {
  return w.layout == cpu::Layout::packed ? kernels.matmul_packed : kernels.matmul_rows;
}

// Scale, then bias, each rounded alone, on y[begin, end) of one output row. Null: absent.
inline void scale_and_bias(const cpu::VecMath& vec, float* y, const float* scale, const float* bias, int64_t begin,
                           int64_t end) {
  if (scale != nullptr) vec.scale(y + begin, *scale, y + begin, end - begin);
  if (bias != nullptr) vec.add(y + begin, bias + begin, y + begin, end - begin);
}

// Rows rounded in the forms that some matrices ask for, each form once.
struct RoundedRows {
  uint8_t* acts[3] = {};   // by ActForm; null: not wanted
  int64_t stride[3] = {};  // bytes between rows

  // Takes scratch for n_rows of n_cols values in this form unless it has been taken already. False: see ctx.error.
  bool want(StepContext& ctx, cpu::ActForm form, int64_t n_rows, int64_t n_cols) {
    const int32_t f = static_cast<int32_t>(form);
    if (acts[f] != nullptr) return true;
    stride[f] = cpu::act_row_bytes(form, n_cols);
    acts[f] = ctx.scratch_array<uint8_t>(n_rows * stride[f]);
    return acts[f] != nullptr;
  }
  const uint8_t* of(cpu::ActForm form) const { return acts[static_cast<int32_t>(form)]; }
  int64_t stride_of(cpu::ActForm form) const { return stride[static_cast<int32_t>(form)]; }
  // Rounds x into row `row` of every wanted form.
  void round(cpu::Tier tier, const float* x, int64_t n_cols, int64_t row) const {
    for (int32_t f = 0; f < 3; ++f) {
      if (acts[f] == nullptr) continue;
      cpu::act_quantize(tier, static_cast<cpu::ActForm>(f), x, n_cols, n_cols, 1, acts[f] + row * stride[f]);
    }
  }
};

// Scratch of RoundedRows for the types of `n` tensors (-1 and equal forms are counted once).
int64_t rounded_rows_bytes(const ScratchQuery& query, const int32_t* tensors, int32_t n, int64_t n_rows, int64_t n_cols);

// One op kind each; ops.cpp holds the table.
Status run_embed(StepContext& ctx, const strata_op& op);
Status run_norm(StepContext& ctx, const strata_op& op);
Status run_rope(StepContext& ctx, const strata_op& op);
Status run_copy(StepContext& ctx, const strata_op& op);
Status run_glu(StepContext& ctx, const strata_op& op);
Status run_add(StepContext& ctx, const strata_op& op);
Status run_gather(StepContext& ctx, const strata_op& op);
Status run_mul(StepContext& ctx, const strata_op& op);
Status run_clamp(StepContext& ctx, const strata_op& op);
Status run_temperature(StepContext& ctx, const strata_op& op);
Status run_scale(StepContext& ctx, const strata_op& op);
Status run_linear(StepContext& ctx, const strata_op& op);
Status run_head_linear(StepContext& ctx, const strata_op& op);
Status run_head(StepContext& ctx, const strata_op& op);
Status run_attention(StepContext& ctx, const strata_op& op);
Status run_index(StepContext& ctx, const strata_op& op);
Status run_mix(StepContext& ctx, const strata_op& op);
Status run_router(StepContext& ctx, const strata_op& op);
Status run_experts(StepContext& ctx, const strata_op& op);
Status run_combine(StepContext& ctx, const strata_op& op);
Status run_conv(StepContext& ctx, const strata_op& op);
Status run_delta(StepContext& ctx, const strata_op& op);
Status run_ssm_heads(StepContext& ctx, const strata_op& op);
Status run_ssm_channels(StepContext& ctx, const strata_op& op);
Status run_lightning(StepContext& ctx, const strata_op& op);

int64_t mul_scratch(const ScratchQuery& query, const strata_op& op);
int64_t linear_scratch(const ScratchQuery& query, const strata_op& op);
int64_t head_linear_scratch(const ScratchQuery& query, const strata_op& op);
int64_t head_scratch(const ScratchQuery& query, const strata_op& op);
int64_t attention_scratch(const ScratchQuery& query, const strata_op& op);
int64_t index_scratch(const ScratchQuery& query, const strata_op& op);
int64_t mix_scratch(const ScratchQuery& query, const strata_op& op);
int64_t router_scratch(const ScratchQuery& query, const strata_op& op);
int64_t experts_scratch(const ScratchQuery& query, const strata_op& op);
int64_t conv_scratch(const ScratchQuery& query, const strata_op& op);
int64_t delta_scratch(const ScratchQuery& query, const strata_op& op);
int64_t ssm_heads_scratch(const ScratchQuery& query, const strata_op& op);
int64_t ssm_channels_scratch(const ScratchQuery& query, const strata_op& op);
int64_t lightning_scratch(const ScratchQuery& query, const strata_op& op);

}  // namespace strata
