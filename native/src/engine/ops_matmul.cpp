// Matrix ops: LINEAR (up to four matrices on one input), HEAD_LINEAR (one matrix for each head), HEAD (logits).
//
// The input is rounded once for each activation form wanted; then tasks of whole groups of matrix rows are shared by the
// workers, each task computing its rows for all tokens and finishing them (scale, bias, softcap).
// Bytes moved: each matrix once for every chunk of tokens that fits the kernel's cache block.
#include "engine/op_split.h"
#include "engine/ops.h"

namespace strata {
namespace {

// One matrix of a region. The output row of token t is y + t * y_stride.
struct MatrixJob {
  cpu::MatView w;
  cpu::MatmulFn matmul;
  const uint8_t* acts;
  int64_t act_stride;
  float* y;
  int64_t y_stride;
  const float* scale;  // null: none
  const float* bias;   // null: none
  float softcap;       // 0: none
  int64_t task_rows;
  int64_t first_task;
};

void run_task(const StepContext& ctx, const MatrixJob& job, int64_t task, int64_t n_tokens) {
  const int64_t begin = task * job.task_rows;
  const int64_t end = begin + job.task_rows < job.w.n_rows ? begin + job.task_rows : job.w.n_rows;
  job.matmul({job.w, begin, end, job.acts, job.act_stride, nullptr, n_tokens, job.y, job.y_stride, nullptr});
  if (job.scale == nullptr && job.bias == nullptr && job.softcap == 0.0f) return;
  const cpu::VecMath& vec = *cpu::vec_math(ctx.tier);
  for (int64_t t = 0; t < n_tokens; ++t) {
    float* y = job.y + t * job.y_stride;
    scale_and_bias(vec, y, job.scale, job.bias, begin, end);
    if (job.softcap != 0.0f) vec.softcap(y + begin, job.softcap, y + begin, end - begin);
  }
}

// Sets task sizes from the bytes of all jobs; returns the number of tasks.
int64_t plan_tasks(StepContext& ctx, MatrixJob* jobs, int64_t n_jobs) {
  int64_t total = 0, n_tasks = 0;
  for (int64_t k = 0; k < n_jobs; ++k) total += matrix_bytes(jobs[k].w, *cpu::type_kernels(ctx.tier, jobs[k].w.type));
  ctx.counters.weight_bytes += total;
  for (int64_t k = 0; k < n_jobs; ++k) {
    MatrixJob& job = jobs[k];
    const int64_t bytes = matrix_bytes(job.w, *cpu::type_kernels(ctx.tier, job.w.type));
    job.task_rows = rows_of_task(total, bytes / job.w.n_rows + 1, ctx.n_workers());
    job.first_task = n_tasks;
    n_tasks += (job.w.n_rows + job.task_rows - 1) / job.task_rows;
  }
  return n_tasks;
}

Status run_jobs(StepContext& ctx, MatrixJob* jobs, int64_t n_jobs, int64_t n_tokens) {
  const int64_t n_tasks = plan_tasks(ctx, jobs, n_jobs);
  return ctx.pool.run(n_tasks, 1, [&](int64_t task, int32_t) {
    if (ctx.stopped()) return;
    int64_t low = 0, high = n_jobs;  // the last job that starts at or before the task
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (jobs[middle].first_task <= task ? low : high) = middle;
    }
    run_task(ctx, jobs[low], task - jobs[low].first_task, n_tokens);
  });
}

MatrixJob matrix_job(const StepContext& ctx, int32_t tensor, int64_t mat, const RoundedRows& rounded) {
  MatrixJob job{};
  job.w = ctx.matrix(tensor, mat);
  const cpu::TypeKernels& kernels = *cpu::type_kernels(ctx.tier, job.w.type);
  job.matmul = matmul_function(job.w, kernels);
  job.acts = rounded.of(kernels.act);
  job.act_stride = rounded.stride_of(kernels.act);
  return job;
}

cpu::ActForm act_form(const StepContext& ctx, int32_t tensor) {
  return cpu::type_kernels(ctx.tier, ctx.plan().tensors[tensor].type)->act;
}

}  // namespace

int64_t linear_scratch(const ScratchQuery& query, const strata_op& op) {
  const int64_t n_cols = query.model.plan.tensors[op.weight[0]].n_cols;
  return rounded_rows_bytes(query, op.weight, op.i[STRATA_LINEAR_I_N], query.n_rows(op.in[0]), n_cols);
}

