// What of a plan the GPU's kernels cannot compute is refused before anything is allocated.
#include "cuda/gpu_ops.h"

namespace strata::cuda {
namespace {

Status check_attention(const Plan& plan, const strata_op& op, Error& error) {
  const AttentionShape shape = attention_shape(plan, op, 1, 1);
  if (shape.n_head_kv < 1 || shape.n_head % shape.n_head_kv != 0)
    return error.fail(STRATA_E_UNSUPPORTED, "layer %d: %d query heads on %d key heads; the GPU needs a multiple", op.layer,
                      shape.n_head, shape.n_head_kv);
  if (shape.head_k > kAttnMaxHeadK)
    return error.fail(STRATA_E_UNSUPPORTED, "layer %d: heads of %d values; the GPU's attention takes up to %d", op.layer,
                      shape.head_k, kAttnMaxHeadK);
  return STRATA_OK;
}

}  // namespace

Status check_plan(const Plan& plan, const GpuConfig&, Error& error) {
  for (int64_t i = 0; i < plan.ops.size(); ++i) {
    const strata_op& op = plan.ops[i];
    if (op.kind < STRATA_OP_EMBED || op.kind > STRATA_OP_SCALE)
      return error.fail(STRATA_E_UNSUPPORTED,
                        "op %lld %s, layer %d: it has no CUDA kernel yet; run the model with the backend cpu",
                        static_cast<long long>(i), op_name(op.kind), op.layer);
    if (op.kind == STRATA_OP_ATTENTION) STRATA_TRY(check_attention(plan, op, error));
  }
  return STRATA_OK;
}

}  // namespace strata::cuda
