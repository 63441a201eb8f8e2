// Validates the ops: operands, parameters, weight shapes, and the order in which buffers are written and read.
#include <string.h>

#include <algorithm>

#include "model/check_op.h"

namespace strata {
namespace {

const Kind kKinds[] = {
    {nullptr, 0, 0, 0, 0, 0, 0, 0, 0},       {"EMBED", 0, 0, 1, 0, 1, 0, 0, 1},
    {"NORM", 1, 0, 1, 0, 0, 3, 8, 1},        {"LINEAR", 1, 0, 1, 14, 1, 0xffe, 1, 0},
    {"HEAD_LINEAR", 1, 0, 1, 0, 1, 0, 5, 0}, {"ROPE", 1, 0, 1, 0, 0, 0, 4, 0},
    {"COPY", 1, 0, 1, 0, 0, 0, 6, 0},        {"ATTENTION", 1, 14, 1, 0, 0, 1, 5, 2},
    {"ROUTER", 1, 0, 1, 0, 0, 1, 8, 2},      {"EXPERTS", 3, 0, 1, 0, 0, 0, 1, 0},
    {"COMBINE", 3, 12, 1, 0, 0, 0, 3, 0},    {"GLU", 2, 1, 1, 0, 0, 0, 2, 2},
    {"ADD", 1, 2, 1, 0, 0, 0, 1, 2},         {"GATHER", 1, 0, 1, 0, 0, 0, 1, 0},
    {"HEAD", 1, 0, 1, 0, 1, 6, 0, 2},        {"MUL", 3, 0, 1, 0, 0, 0, 3, 0},
    {"CLAMP", 1, 0, 1, 0, 0, 0, 1, 1},       {"TEMPERATURE", 1, 0, 1, 0, 0, 0, 3, 1},
    {"SCALE", 1, 0, 1, 0, 1, 0, 1, 0},       {"INDEX", 7, 0, 1, 0, 0, 0, 3, 0},
    {"MIX", 3, 0, 1, 0, 1, 0, 2, 1},
};
constexpr int32_t kLastKind = static_cast<int32_t>(sizeof kKinds / sizeof kKinds[0]) - 1;
static_assert(kLastKind == STRATA_OP_MIX, "one row for every op kind");

Status check_operands(const Plan& plan, const strata_op& op, const Kind& kind, const Row& row) {
  STRATA_TRY(row.range("layer", op.layer, -1, plan.n_layer - 1));
  const struct {
    const int32_t* ids;
    const char* const* fields;
    int32_t n;
    uint32_t needs, may;
    int64_t size;
  } groups[] = {
      {op.in, kInField, STRATA_OP_N_IN, kind.in_needs, kind.in_may, plan.buffers.size()},
      {op.out, kOutField, STRATA_OP_N_OUT, kind.out_needs, kind.out_may, plan.buffers.size()},
      {op.weight, kWeightField, STRATA_OP_N_WEIGHT, kind.weight_needs, kind.weight_may, plan.tensors.size()},
  };
  for (const auto& group : groups) {
    for (int32_t k = 0; k < group.n; ++k) {
      const uint32_t bit = 1u << k;
      const bool needed = (group.needs & bit) != 0, allowed = needed || (group.may & bit) != 0;
      STRATA_TRY(row.range(group.fields[k], group.ids[k], needed ? 0 : -1, allowed ? group.size - 1 : -1));
    }
  }
  for (int32_t k = kind.n_i; k < STRATA_OP_N_I; ++k)
    STRATA_TRY(row.equal("i, past its last parameter,", op.i[k], 0, "the only value"));
  for (int32_t k = 0; k < STRATA_OP_N_F; ++k) {
    STRATA_TRY(row.finite("f", op.f[k]));
    if (k >= kind.n_f && op.f[k] != 0) return row.bad("f, past its last parameter,", k, "the first that is not zero");
  }
  return STRATA_OK;
}

// ---- parameters and weight shapes, one function for each kind that has some -----------------------------------------

Status check_embed(const Check& c) {
  STRATA_TRY(c.tokens("out[0]", c.op.out[0]));
  STRATA_TRY(c.matrix(0, 1));
  return c.row.equal("weight[0]'s n_rows", c.tensor(0).n_rows, c.plan.n_vocab, "n_vocab");
}

Status check_norm(const Check& c) {
  STRATA_TRY(c.i_range(STRATA_NORM_I_KIND, "i[KIND]", STRATA_NORM_RMS, STRATA_NORM_L2));
  STRATA_TRY(c.i_range(STRATA_NORM_I_N_VEC, "i[N_VEC]", 1, kMaxHeads));
  STRATA_TRY(c.i_range(STRATA_NORM_I_WIDTH, "i[WIDTH]", 1, kMaxCols));
  STRATA_TRY(c.i_range(STRATA_NORM_I_GAIN_PER_VEC, "i[GAIN_PER_VEC]", 0, 1));
  const int64_t width = c.op.i[STRATA_NORM_I_WIDTH];
  const int64_t n = c.op.i[STRATA_NORM_I_GAIN_PER_VEC] != 0 ? c.op.i[STRATA_NORM_I_N_VEC] * width : width;
  STRATA_TRY(c.vector(0, n));
  return c.vector(1, n);
}

Status check_linear(const Check& c) {
  STRATA_TRY(c.i_range(STRATA_LINEAR_I_N, "i[N]", 1, STRATA_OP_N_OUT));
  for (int32_t k = 0; k < STRATA_OP_N_OUT; ++k) {
    const bool used = k < c.op.i[STRATA_LINEAR_I_N];
    STRATA_TRY(c.row.range(kOutField[k], c.op.out[k], used ? 0 : -1, used ? INT32_MAX : -1));
    STRATA_TRY(c.row.range(kWeightField[k], c.op.weight[k], used ? 0 : -1, used ? INT32_MAX : -1));
    if (!used) {
      STRATA_TRY(c.row.equal(kWeightField[4 + k], c.op.weight[4 + k], -1, "the value for an absent bias"));
      STRATA_TRY(c.row.equal(kWeightField[8 + k], c.op.weight[8 + k], -1, "the value for an absent scale"));
      continue;
    }
    STRATA_TRY(c.matrix(k, 1));
    STRATA_TRY(c.row.equal("weight's n_cols", c.tensor(k).n_cols, c.tensor(0).n_cols, "the first matrix's"));
    STRATA_TRY(c.vector(4 + k, c.tensor(k).n_rows));
    STRATA_TRY(c.vector(8 + k, 1));
  }
  return STRATA_OK;
}

Status check_head_linear(const Check& c) {
  STRATA_TRY(c.i_range(STRATA_HEAD_LINEAR_I_N_HEAD, "i[N_HEAD]", 1, kMaxHeads));
  return c.matrix(0, c.op.i[STRATA_HEAD_LINEAR_I_N_HEAD]);
}

Status check_rope(const Check& c) {
  STRATA_TRY(c.in_place());
  STRATA_TRY(c.tokens("in[0]", c.op.in[0]));
  STRATA_TRY(c.i_range(STRATA_ROPE_I_TABLE, "i[TABLE]", 0, c.plan.ropes.size() - 1));
  return c.i_range(STRATA_ROPE_I_N_HEAD, "i[N_HEAD]", 1, kMaxHeads);
}

Status check_copy(const Check& c) {
  STRATA_TRY(c.i_range(STRATA_COPY_I_N_HEAD, "i[N_HEAD]", 1, kMaxHeads));
  return c.i_range(STRATA_COPY_I_WIDTH, "i[WIDTH]", 1, kMaxCols);
}

Status check_attention(const Check& c) {
  STRATA_TRY(c.tokens("in[0]", c.op.in[0]));
  STRATA_TRY(c.i_range(STRATA_ATTENTION_I_KV_LAYER, "i[KV_LAYER]", 0, c.plan.kv_layers.size() - 1));
  STRATA_TRY(c.i_range(STRATA_ATTENTION_I_N_HEAD, "i[N_HEAD]", 1, kMaxHeads));
  STRATA_TRY(c.i_range(STRATA_ATTENTION_I_WINDOW, "i[WINDOW]", 0, INT32_MAX));
  STRATA_TRY(c.i_range(STRATA_ATTENTION_I_WINDOW_KIND, "i[WINDOW_KIND]", STRATA_WINDOW_STANDARD, STRATA_WINDOW_SYMMETRIC));
  STRATA_TRY(c.i_range(STRATA_ATTENTION_I_CAUSAL, "i[CAUSAL]", 0, 1));
  if (c.op.f[STRATA_ATTENTION_F_SOFTCAP] < 0) return c.row.bad("f[SOFTCAP]", -1, "0 or more is needed");
  const strata_kv_layer& layer = c.plan.kv_layers[c.op.i[STRATA_ATTENTION_I_KV_LAYER]];
  const int32_t n_head = c.op.i[STRATA_ATTENTION_I_N_HEAD];
  if (n_head % layer.n_head_kv != 0) return c.row.bad("i[N_HEAD]", n_head, "a multiple of the cache's n_head_kv is needed");
  if (c.op.in[1] < 0 && c.op.in[2] >= 0) return c.row.bad("in[2]", c.op.in[2], "values come with keys, and in[1] is -1");
  if (c.op.in[1] >= 0 && (c.op.in[2] < 0) != (layer.v_in_k == 1))
    return c.row.bad("in[2]", c.op.in[2], "-1 goes with v_in_k 1, a buffer with 0");
  return c.vector(0, n_head);
}

Status check_router(const Check& c) {
  const int32_t* i = c.op.i;
  STRATA_TRY(c.i_range(STRATA_ROUTER_I_N_EXPERT, "i[N_EXPERT]", 1, kMaxMats));
  STRATA_TRY(c.i_range(STRATA_ROUTER_I_N_USED, "i[N_USED]", 1, i[STRATA_ROUTER_I_N_EXPERT]));
  STRATA_TRY(c.i_range(STRATA_ROUTER_I_SCORES, "i[SCORES]", STRATA_SCORES_SOFTMAX, STRATA_SCORES_SQRT_SOFTPLUS));
  STRATA_TRY(c.i_range(STRATA_ROUTER_I_N_GROUP, "i[N_GROUP]", 0, i[STRATA_ROUTER_I_N_EXPERT]));
  STRATA_TRY(c.i_range(STRATA_ROUTER_I_NORMALIZE, "i[NORMALIZE]", 0, 1));
  STRATA_TRY(c.i_range(STRATA_ROUTER_I_SELECT_LOGITS, "i[SELECT_LOGITS]", 0, 1));
  STRATA_TRY(c.i_range(STRATA_ROUTER_I_CHUNK, "i[CHUNK]", 0, i[STRATA_ROUTER_I_N_EXPERT]));
  const int32_t chunk = i[STRATA_ROUTER_I_CHUNK];
  if (chunk > 1 && i[STRATA_ROUTER_I_N_EXPERT] % chunk != 0)
    return c.row.bad("i[CHUNK]", chunk, "a divisor of N_EXPERT is needed");
  const int32_t n_group = i[STRATA_ROUTER_I_N_GROUP];
  if (n_group <= 1) {
    STRATA_TRY(c.i_range(STRATA_ROUTER_I_N_GROUP_USED, "i[N_GROUP_USED]", 0, 1));
  } else {
    STRATA_TRY(c.i_range(STRATA_ROUTER_I_N_GROUP_USED, "i[N_GROUP_USED]", 1, n_group));
    if (i[STRATA_ROUTER_I_N_EXPERT] % n_group != 0)
      return c.row.bad("i[N_GROUP]", n_group, "a divisor of N_EXPERT is needed");
    const int64_t group = i[STRATA_ROUTER_I_N_EXPERT] / n_group;
    if (group * i[STRATA_ROUTER_I_N_GROUP_USED] < i[STRATA_ROUTER_I_N_USED]) {
      return c.row.bad("i[N_GROUP_USED]", i[STRATA_ROUTER_I_N_GROUP_USED], "these groups hold fewer than N_USED experts");
    }
  }
  return c.vector(0, i[STRATA_ROUTER_I_N_EXPERT]);
}

Status check_experts(const Check& c) { return c.i_range(STRATA_EXPERTS_I_SET, "i[SET]", 0, c.plan.expert_sets.size() - 1); }

Status check_combine(const Check& c) {
  STRATA_TRY(c.i_range(STRATA_COMBINE_I_N_USED, "i[N_USED]", 1, kMaxMats));
  STRATA_TRY(c.i_range(STRATA_COMBINE_I_WIDTH, "i[WIDTH]", 1, kMaxCols));
  if (c.op.in[3] >= 0 && c.op.in[2] < 0)
    return c.row.bad("in[3]", c.op.in[3], "a shared gate needs a shared expert in in[2]");
  return c.i_range(STRATA_COMBINE_I_UNIT_WEIGHTS, "i[UNIT_WEIGHTS]", 0, 1);
}

Status check_glu(const Check& c) {
  STRATA_TRY(c.i_range(STRATA_GLU_I_KIND, "i[KIND]", STRATA_GLU_SILU, STRATA_GLU_UP_GELU));
  STRATA_TRY(c.i_range(STRATA_GLU_I_WIDTH, "i[WIDTH]", 1, INT32_MAX));
  if ((c.op.in[0] < 0) != glu_is_ungated(c.op.i[STRATA_GLU_I_KIND])) {
    return c.row.bad("in[0]", c.op.in[0], "-1 goes with the kinds that have no gate, a buffer with the others");
  }
  return STRATA_OK;
}

Status check_width(const Check& c) { return c.i_range(0, "i[WIDTH]", 1, INT32_MAX); }

Status check_gather(const Check& c) {
  STRATA_TRY(check_width(c));
  STRATA_TRY(c.row.equal("in[0]'s rows", c.plan.buffers[c.op.in[0]].rows, STRATA_ROWS_TOKENS, "GATHER's input"));
  return c.row.equal("out[0]'s rows", c.plan.buffers[c.op.out[0]].rows, STRATA_ROWS_OUTPUTS, "GATHER's output");
}

Status check_head(const Check& c) {
  STRATA_TRY(c.row.equal("in[0]'s rows", c.plan.buffers[c.op.in[0]].rows, STRATA_ROWS_OUTPUTS, "HEAD's input"));
  STRATA_TRY(c.row.equal("(place in the table)", c.row.index, c.plan.ops.size() - 1, "HEAD is the last op, whose place"));
  STRATA_TRY(c.matrix(0, 1));
  STRATA_TRY(c.row.equal("weight[0]'s n_rows", c.tensor(0).n_rows, c.plan.n_vocab, "n_vocab"));
  if (c.op.f[STRATA_HEAD_F_SOFTCAP] < 0) return c.row.bad("f[SOFTCAP]", -1, "0 or more is needed");
  STRATA_TRY(c.vector(1, c.plan.n_vocab));
  return c.vector(2, 1);
}

Status check_mul(const Check& c) {
  STRATA_TRY(check_width(c));
  STRATA_TRY(c.i_range(STRATA_MUL_I_ACT, "i[ACT]", STRATA_ACT_NONE, STRATA_ACT_SOFTPLUS));
  STRATA_TRY(c.i_range(STRATA_MUL_I_N_VEC, "i[N_VEC]", 0, c.op.i[STRATA_MUL_I_WIDTH]));
  const int32_t n_vec = c.op.i[STRATA_MUL_I_N_VEC];
  if (n_vec > 0 && c.op.i[STRATA_MUL_I_WIDTH] % n_vec != 0)
    return c.row.bad("i[N_VEC]", n_vec, "a divisor of WIDTH is needed");
  return STRATA_OK;
}

Status check_clamp(const Check& c) {
  STRATA_TRY(check_width(c));
  if (!(c.op.f[STRATA_CLAMP_F_LIMIT] > 0)) return c.row.bad("f[LIMIT]", 0, "more than 0 is needed");
  return c.in_place();
}

Status check_temperature(const Check& c) {
  STRATA_TRY(check_width(c));
  STRATA_TRY(c.i_range(STRATA_TEMPERATURE_I_LENGTH, "i[LENGTH]", 1, INT32_MAX));
  STRATA_TRY(c.i_range(STRATA_TEMPERATURE_I_OFFSET, "i[OFFSET]", 0, INT32_MAX));
  STRATA_TRY(c.tokens("in[0]", c.op.in[0]));
  return c.in_place();
}

Status check_scale(const Check& c) {
  STRATA_TRY(check_width(c));
  STRATA_TRY(c.vector(0, 1));
  return c.in_place();
}

Status check_index(const Check& c) {
  STRATA_TRY(c.tokens("in[0]", c.op.in[0]));
  STRATA_TRY(c.i_range(STRATA_INDEX_I_KV_LAYER, "i[KV_LAYER]", 0, c.plan.kv_layers.size() - 1));
  STRATA_TRY(c.i_range(STRATA_INDEX_I_N_HEAD, "i[N_HEAD]", 1, kMaxHeads));
  STRATA_TRY(c.i_range(STRATA_INDEX_I_TOP_K, "i[TOP_K]", 1, kMaxCols));
  const strata_kv_layer& layer = c.plan.kv_layers[c.op.i[STRATA_INDEX_I_KV_LAYER]];
  STRATA_TRY(c.row.equal("i[KV_LAYER]'s n_head_kv", layer.n_head_kv, 1, "an index"));
  return c.row.equal("i[KV_LAYER]'s v_in_k", layer.v_in_k, 1, "an index");
}

Status check_mix(const Check& c) {
  STRATA_TRY(c.i_range(STRATA_MIX_I_N_VEC, "i[N_VEC]", 1, kMaxHeads));
  STRATA_TRY(c.i_range(STRATA_MIX_I_WIDTH, "i[WIDTH]", 1, kMaxCols));
  return c.vector(0, c.op.i[STRATA_MIX_I_WIDTH]);
}

const CheckFn kChecks[] = {nullptr,     check_embed,     check_norm,   check_linear,  check_head_linear, check_rope,
                           check_copy,  check_attention, check_router, check_experts, check_combine,     check_glu,
                           check_width, check_gather,    check_head,   check_mul,     check_clamp,       check_temperature,
                           check_scale, check_index,     check_mix};
static_assert(sizeof kChecks / sizeof kChecks[0] == kLastKind + 1, "one check for every op kind");

// ---- operands against buffers, and the order of writes and reads ----------------------------------------------------

Status check_extents(const Plan& plan, const strata_op& op, const Row& row) {
  Extent extents[kMaxExtents];
  const int32_t n = op_extents(plan, op, extents);
  for (int32_t k = 0; k < n; ++k) {
    const Extent& e = extents[k];
    const strata_buffer& buffer = plan.buffers[e.buffer];
    if (op.kind != STRATA_OP_GATHER && buffer.rows != plan.buffers[op.out[0]].rows) {
      return row.bad(e.field, e.buffer, "TOKENS rows and OUTPUTS rows meet only in GATHER");
    }
    const bool inside = e.offset >= 0 && e.stride >= 0 && e.offset + (e.n_vec - 1) * e.stride + e.width <= buffer.width;
    if (!inside || (e.exact && e.width != buffer.width)) {
      return row.error.fail(
          STRATA_E_ARGUMENT,
          "%s[%lld].%s is buffer %d of width %d; the op means %lld vectors of %lld floats at %lld + %lld v%s", row.table,
          static_cast<long long>(row.index), e.field, e.buffer, buffer.width, static_cast<long long>(e.n_vec),
          static_cast<long long>(e.width), static_cast<long long>(e.offset), static_cast<long long>(e.stride),
          inside ? ", the whole row" : "");
    }
    if (e.written && e.n_vec > 1 && e.stride < e.width) return row.bad(e.field, e.buffer, "the vectors written overlap");
  }
  return STRATA_OK;
}

// Whether two buffers may share bytes. Views of the same rows that hold other columns do not.
bool buffers_meet(const Plan& plan, const strata_buffer& a, const strata_buffer& b) {
  const int64_t stride = a.row_stride;
  const int64_t a_first = a.offset / 4, b_first = b.offset / 4;
  const int64_t a_end = a_first + int64_t{rows_max(plan, a.rows) - 1} * stride + a.width;
  const int64_t b_end = b_first + int64_t{rows_max(plan, b.rows) - 1} * b.row_stride + b.width;
  if (a_end <= b_first || b_end <= a_first) return false;
  if (a.row_stride != b.row_stride) return true;
  const int64_t apart = ((b_first - a_first) % stride + stride) % stride;  // where b's columns start, seen from a's
  return apart < a.width || apart + b.width > stride;
}

// Null: no op has this number.
const Kind* kind_of(int32_t kind) {
  if (kind >= STRATA_OP_CONV) return state_kind(kind);
  return kind >= STRATA_OP_EMBED && kind <= kLastKind ? &kKinds[kind] : nullptr;
}

// Which ops may write over what they read, element by element or vector by vector.
bool works_in_place(int32_t kind) {
  switch (kind) {
    case STRATA_OP_NORM:
    case STRATA_OP_ROPE:
    case STRATA_OP_GLU:
    case STRATA_OP_ADD:
    case STRATA_OP_MUL:
    case STRATA_OP_CLAMP:
    case STRATA_OP_TEMPERATURE:
    case STRATA_OP_SCALE:
      return true;
    default:
      return false;
  }
}

// Whether in[k] and out[0] are the same places of the same bytes.
bool same_places(const Plan& plan, const strata_op& op, int32_t k) {
  const strata_buffer &from = plan.buffers[op.in[k]], &to = plan.buffers[op.out[0]];
  if (from.offset != to.offset || from.row_stride != to.row_stride || from.rows != to.rows) return false;
  Extent extents[kMaxExtents];
  const int32_t n = op_extents(plan, op, extents);
  const Extent& in = *std::find_if(extents, extents + n, [&](const Extent& e) { return strcmp(e.field, kInField[k]) == 0; });
  const Extent& out = extents[n - 1];
  return in.n_vec == out.n_vec && in.width == out.width && in.stride == out.stride && in.offset == out.offset;
}

// A selection holds expert ids that later ops use as indices: it must come, unharmed, from a ROUTER of the same shape.
struct Order {
  Array<uint8_t> written;     // by buffer: something wrote there
  Array<int32_t> router;      // by buffer: the ROUTER op whose result it holds, plus one; 0: none
  Array<uint8_t> index;       // by buffer: it holds the result of an INDEX
  Array<int32_t> kv_writer;   // by KV layer: the op that stores into it, plus one
  Array<int32_t> set_user;    // by expert set: the EXPERTS op, plus one
  Array<int32_t> state_user;  // by state: the op that updates it, plus one
};

Status check_reads(const Plan& plan, const strata_op& op, const Order& order, const Row& row) {
  for (int32_t k = 0; k < STRATA_OP_N_IN; ++k) {
    if (op.in[k] < 0) continue;
    if (order.written[op.in[k]] == 0) return row.bad(kInField[k], op.in[k], "no earlier op writes this buffer");
    for (int32_t j = 0; j < STRATA_OP_N_OUT; ++j) {
      if (op.out[j] < 0 || !buffers_meet(plan, plan.buffers[op.in[k]], plan.buffers[op.out[j]])) continue;
      if (works_in_place(op.kind) && same_places(plan, op, k)) continue;
      return row.bad(kOutField[j], op.out[j], "the op would write over what it reads");
    }
  }
  for (int32_t k = 0; k < STRATA_OP_N_OUT; ++k) {
    for (int32_t j = 0; j < k; ++j) {
      if (op.out[k] >= 0 && buffers_meet(plan, plan.buffers[op.out[k]], plan.buffers[op.out[j]])) {
        return row.bad(kOutField[k], op.out[k], "two results would share bytes");
      }
    }
  }
  return STRATA_OK;
}

// Caches and states have one writer, and an attention's list of keys comes from an INDEX.
Status check_memory(const strata_op& op, Order& order, int32_t index, const Row& row) {
  static_assert(STRATA_ATTENTION_I_KV_LAYER == STRATA_INDEX_I_KV_LAYER, "read through one name");
  if (op.kind == STRATA_OP_ATTENTION || op.kind == STRATA_OP_INDEX) {
    int32_t& writer = order.kv_writer[op.i[STRATA_ATTENTION_I_KV_LAYER]];
    const bool stores = op.in[1] >= 0;
    if (stores == (writer != 0)) {
      return row.bad("i[KV_LAYER]", op.i[STRATA_ATTENTION_I_KV_LAYER],
                     stores ? "an earlier op stores into this layer" : "no earlier op stores into this layer");
    }
    if (stores) writer = index + 1;
  }
  if (op.kind == STRATA_OP_ATTENTION && op.in[3] >= 0 && order.index[op.in[3]] == 0)
    return row.bad("in[3]", op.in[3], "the buffer does not hold the result of an INDEX here");
  if (op.kind >= STRATA_OP_CONV) {
    int32_t& user = order.state_user[op.i[STRATA_CONV_I_STATE]];
    if (user != 0) return row.bad("i[STATE]", op.i[STRATA_CONV_I_STATE], "an earlier op updates this state");
    user = index + 1;
  }
  return STRATA_OK;
}

Status check_selection(const Plan& plan, const strata_op& op, Order& order, int32_t index, const Row& row) {
  if (op.kind != STRATA_OP_EXPERTS && op.kind != STRATA_OP_COMBINE) return STRATA_OK;
  const int32_t router = order.router[op.in[1]] - 1;
  if (router < 0) return row.bad("in[1]", op.in[1], "the buffer does not hold the result of a ROUTER here");
  const int32_t n_used = plan.ops[router].i[STRATA_ROUTER_I_N_USED];
  if (op.kind == STRATA_OP_COMBINE)
    return row.equal("i[N_USED]", op.i[STRATA_COMBINE_I_N_USED], n_used, "the ROUTER's N_USED");
  const strata_expert_set& set = plan.expert_sets[op.i[STRATA_EXPERTS_I_SET]];
  STRATA_TRY(row.equal("i[SET]'s n_used", set.n_used, n_used, "the ROUTER's N_USED"));
  const int32_t chunk = plan.ops[router].i[STRATA_ROUTER_I_CHUNK];
  const int32_t n_expert = plan.ops[router].i[STRATA_ROUTER_I_N_EXPERT] / (chunk > 1 ? chunk : 1);
  STRATA_TRY(row.equal("i[SET]'s n_expert", set.n_expert, n_expert, "the ROUTER's N_EXPERT (over CHUNK)"));
  int32_t& user = order.set_user[op.i[STRATA_EXPERTS_I_SET]];
  if (user != 0) return row.bad("i[SET]", op.i[STRATA_EXPERTS_I_SET], "an earlier op uses this set");
  user = index + 1;
  return STRATA_OK;
}

void note_writes(const Plan& plan, const strata_op& op, Order& order, int32_t index) {
  for (int32_t k = 0; k < STRATA_OP_N_OUT; ++k) {
    if (op.out[k] < 0) continue;
    for (int64_t b = 0; b < plan.buffers.size(); ++b) {
      if (b != op.out[k] && !buffers_meet(plan, plan.buffers[b], plan.buffers[op.out[k]])) continue;
      order.written[b] = 1;
      order.router[b] = 0;
      order.index[b] = 0;
    }
  }
  if (op.kind == STRATA_OP_ROUTER) order.router[op.out[0]] = index + 1;
  if (op.kind == STRATA_OP_INDEX) order.index[op.out[0]] = 1;
}

Status validate_op(const Plan& plan, int32_t index, Order& order, Error& error) {
  const strata_op& op = plan.ops[index];
  char table[32];
  const Kind* kind = kind_of(op.kind);
  if (kind == nullptr) return Row{error, "ops", index}.range("kind", op.kind, STRATA_OP_EMBED, kLastKind);
  snprintf(table, sizeof table, "%s ops", kind->name);
  const Row row{error, table, index};
  STRATA_TRY(check_operands(plan, op, *kind, row));
  const Check check{plan, op, row};
  STRATA_TRY(op.kind >= STRATA_OP_CONV ? check_state_op(check) : kChecks[op.kind](check));
  STRATA_TRY(check_extents(plan, op, row));
  STRATA_TRY(check_reads(plan, op, order, row));
  STRATA_TRY(check_memory(op, order, index, row));
  STRATA_TRY(check_selection(plan, op, order, index, row));
  note_writes(plan, op, order, index);
  return STRATA_OK;
}

}  // namespace

const char* op_name(int32_t kind) { return kind_of(kind) != nullptr ? kind_of(kind)->name : "?"; }

Status validate_ops(const Plan& plan, Error& error) {
  Order order;
  if (!order.written.resize(plan.buffers.size()) || !order.router.resize(plan.buffers.size()) ||
      !order.index.resize(plan.buffers.size()) || !order.kv_writer.resize(plan.kv_layers.size()) ||
      !order.set_user.resize(plan.expert_sets.size()) || !order.state_user.resize(plan.states.size())) {
    return error.fail(STRATA_E_MEMORY, "no memory to check the ops");
  }
  if (plan.buffers.size() > 0 && plan.ops.size() > (int64_t{1} << 30) / plan.buffers.size()) {
    return error.fail(STRATA_E_ARGUMENT, "desc.n_ops is %lld and desc.n_buffers %lld; accepted: a product up to 2^30",
                      static_cast<long long>(plan.ops.size()), static_cast<long long>(plan.buffers.size()));
  }
  if (plan.ops.size() == 0) return error.fail(STRATA_E_ARGUMENT, "desc.n_ops is 0; a plan has at least one op");
  for (int64_t i = 0; i < plan.ops.size(); ++i) STRATA_TRY(validate_op(plan, static_cast<int32_t>(i), order, error));
  const int32_t last = plan.ops[plan.ops.size() - 1].kind;
  if (last != STRATA_OP_HEAD)
    return Row{error, "ops", plan.ops.size() - 1}.equal("kind", last, STRATA_OP_HEAD, "the last op is HEAD, which");
  return STRATA_OK;
}

}  // namespace strata
