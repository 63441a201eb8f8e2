// MIX: softmax attention over a few vectors of the token itself, which stand for layers (Kimi K3's residual).
//
// For vector j of n (those of in0, then in1): s_j = sum256(rms_norm(x_j, gain w0, eps)); m = largest s_j;
//   p_j = exp(s_j - m), l = their sum in 16 strided lanes and a tree; out = chain of fma(p_j, x_j, out) from +0, j
//   ascending, then out * (1 / l).
// Parallel over rows. Bytes moved: every vector twice.
#include <string.h>

#include "engine/op_split.h"

namespace strata {

int64_t mix_scratch(const ScratchQuery& query, const strata_op& op) {
  return query.n_workers * (scratch_array_bytes<float>(op.i[STRATA_MIX_I_WIDTH]) +
                            scratch_array_bytes<float>(op.i[STRATA_MIX_I_N_VEC] + 1)) +
         2 * scratch_array_bytes<float*>(query.n_workers);
}

Status run_mix(StepContext& ctx, const strata_op& op) {
  const cpu::VecMath& vec = *cpu::vec_math(ctx.tier);
  const int64_t n = op.i[STRATA_MIX_I_N_VEC] + 1, width = op.i[STRATA_MIX_I_WIDTH], n_workers = ctx.n_workers();
  const float* weights = ctx.vector(op.weight[0]);
  float** normed = ctx.scratch_array<float*>(n_workers);
  float** scores = ctx.scratch_array<float*>(n_workers);
  for (int64_t k = 0; scores != nullptr && k < n_workers; ++k) {
    normed[k] = ctx.scratch_array<float>(width);
    scores[k] = ctx.scratch_array<float>(n);
    if (scores[k] == nullptr) return ctx.error.status;
  }
  if (scores == nullptr) return ctx.error.status;
  return ctx.pool.run(ctx.n_rows(op.out[0]), 1, [&](int64_t t, int32_t worker) {
    float *s = scores[worker], *out = ctx.row(op.out[0], t);
    const auto vector = [&](int64_t j) { return j + 1 < n ? ctx.row(op.in[0], t) + j * width : ctx.row(op.in[1], t); };
    for (int64_t j = 0; j < n; ++j) {
      vec.rms_norm(vector(j), weights, op.f[STRATA_MIX_F_EPS], normed[worker], width);
      s[j] = vec.sum(normed[worker], width);
    }
    const float sum = vec.exp_sub(s, vec.max(s, n), s, n);
    memset(out, 0, static_cast<size_t>(width) * sizeof(float));
    for (int64_t j = 0; j < n; ++j) vec.axpy(s[j], vector(j), out, width);
    vec.scale(out, 1.0f / sum, out, width);
  });
}

}  // namespace strata
