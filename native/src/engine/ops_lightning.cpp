// LIGHTNING: linear attention with a fixed decay for each head, token by token.
//
// Per head h with S [head][head] in the state: e = exp(-slope * 2^(-8 (h + 1) / n_head)), in double, rounded once;
//   S[i] = (e * S[i]) + (k[i] * v), rounded at each operation;  out = chain of fma(q[i], S[i], out) from 0, i ascending
// Source: Lightning Attention-2 (arXiv 2401.04658); MiniMax-01 (arXiv 2501.08313) section 2.2.
// Parallel over sequences and heads. Bytes moved: the state in and out once for every token.
#include <string.h>

#include "base/ieee_math.h"
#include "engine/op_split.h"
#include "engine/seq_runs.h"

namespace strata {
namespace {

constexpr double kLn2 = 0x1.62e42fefa39efp-1;

float decay_of(int64_t h, int64_t n_head, float slope) {
  const double exponent = -8.0 * static_cast<double>(h + 1) / static_cast<double>(n_head);
  return static_cast<float>(m_exp_double(-static_cast<double>(slope) * m_exp_double(exponent * kLn2)));
}

void lightning_token(const StepContext& ctx, const strata_op& op, int64_t t, int64_t h, float decay, float* state) {
  const cpu::VecMath& vec = *cpu::vec_math(ctx.tier);
  const int64_t head = op.i[STRATA_LIGHTNING_I_HEAD];
  const float* q = ctx.row(op.in[0], t) + h * 3 * head;
  const float *k = q + head, *v = q + 2 * head;
  float* out = ctx.row(op.out[0], t) + h * head;
  memset(out, 0, static_cast<size_t>(head) * sizeof(float));
  for (int64_t i = 0; i < head; ++i) {
    float* row = state + i * head;
    vec.add_scaled(decay, row, k[i], v, row, head);
    vec.axpy(q[i], row, out, head);
  }
}

}  // namespace

int64_t lightning_scratch(const ScratchQuery& query, const strata_op&) { return SeqRuns::scratch(query); }

Status run_lightning(StepContext& ctx, const strata_op& op) {
  SeqRuns runs;
  if (!runs.find(ctx, op.i[STRATA_LIGHTNING_I_STATE])) return ctx.error.status;
  const int64_t n_head = op.i[STRATA_LIGHTNING_I_N_HEAD], head = op.i[STRATA_LIGHTNING_I_HEAD];
  return ctx.pool.run(runs.n * n_head, 1, [&](int64_t item, int32_t) {
    const SeqRun& run = runs.runs[item / n_head];
    const int64_t h = item % n_head;
    const float decay = decay_of(h, n_head, op.f[STRATA_LIGHTNING_F_SLOPE]);
    float* state = run.state + h * head * head;
    for (int64_t t = run.row; t < run.row + run.n_rows && !ctx.stopped(); ++t) lightning_token(ctx, op, t, h, decay, state);
  });
}

}  // namespace strata