Status run_linear(StepContext& ctx, const strata_op& op) {
  const int32_t n = op.i[STRATA_LINEAR_I_N];
  const int64_t n_rows = ctx.n_rows(op.in[0]), n_cols = ctx.plan().tensors[op.weight[0]].n_cols;
  RoundedRows rounded;
  for (int32_t k = 0; k < n; ++k) {
    if (!rounded.want(ctx, act_form(ctx, op.weight[k]), n_rows, n_cols)) return ctx.error.status;
  }
  STRATA_TRY(for_rows(ctx, n_rows, n_cols, [&](int64_t t) { rounded.round(ctx.tier, ctx.row(op.in[0], t), n_cols, t); }));
  MatrixJob jobs[STRATA_OP_N_OUT];
  for (int32_t k = 0; k < n; ++k) {
    jobs[k] = matrix_job(ctx, op.weight[k], 0, rounded);
    jobs[k].y = ctx.row(op.out[k], 0);
    jobs[k].y_stride = ctx.row_stride(op.out[k]);
    jobs[k].bias = ctx.vector(op.weight[4 + k]);
    jobs[k].scale = ctx.vector(op.weight[8 + k]);
  }
  return run_jobs(ctx, jobs, n, n_rows);
}

int64_t head_linear_scratch(const ScratchQuery& query, const strata_op& op) {
  const int64_t n_head = op.i[STRATA_HEAD_LINEAR_I_N_HEAD];
  const int64_t n_cols = query.model.plan.tensors[op.weight[0]].n_cols;
  return rounded_rows_bytes(query, op.weight, 1, query.n_rows(op.in[0]) * n_head, n_cols) +
         scratch_array_bytes<MatrixJob>(n_head);
}

Status run_head_linear(StepContext& ctx, const strata_op& op) {
  const int64_t n_head = op.i[STRATA_HEAD_LINEAR_I_N_HEAD];
  const int64_t n_rows = ctx.n_rows(op.in[0]), n_cols = ctx.plan().tensors[op.weight[0]].n_cols;
  RoundedRows rounded;  // row h * n_rows + t
  if (!rounded.want(ctx, act_form(ctx, op.weight[0]), n_rows * n_head, n_cols)) return ctx.error.status;
  STRATA_TRY(for_rows(ctx, n_rows * n_head, n_cols, [&](int64_t row) {
    const int64_t h = row / n_rows, t = row % n_rows;
    const float* x = ctx.row(op.in[0], t) + op.i[STRATA_HEAD_LINEAR_I_IN_OFFSET] + h * op.i[STRATA_HEAD_LINEAR_I_IN_STRIDE];
    rounded.round(ctx.tier, x, n_cols, row);
  }));
  MatrixJob* jobs = ctx.scratch_array<MatrixJob>(n_head);
  if (jobs == nullptr) return ctx.error.status;
  for (int64_t h = 0; h < n_head; ++h) {
    jobs[h] = matrix_job(ctx, op.weight[0], h, rounded);
    jobs[h].acts += h * n_rows * jobs[h].act_stride;
    jobs[h].y = ctx.row(op.out[0], 0) + op.i[STRATA_HEAD_LINEAR_I_OUT_OFFSET] + h * op.i[STRATA_HEAD_LINEAR_I_OUT_STRIDE];
    jobs[h].y_stride = ctx.row_stride(op.out[0]);
  }
  return run_jobs(ctx, jobs, n_head, n_rows);
}

int64_t head_scratch(const ScratchQuery& query, const strata_op& op) {
  return rounded_rows_bytes(query, op.weight, 1, query.n_rows(op.in[0]), query.model.plan.tensors[op.weight[0]].n_cols);
}

Status run_head(StepContext& ctx, const strata_op& op) {
  const int64_t n_rows = ctx.n_rows(op.in[0]), n_cols = ctx.plan().tensors[op.weight[0]].n_cols;
  if (n_rows == 0) return STRATA_OK;
  RoundedRows rounded;
  if (!rounded.want(ctx, act_form(ctx, op.weight[0]), n_rows, n_cols)) return ctx.error.status;
  STRATA_TRY(for_rows(ctx, n_rows, n_cols, [&](int64_t t) { rounded.round(ctx.tier, ctx.row(op.in[0], t), n_cols, t); }));
  MatrixJob job = matrix_job(ctx, op.weight[0], 0, rounded);
  job.y = ctx.row(op.out[0], 0);
  job.y_stride = ctx.row_stride(op.out[0]);
  const float* of_weight = ctx.vector(op.weight[2]);
  const float scale = of_weight == nullptr ? op.f[STRATA_HEAD_F_SCALE] : op.f[STRATA_HEAD_F_SCALE] * *of_weight;
  job.scale = scale == 1.0f ? nullptr : &scale;
  job.bias = ctx.vector(op.weight[1]);
  job.softcap = op.f[STRATA_HEAD_F_SOFTCAP];
  return run_jobs(ctx, &job, 1, n_rows);
}

}  // namespace strata
