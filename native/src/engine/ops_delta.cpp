// DELTA: the gated delta rule, token by token.
//
// For each value head, S [head_k][head_v] in the state, with q, k of its key head and v, a, b of its own:
//   e = exp(A * softplus(a + bias)), or with a bound exp(bound * sigmoid(A * (a + bias))), one for the head or one for
//   each row of S;  beta = sigmoid(b)
//   S[i] = e * S[i];  u = chain of fma(k[i], S[i], u) from 0, i ascending;  d = (v - u) * beta
//   S[i] = fma(k[i], d, S[i]);  o = chain of fma(q[i], S[i], o) from 0, i ascending;  out = o * scale
// Source: Gated Delta Networks (arXiv 2412.06464) section 3; one e for each row: Kimi Linear (arXiv 2510.26692).
// Parallel over sequences and value heads. Bytes moved: the state once in and once out for every token.
#include <string.h>

#include <algorithm>

#include "engine/op_split.h"
#include "engine/seq_runs.h"

namespace strata {
namespace {

struct DeltaShape {
  int64_t n_k, n_v, head_k, head_v;
  int64_t n_decay;  // decays of one token: for each head, or for each row of each head's S
  bool tiled;

  explicit DeltaShape(const strata_op& op)
      : n_k(op.i[STRATA_DELTA_I_N_K]),
        n_v(op.i[STRATA_DELTA_I_N_V]),
        head_k(op.i[STRATA_DELTA_I_HEAD_K]),
        head_v(op.i[STRATA_DELTA_I_HEAD_V]),
        n_decay(op.i[STRATA_DELTA_I_PER_ROW] != 0 ? n_v * head_k : n_v),
        tiled(op.i[STRATA_DELTA_I_TILED] != 0) {}

  int64_t key_head(int64_t h) const { return tiled ? h % n_k : h / (n_v / n_k); }
};

struct Delta {
  StepContext& ctx;
  const strata_op& op;
  const DeltaShape shape;
  const cpu::VecMath& vec;
  float* decays;       // [n_tokens][n_decay]
  float* betas;        // [n_tokens][n_v]
  float* corrections;  // [n_workers][head_v]

  void prepare(int64_t t) const {
    float* e = decays + t * shape.n_decay;
    const float* a = ctx.vector(op.weight[0]);
    const int64_t n = shape.n_decay / shape.n_v;
    vec.add(ctx.row(op.in[1], t), ctx.vector(op.weight[1]), e, shape.n_decay);
    const float bound = op.f[STRATA_DELTA_F_BOUND];
    const bool negated = op.i[STRATA_DELTA_I_NEGATED] != 0;
    if (bound == 0) vec.unary(cpu::Unary::softplus, e, e, shape.n_decay);
    for (int64_t h = 0; h < shape.n_v; ++h) vec.scale(e + h * n, negated ? -a[h] : a[h], e + h * n, n);
    if (bound != 0) {
      vec.unary(cpu::Unary::sigmoid, e, e, shape.n_decay);
      vec.scale(e, bound, e, shape.n_decay);
    }
    vec.unary(cpu::Unary::exp, e, e, shape.n_decay);
    vec.unary(cpu::Unary::sigmoid, ctx.row(op.in[2], t), betas + t * shape.n_v, shape.n_v);
  }

  void token(int64_t t, int64_t h, float* state, float* u) const {
    const int64_t dk = shape.head_k, dv = shape.head_v, kh = shape.key_head(h);
    const float* qkv = ctx.row(op.in[0], t);
    const float* q = qkv + kh * dk;
    const float* k = qkv + (shape.n_k + kh) * dk;
    const float* v = qkv + 2 * shape.n_k * dk + h * dv;
    const bool per_row = shape.n_decay != shape.n_v;
    const float* e = decays + t * shape.n_decay + (per_row ? h * dk : h);
    float* out = ctx.row(op.out[0], t) + h * dv;
    memset(u, 0, static_cast<size_t>(dv) * sizeof(float));
    for (int64_t i = 0; i < dk; ++i) {
      vec.scale(state + i * dv, e[per_row ? i : 0], state + i * dv, dv);
      vec.axpy(k[i], state + i * dv, u, dv);
    }
    vec.add_scaled(1.0f, v, -1.0f, u, u, dv);
    vec.scale(u, betas[t * shape.n_v + h], u, dv);
    memset(out, 0, static_cast<size_t>(dv) * sizeof(float));
    for (int64_t i = 0; i < dk; ++i) {
      vec.axpy(k[i], u, state + i * dv, dv);
      vec.axpy(q[i], state + i * dv, out, dv);
    }
    vec.scale(out, op.f[STRATA_DELTA_F_SCALE], out, dv);
  }
};

int64_t row_floats(int64_t n) { return (n + 15) / 16 * 16; }

}  // namespace

int64_t delta_scratch(const ScratchQuery& query, const strata_op& op) {
  const DeltaShape shape(op);
  return SeqRuns::scratch(query) + scratch_array_bytes<float>(query.n_tokens * shape.n_decay) +
         scratch_array_bytes<float>(query.n_tokens * shape.n_v) +
         scratch_array_bytes<float>(query.n_workers * row_floats(shape.head_v));
}

Status run_delta(StepContext& ctx, const strata_op& op) {
  SeqRuns runs;
  if (!runs.find(ctx, op.i[STRATA_DELTA_I_STATE])) return ctx.error.status;
  const DeltaShape shape(op);
  const int64_t n_tokens = ctx.step.n_tokens, stride = row_floats(shape.head_v);
  float* decays = ctx.scratch_array<float>(n_tokens * shape.n_decay);
  float* betas = ctx.scratch_array<float>(n_tokens * shape.n_v);
  float* corrections = ctx.scratch_array<float>(ctx.n_workers() * stride);
  if (corrections == nullptr) return ctx.error.status;
  const Delta delta{ctx, op, shape, *cpu::vec_math(ctx.tier), decays, betas, corrections};
  STRATA_TRY(for_rows(ctx, n_tokens, shape.n_decay * 16, [&](int64_t t) { delta.prepare(t); }));
  return ctx.pool.run(runs.n * shape.n_v, 1, [&](int64_t item, int32_t worker) {
    const SeqRun& run = runs.runs[item / shape.n_v];
    const int64_t h = item % shape.n_v;
    float* state = run.state + h * shape.head_k * shape.head_v;
    for (int64_t t = run.row; t < run.row + run.n_rows && !ctx.stopped(); ++t)
      delta.token(t, h, state, corrections + worker * stride);
  });
}

}  // namespace strata
