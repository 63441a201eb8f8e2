// The table of ops, and what the ops of one step share.
#include "engine/ops.h"

#include "base/ieee_math.h"
#include "engine/op_split.h"

namespace strata {
namespace {

const OpEntry kOps[] = {
    {nullptr, nullptr},
    {run_embed, nullptr},
    {run_norm, nullptr},
    {run_linear, linear_scratch},
    {run_head_linear, head_linear_scratch},
    {run_rope, nullptr},
    {run_copy, nullptr},
    {run_attention, attention_scratch},
    {run_router, router_scratch},
    {run_experts, experts_scratch},
    {run_combine, nullptr},
    {run_glu, nullptr},
    {run_add, nullptr},
    {run_gather, nullptr},
    {run_head, head_scratch},
    {run_mul, mul_scratch},
    {run_clamp, nullptr},
    {run_temperature, nullptr},
    {run_scale, nullptr},
    {run_index, index_scratch},
    {run_mix, mix_scratch},
};
constexpr int32_t kLastKind = static_cast<int32_t>(sizeof kOps / sizeof kOps[0]) - 1;
static_assert(kLastKind == STRATA_OP_MIX, "one entry for every op kind");

// The kinds with a state.
const OpEntry kStateOps[] = {
    {run_conv, conv_scratch},           {run_delta, delta_scratch},
    {run_ssm_heads, ssm_heads_scratch}, {run_ssm_channels, ssm_channels_scratch},
    {run_lightning, lightning_scratch},
};
constexpr int32_t kNStateOps = static_cast<int32_t>(sizeof kStateOps / sizeof kStateOps[0]);

// Angles in double; the sine and cosine are multiplied by the magnitude in double and rounded to float32 once.
void fill_rope_row(const StepContext& ctx, const strata_rope& rope, int32_t pos, float* row) {
  const int32_t half = rope.n_rot / 2;
  const double* freqs = ctx.plan().freqs.data() + rope.freq_first;
  const float* factors = ctx.vector(rope.factors);
  for (int32_t p = 0; p < half; ++p) {
    double angle = static_cast<double>(pos) * freqs[p];
    if (factors != nullptr) angle /= static_cast<double>(factors[p]);
    double sine, cosine;
    m_sincos(angle, sine, cosine);
    row[p] = static_cast<float>(cosine * static_cast<double>(rope.magnitude));
    row[half + p] = static_cast<float>(sine * static_cast<double>(rope.magnitude));
  }
}

}  // namespace

const OpEntry* op_function(int32_t kind) {
  if (kind >= STRATA_OP_CONV) return kind < STRATA_OP_CONV + kNStateOps ? &kStateOps[kind - STRATA_OP_CONV] : nullptr;
  return kind >= STRATA_OP_EMBED && kind <= kLastKind ? &kOps[kind] : nullptr;
}

// Layout: for each rotary table, n_batch rows of n_rot floats, cosines first.
int64_t step_tables_bytes(const ScratchQuery& query) {
  int64_t floats = 0;
  for (const strata_rope& rope : query.model.plan.ropes) floats += int64_t{rope.n_rot} * query.model.plan.n_batch;
  return scratch_array_bytes<float>(floats);
}

const float* step_rope_row(const StepContext& ctx, int32_t table, int64_t t) {
  const Plan& plan = ctx.plan();
  int64_t floats = 0;
  for (int32_t k = 0; k < table; ++k) floats += int64_t{plan.ropes[k].n_rot} * plan.n_batch;
  return reinterpret_cast<const float*>(ctx.tables) + floats + t * plan.ropes[table].n_rot;
}

Status step_tables_fill(StepContext& ctx) {
  const Plan& plan = ctx.plan();
  for (int32_t k = 0; k < plan.ropes.size(); ++k) {
    const strata_rope& rope = plan.ropes[k];
    STRATA_TRY(for_rows(ctx, ctx.step.n_tokens, int64_t{rope.n_rot} * 32, [&](int64_t t) {
      fill_rope_row(ctx, rope, ctx.step.pos[t], const_cast<float*>(step_rope_row(ctx, k, t)));
    }));
  }
  return STRATA_OK;
}

int64_t rounded_rows_bytes(const ScratchQuery& query, const int32_t* tensors, int32_t n, int64_t n_rows, int64_t n_cols) {
  bool wanted[3] = {};
  int64_t bytes = 0;
  for (int32_t k = 0; k < n; ++k) {
    if (tensors[k] < 0) continue;
    const cpu::TypeKernels* kernels = cpu::type_kernels(query.tier, query.model.plan.tensors[tensors[k]].type);
    if (kernels == nullptr || wanted[static_cast<int32_t>(kernels->act)]) continue;
    wanted[static_cast<int32_t>(kernels->act)] = true;
    bytes += scratch_array_bytes<uint8_t>(n_rows * cpu::act_row_bytes(kernels->act, n_cols));
  }
  return bytes;
}

}  // namespace strata
