// SSM_HEADS and SSM_CHANNELS: selective state spaces, token by token.
//
// SSM_HEADS (one decay a head; rows of x, B and C in one buffer), per head with state h [n_state][head]:
//   dt = softplus(dt + bias);  e = exp(dt * A);  h[s] = (e * h[s]) + ((dt * B[s]) * x), rounded at each operation;
//   y = chain of fma(C[s], h[s], y) from 0, s ascending;  y = fma(D, x, y)
// SSM_CHANNELS (decays for each channel and each of its states), per channel with state h [n_state]:
//   dt = softplus(dt + bias);  h[s] = fma(dt * x, B[s], exp(dt * A[s]) * h[s]);  y = dot16(C, h) + D * x
// Source: Mamba (arXiv 2312.00752) section 3, Mamba-2 (arXiv 2405.21060) section 7; A is stored negative.
// Parallel over sequences and heads or blocks of channels. Bytes moved: the state in and out once for every token.
#include <string.h>

#include <algorithm>

#include "engine/op_split.h"
#include "engine/seq_runs.h"

namespace strata {
namespace {

constexpr int64_t kChannels = 64;  // of one task

// dt of every token, [n_tokens][n].
Status steps(StepContext& ctx, const strata_op& op, int64_t n, float* dt) {
  const cpu::VecMath& vec = *cpu::vec_math(ctx.tier);
  return for_rows(ctx, ctx.step.n_tokens, n * 8, [&](int64_t t) {
    vec.add(ctx.row(op.in[1], t), ctx.vector(op.weight[2]), dt + t * n, n);
    vec.unary(cpu::Unary::softplus, dt + t * n, dt + t * n, n);
  });
}

struct Heads {
  const StepContext& ctx;
  const strata_op& op;
  const float* dt;  // [n_tokens][n_head]
  int64_t n_head, head, n_group, n_state;

  void token(int64_t t, int64_t h, float* state) const {
    const cpu::VecMath& vec = *cpu::vec_math(ctx.tier);
    const float* row = ctx.row(op.in[0], t);
    const float* x = row + h * head;
    const float* b = row + n_head * head + h / (n_head / n_group) * n_state;
    const float* c = b + n_group * n_state;
    const float step = dt[t * n_head + h];
    float decay = step * ctx.vector(op.weight[0])[h];
    vec.unary(cpu::Unary::exp, &decay, &decay, 1);
    float* y = ctx.row(op.out[0], t) + h * head;
    memset(y, 0, static_cast<size_t>(head) * sizeof(float));
    for (int64_t s = 0; s < n_state; ++s) {
      float* rows = state + s * head;
      vec.add_scaled(decay, rows, step * b[s], x, rows, head);
      vec.axpy(c[s], rows, y, head);
    }
    vec.axpy(ctx.vector(op.weight[1])[h], x, y, head);
  }
};

struct Channels {
  const StepContext& ctx;
  const strata_op& op;
  const float* dt;  // [n_tokens][width]
  int64_t width, n_state;

  // decay: scratch for one channel's factors.
  void token(int64_t t, int64_t begin, int64_t end, float* state, float* decay) const {
    const cpu::VecMath& vec = *cpu::vec_math(ctx.tier);
    const float* x = ctx.row(op.in[0], t);
    const float *b = ctx.row(op.in[2], t), *c = ctx.row(op.in[3], t);
    const float *a = ctx.vector(op.weight[0]), *d = ctx.vector(op.weight[1]);
    float* y = ctx.row(op.out[0], t);
    for (int64_t k = begin; k < end; ++k) {
      float* h = state + k * n_state;
      const float step = dt[t * width + k];
      vec.scale(a + k * n_state, step, decay, n_state);
      vec.unary(cpu::Unary::exp, decay, decay, n_state);
      vec.mul(decay, h, h, n_state);
      vec.axpy(step * x[k], b, h, n_state);
      y[k] = vec.dot(c, h, n_state) + d[k] * x[k];
    }
  }
};

int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

}  // namespace

int64_t ssm_heads_scratch(const ScratchQuery& query, const strata_op& op) {
  return SeqRuns::scratch(query) + scratch_array_bytes<float>(int64_t{query.n_tokens} * op.i[STRATA_SSM_HEADS_I_N_HEAD]);
}

Status run_ssm_heads(StepContext& ctx, const strata_op& op) {
  SeqRuns runs;
  if (!runs.find(ctx, op.i[STRATA_SSM_HEADS_I_STATE])) return ctx.error.status;
  const int64_t n_head = op.i[STRATA_SSM_HEADS_I_N_HEAD], n_state = op.i[STRATA_SSM_HEADS_I_N_STATE];
  float* dt = ctx.scratch_array<float>(ctx.step.n_tokens * n_head);
  if (dt == nullptr) return ctx.error.status;
  STRATA_TRY(steps(ctx, op, n_head, dt));
  const Heads heads{ctx, op, dt, n_head, op.i[STRATA_SSM_HEADS_I_HEAD], op.i[STRATA_SSM_HEADS_I_N_GROUP], n_state};
  return ctx.pool.run(runs.n * n_head, 1, [&](int64_t item, int32_t) {
    const SeqRun& run = runs.runs[item / n_head];
    const int64_t h = item % n_head;
    float* state = run.state + h * n_state * heads.head;
    for (int64_t t = run.row; t < run.row + run.n_rows && !ctx.stopped(); ++t) heads.token(t, h, state);
  });
}

int64_t ssm_channels_scratch(const ScratchQuery& query, const strata_op& op) {
  return SeqRuns::scratch(query) + scratch_array_bytes<float>(int64_t{query.n_tokens} * op.i[STRATA_SSM_CHANNELS_I_WIDTH]) +
         scratch_array_bytes<float>(query.n_workers * padded(op.i[STRATA_SSM_CHANNELS_I_N_STATE]));
}

Status run_ssm_channels(StepContext& ctx, const strata_op& op) {
  SeqRuns runs;
  if (!runs.find(ctx, op.i[STRATA_SSM_CHANNELS_I_STATE])) return ctx.error.status;
  const int64_t width = op.i[STRATA_SSM_CHANNELS_I_WIDTH], n_state = op.i[STRATA_SSM_CHANNELS_I_N_STATE];
  float* dt = ctx.scratch_array<float>(ctx.step.n_tokens * width);
  float* decays = ctx.scratch_array<float>(ctx.n_workers() * padded(n_state));
  if (decays == nullptr) return ctx.error.status;
  STRATA_TRY(steps(ctx, op, width, dt));
  const Channels channels{ctx, op, dt, width, n_state};
  const int64_t n_blocks = (width + kChannels - 1) / kChannels;
  return ctx.pool.run(runs.n * n_blocks, 1, [&](int64_t item, int32_t worker) {
    const SeqRun& run = runs.runs[item / n_blocks];
    const int64_t begin = item % n_blocks * kChannels, end = std::min(begin + kChannels, width);
    float* decay = decays + worker * padded(n_state);
    for (int64_t t = run.row; t < run.row + run.n_rows && !ctx.stopped(); ++t)
      channels.token(t, begin, end, run.state, decay);
  });
}

}  // namespace strata
