// Checks of the ops that keep a state of each sequence: which operands they have, and shapes of weights and states.
#include "model/check_op.h"

namespace strata {
namespace {

const Kind kStateKinds[] = {
    {"CONV", 1, 0, 1, 0, 1, 2, 5, 0},          {"DELTA", 7, 0, 1, 0, 3, 0, 8, 2},     {"SSM_HEADS", 3, 0, 1, 0, 7, 0, 5, 0},
    {"SSM_CHANNELS", 15, 0, 1, 0, 7, 0, 3, 0}, {"LIGHTNING", 1, 0, 1, 0, 0, 0, 3, 1},
};
constexpr int32_t kNKinds = static_cast<int32_t>(sizeof kStateKinds / sizeof kStateKinds[0]);
static_assert(kNKinds == STRATA_OP_LIGHTNING - STRATA_OP_CONV + 1, "one row for every kind with a state");

constexpr int64_t kMaxTaps = 64;
constexpr int64_t kMaxStateHead = 4096;
constexpr float kMaxSlope = 100;
constexpr float kMinLogDecay = -100;

// The state that the op names exists and has n_floats.
Status check_state(const Check& c, int64_t n_floats) {
  STRATA_TRY(c.i_range(STRATA_CONV_I_STATE, "i[STATE]", 0, c.plan.states.size() - 1));
  STRATA_TRY(
      c.row.equal("i[STATE]'s n_floats", c.plan.states[c.op.i[STRATA_CONV_I_STATE]].n_floats, n_floats, "the op's state"));
  return c.tokens("in[0]", c.op.in[0]);
}

Status check_conv(const Check& c) {
  STRATA_TRY(c.i_range(STRATA_CONV_I_WIDTH, "i[WIDTH]", 1, kMaxCols));
  STRATA_TRY(c.i_range(STRATA_CONV_I_TAPS, "i[TAPS]", 2, kMaxTaps));
  STRATA_TRY(c.i_range(STRATA_CONV_I_ACT, "i[ACT]", STRATA_ACT_NONE, STRATA_ACT_SILU));
  if (c.op.i[STRATA_CONV_I_ACT] == STRATA_ACT_SIGMOID)
    return c.row.bad("i[ACT]", STRATA_ACT_SIGMOID, "accepted: NONE, SILU");
  STRATA_TRY(c.i_range(STRATA_CONV_I_OUT_OFFSET, "i[OUT_OFFSET]", 0, kMaxCols));
  const int64_t width = c.op.i[STRATA_CONV_I_WIDTH], taps = c.op.i[STRATA_CONV_I_TAPS];
  STRATA_TRY(check_state(c, (taps - 1) * width));
  STRATA_TRY(c.vector(0, taps * width));
  return c.vector(1, width);
}

Status check_delta(const Check& c) {
  const int32_t* i = c.op.i;
  STRATA_TRY(c.i_range(STRATA_DELTA_I_N_K, "i[N_K]", 1, kMaxHeads));
  STRATA_TRY(c.i_range(STRATA_DELTA_I_N_V, "i[N_V]", 1, kMaxHeads));
  STRATA_TRY(c.i_range(STRATA_DELTA_I_HEAD_K, "i[HEAD_K]", 1, kMaxStateHead));
  STRATA_TRY(c.i_range(STRATA_DELTA_I_HEAD_V, "i[HEAD_V]", 1, kMaxStateHead));
  STRATA_TRY(c.i_range(STRATA_DELTA_I_TILED, "i[TILED]", 0, 1));
  STRATA_TRY(c.i_range(STRATA_DELTA_I_PER_ROW, "i[PER_ROW]", 0, 1));
  STRATA_TRY(c.i_range(STRATA_DELTA_I_NEGATED, "i[NEGATED]", 0, c.op.f[STRATA_DELTA_F_BOUND] != 0 ? 1 : 0));
  const int64_t n_v = i[STRATA_DELTA_I_N_V], head_k = i[STRATA_DELTA_I_HEAD_K];
  if (n_v % i[STRATA_DELTA_I_N_K] != 0) return c.row.bad("i[N_V]", n_v, "a multiple of N_K is needed");
  const float bound = c.op.f[STRATA_DELTA_F_BOUND];
  if (!(bound >= kMinLogDecay && bound <= 0))
    return c.row.bad("f[BOUND]", static_cast<int64_t>(bound), "-100 to 0 is needed");
  STRATA_TRY(check_state(c, n_v * head_k * i[STRATA_DELTA_I_HEAD_V]));
  STRATA_TRY(c.vector(0, n_v));
  return c.vector(1, i[STRATA_DELTA_I_PER_ROW] != 0 ? n_v * head_k : n_v);
}

Status check_ssm_heads(const Check& c) {
  const int32_t* i = c.op.i;
  STRATA_TRY(c.i_range(STRATA_SSM_HEADS_I_N_HEAD, "i[N_HEAD]", 1, kMaxHeads));
  STRATA_TRY(c.i_range(STRATA_SSM_HEADS_I_HEAD, "i[HEAD]", 1, kMaxStateHead));
  STRATA_TRY(c.i_range(STRATA_SSM_HEADS_I_N_GROUP, "i[N_GROUP]", 1, kMaxHeads));
  STRATA_TRY(c.i_range(STRATA_SSM_HEADS_I_N_STATE, "i[N_STATE]", 1, kMaxStateHead));
  const int64_t n_head = i[STRATA_SSM_HEADS_I_N_HEAD];
  if (n_head % i[STRATA_SSM_HEADS_I_N_GROUP] != 0) return c.row.bad("i[N_HEAD]", n_head, "a multiple of N_GROUP is needed");
  STRATA_TRY(check_state(c, n_head * i[STRATA_SSM_HEADS_I_HEAD] * i[STRATA_SSM_HEADS_I_N_STATE]));
  for (int32_t k = 0; k < 3; ++k) STRATA_TRY(c.vector(k, n_head));
  return STRATA_OK;
}

Status check_ssm_channels(const Check& c) {
  STRATA_TRY(c.i_range(STRATA_SSM_CHANNELS_I_WIDTH, "i[WIDTH]", 1, kMaxCols));
  STRATA_TRY(c.i_range(STRATA_SSM_CHANNELS_I_N_STATE, "i[N_STATE]", 1, kMaxStateHead));
  const int64_t width = c.op.i[STRATA_SSM_CHANNELS_I_WIDTH], n_state = c.op.i[STRATA_SSM_CHANNELS_I_N_STATE];
  STRATA_TRY(check_state(c, width * n_state));
  STRATA_TRY(c.vector(0, width * n_state));
  STRATA_TRY(c.vector(1, width));
  return c.vector(2, width);
}

Status check_lightning(const Check& c) {
  STRATA_TRY(c.i_range(STRATA_LIGHTNING_I_N_HEAD, "i[N_HEAD]", 1, kMaxHeads));
  STRATA_TRY(c.i_range(STRATA_LIGHTNING_I_HEAD, "i[HEAD]", 1, kMaxStateHead));
  const float slope = c.op.f[STRATA_LIGHTNING_F_SLOPE];
  if (!(slope >= 0 && slope <= kMaxSlope)) return c.row.bad("f[SLOPE]", static_cast<int64_t>(slope), "0 to 100 is needed");
  const int64_t head = c.op.i[STRATA_LIGHTNING_I_HEAD];
  return check_state(c, c.op.i[STRATA_LIGHTNING_I_N_HEAD] * head * head);
}

}  // namespace

const Kind* state_kind(int32_t kind) {
  const int32_t k = kind - STRATA_OP_CONV;
  return k >= 0 && k < kNKinds ? &kStateKinds[k] : nullptr;
}

Status check_state_op(const Check& c) {
  switch (c.op.kind) {
    case STRATA_OP_DELTA:
      return check_delta(c);
    case STRATA_OP_SSM_HEADS:
      return check_ssm_heads(c);
    case STRATA_OP_SSM_CHANNELS:
      return check_ssm_channels(c);
    case STRATA_OP_LIGHTNING:
      return check_lightning(c);
    default:
      return check_conv(c);
  }
}

}  // namespace strata
