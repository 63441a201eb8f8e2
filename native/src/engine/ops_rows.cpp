// Ops that treat every row alone and read no matrix: EMBED, NORM, ROPE, COPY, GLU, ADD, GATHER, MUL, CLAMP, TEMPERATURE.
//
// Parallel over rows. A row is one call of a row function of cpu/vecmath.h, or one call for each head.
#include <string.h>

#include "base/ieee_math.h"
#include "engine/op_split.h"
#include "engine/ops.h"

namespace strata {
namespace {

const cpu::VecMath& vec_of(const StepContext& ctx) { return *cpu::vec_math(ctx.tier); }

void norm_vector(const cpu::VecMath& vec, const strata_op& op, const float* x, const float* gain, const float* bias,
                 float* out) {
  const int64_t width = op.i[STRATA_NORM_I_WIDTH];
  const float eps = op.f[STRATA_NORM_F_EPS];
  switch (op.i[STRATA_NORM_I_KIND]) {
    case STRATA_NORM_LAYER:
      vec.layer_norm(x, gain, bias, eps, out, width);
      return;
    case STRATA_NORM_RMS:
      vec.rms_norm(x, gain, eps, out, width);
      if (bias != nullptr) vec.add(out, bias, out, width);
      return;
    default:
      vec.l2_norm(x, eps, out, width);
      if (gain != nullptr) vec.mul(out, gain, out, width);
      if (bias != nullptr) vec.add(out, bias, out, width);
  }
}

}  // namespace

Status run_embed(StepContext& ctx, const strata_op& op) {
  const cpu::MatView w = ctx.matrix(op.weight[0]);
  const cpu::VecMath& vec = vec_of(ctx);
  const float scale = op.f[STRATA_EMBED_F_SCALE];
  return for_rows(ctx, ctx.step.n_tokens, w.n_cols, [&](int64_t t) {
    float* out = ctx.row(op.out[0], t);
    cpu::row_dequantize(w, ctx.step.token[t], out);
    if (scale != 1.0f) vec.scale(out, scale, out, w.n_cols);
  });
}

Status run_norm(StepContext& ctx, const strata_op& op) {
  const cpu::VecMath& vec = vec_of(ctx);
  const float* gain = ctx.vector(op.weight[0]);
  const float* bias = ctx.vector(op.weight[1]);
  const int64_t n_vec = op.i[STRATA_NORM_I_N_VEC], width = op.i[STRATA_NORM_I_WIDTH];
  const int64_t in_stride = op.i[STRATA_NORM_I_IN_STRIDE], in_offset = op.i[STRATA_NORM_I_IN_OFFSET];
  const int64_t out_stride = op.i[STRATA_NORM_I_OUT_STRIDE], out_offset = op.i[STRATA_NORM_I_OUT_OFFSET];
  const int64_t gain_stride = op.i[STRATA_NORM_I_GAIN_PER_VEC] != 0 ? width : 0;
  return for_rows(ctx, ctx.n_rows(op.in[0]), n_vec * width, [&](int64_t t) {
    const float* x = ctx.row(op.in[0], t) + in_offset;
    float* out = ctx.row(op.out[0], t) + out_offset;
    for (int64_t v = 0; v < n_vec; ++v) {
      norm_vector(vec, op, x + v * in_stride, gain == nullptr ? nullptr : gain + v * gain_stride,
                  bias == nullptr ? nullptr : bias + v * gain_stride, out + v * out_stride);
    }
  });
}

Status run_rope(StepContext& ctx, const strata_op& op) {
  const cpu::VecMath& vec = vec_of(ctx);
  const int32_t table = op.i[STRATA_ROPE_I_TABLE];
  const strata_rope& rope = ctx.plan().ropes[table];
  const int64_t n_head = op.i[STRATA_ROPE_I_N_HEAD], stride = op.i[STRATA_ROPE_I_STRIDE];
  return for_rows(ctx, ctx.step.n_tokens, n_head * rope.n_rot, [&](int64_t t) {
    const float* angles = step_rope_row(ctx, table, t);
    float* x = ctx.row(op.out[0], t) + op.i[STRATA_ROPE_I_OFFSET];
    for (int64_t h = 0; h < n_head; ++h) vec.rope(rope.style, x + h * stride, angles, angles + rope.n_rot / 2, rope.n_rot);
  });
}

Status run_copy(StepContext& ctx, const strata_op& op) {
  const int64_t n_head = op.i[STRATA_COPY_I_N_HEAD], width = op.i[STRATA_COPY_I_WIDTH];
  const int64_t in_stride = op.i[STRATA_COPY_I_IN_STRIDE], out_stride = op.i[STRATA_COPY_I_OUT_STRIDE];
  return for_rows(ctx, ctx.n_rows(op.in[0]), n_head * width, [&](int64_t t) {
    const float* x = ctx.row(op.in[0], t) + op.i[STRATA_COPY_I_IN_OFFSET];
    float* out = ctx.row(op.out[0], t) + op.i[STRATA_COPY_I_OUT_OFFSET];
    for (int64_t h = 0; h < n_head; ++h)
      memcpy(out + h * out_stride, x + h * in_stride, static_cast<size_t>(width) * sizeof(float));
  });
}

Status run_glu(StepContext& ctx, const strata_op& op) {
  const cpu::VecMath& vec = vec_of(ctx);
  const int64_t width = op.i[STRATA_GLU_I_WIDTH];
  return for_rows(ctx, ctx.n_rows(op.in[1]), width * 4, [&](int64_t t) {
    const float* gate = op.in[0] < 0 ? nullptr : ctx.row(op.in[0], t);
    vec.glu(op.i[STRATA_GLU_I_KIND], gate, ctx.row(op.in[1], t), op.f[STRATA_GLU_F_P0], op.f[STRATA_GLU_F_P1],
            ctx.row(op.out[0], t), width);
  });
}

Status run_add(StepContext& ctx, const strata_op& op) {
  const cpu::VecMath& vec = vec_of(ctx);
  const int64_t width = op.i[STRATA_ADD_I_WIDTH];
  const float a = op.f[STRATA_ADD_F_A], b = op.f[STRATA_ADD_F_B];
  return for_rows(ctx, ctx.n_rows(op.in[0]), width, [&](int64_t t) {
    const float* x = ctx.row(op.in[0], t);
    float* out = ctx.row(op.out[0], t);
    if (op.in[1] < 0) {
      vec.scale(x, a, out, width);
    } else if (a == 1.0f && b == 1.0f) {
      vec.add(x, ctx.row(op.in[1], t), out, width);
    } else {
      vec.add_scaled(a, x, b, ctx.row(op.in[1], t), out, width);
    }
  });
}

Status run_gather(StepContext& ctx, const strata_op& op) {
  const int64_t width = op.i[STRATA_GATHER_I_WIDTH];
  return for_rows(ctx, ctx.step.n_outputs, width, [&](int64_t o) {
    memcpy(ctx.row(op.out[0], o), ctx.row(op.in[0], ctx.step.output_row[o]), static_cast<size_t>(width) * sizeof(float));
  });
}

static cpu::Unary unary_of(int32_t act) {
  if (act == STRATA_ACT_SIGMOID) return cpu::Unary::sigmoid;
  return act == STRATA_ACT_SILU ? cpu::Unary::silu : cpu::Unary::softplus;
}

// The activated factors of one row come into scratch first: in1 is an operand, not a result.
int64_t mul_scratch(const ScratchQuery& query, const strata_op& op) {
  if (op.i[STRATA_MUL_I_ACT] == STRATA_ACT_NONE) return 0;
  return query.n_workers * scratch_array_bytes<float>(op.i[STRATA_MUL_I_WIDTH]);
}

Status run_mul(StepContext& ctx, const strata_op& op) {
  const cpu::VecMath& vec = vec_of(ctx);
  const int64_t width = op.i[STRATA_MUL_I_WIDTH], n_vec = op.i[STRATA_MUL_I_N_VEC], n_factor = n_vec > 0 ? n_vec : width;
  const int32_t act = op.i[STRATA_MUL_I_ACT];
  const int64_t stride = scratch_array_bytes<float>(width) / static_cast<int64_t>(sizeof(float));
  float* factors = nullptr;
  if (act != STRATA_ACT_NONE) {
    factors = ctx.scratch_array<float>(stride * ctx.n_workers());
    if (factors == nullptr) return ctx.error.status;
  }
  const int64_t n_rows = ctx.n_rows(op.in[0]);
  const int64_t chunk = width * 4 >= kRegionFloats ? 1 : kRegionFloats / (width * 4);
  return ctx.pool.run(n_rows, chunk, [&](int64_t t, int32_t worker) {
    const float* x = ctx.row(op.in[0], t);
    const float* y = ctx.row(op.in[1], t);
    float* out = ctx.row(op.out[0], t);
    if (act != STRATA_ACT_NONE) {
      float* own = factors + worker * stride;
      vec.unary(unary_of(act), y, own, n_factor);
      y = own;
    }
    if (n_vec == 0) return vec.mul(x, y, out, width);
    const int64_t part = width / n_vec;
    for (int64_t v = 0; v < n_vec; ++v) vec.scale(x + v * part, y[v], out + v * part, part);
  });
}

Status run_scale(StepContext& ctx, const strata_op& op) {
  const cpu::VecMath& vec = vec_of(ctx);
  const int64_t width = op.i[STRATA_SCALE_I_WIDTH];
  const float factor = *ctx.vector(op.weight[0]);
  return for_rows(ctx, ctx.n_rows(op.out[0]), width, [&](int64_t t) {
    float* x = ctx.row(op.out[0], t);
    vec.scale(x, factor, x, width);
  });
}

Status run_clamp(StepContext& ctx, const strata_op& op) {
  const cpu::VecMath& vec = vec_of(ctx);
  const int64_t width = op.i[STRATA_CLAMP_I_WIDTH];
  return for_rows(ctx, ctx.n_rows(op.out[0]), width, [&](int64_t t) {
    float* x = ctx.row(op.out[0], t);
    vec.clamp(x, op.f[STRATA_CLAMP_F_LIMIT], x, width);
  });
}

// The factor is computed in double and rounded to float32 once.
Status run_temperature(StepContext& ctx, const strata_op& op) {
  const cpu::VecMath& vec = vec_of(ctx);
  const int64_t width = op.i[STRATA_TEMPERATURE_I_WIDTH];
  const int64_t length = op.i[STRATA_TEMPERATURE_I_LENGTH], offset = op.i[STRATA_TEMPERATURE_I_OFFSET];
  return for_rows(ctx, ctx.step.n_tokens, width, [&](int64_t t) {
    const double steps = static_cast<double>((ctx.step.pos[t] + offset) / length);
    const double scale = static_cast<double>(op.f[STRATA_TEMPERATURE_F_SCALE]);
    float* x = ctx.row(op.out[0], t);
    vec.scale(x, static_cast<float>(1.0 + scale * m_log_double(1.0 + steps)), x, width);
  });
}

}  // namespace strata
