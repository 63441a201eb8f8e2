// Where each op's operands lie in their buffers: the one place that validation and poison mode both use.
#include "model/plan.h"

namespace strata {
namespace {

struct Extents {
  const strata_op& op;
  Extent* out;
  int32_t n = 0;

  void add(int32_t buffer, bool written, bool exact, const char* field, int64_t n_vec, int64_t width, int64_t stride,
           int64_t offset) {
    if (buffer >= 0) out[n++] = {buffer, written, exact, field, n_vec, width, stride, offset};
  }
  // The buffer's whole row of `width` floats.
  void in(int32_t k, int64_t width) { add(op.in[k], false, true, kIn[k], 1, width, 0, 0); }
  void result(int32_t k, int64_t width) { add(op.out[k], true, true, kOut[k], 1, width, 0, 0); }
  // The first `width` floats of the row.
  void in_first(int32_t k, int64_t width) { add(op.in[k], false, false, kIn[k], 1, width, 0, 0); }
  void result_first(int32_t width) { add(op.out[0], true, false, kOut[0], 1, width, 0, 0); }
  // Strided vectors.
  void in_heads(int64_t n, int64_t width, int64_t stride, int64_t offset) {
    add(op.in[0], false, false, kIn[0], n, width, stride, offset);
  }
  void result_heads(int64_t n, int64_t width, int64_t stride, int64_t offset) {
    add(op.out[0], true, false, kOut[0], n, width, stride, offset);
  }

  static const char* const kIn[4];
  static const char* const kOut[4];
};
const char* const Extents::kIn[4] = {"in[0]", "in[1]", "in[2]", "in[3]"};
const char* const Extents::kOut[4] = {"out[0]", "out[1]", "out[2]", "out[3]"};

void attention_extents(const Plan& plan, const strata_op& op, Extents& e) {
  const strata_kv_layer& layer = plan.kv_layers[op.i[STRATA_ATTENTION_I_KV_LAYER]];
  const int64_t n_head = op.i[STRATA_ATTENTION_I_N_HEAD];
  e.in(0, n_head * layer.head_k);
  e.in(1, int64_t{layer.n_head_kv} * layer.head_k);
  e.in(2, int64_t{layer.n_head_kv} * layer.head_v);
  if (op.in[3] >= 0) e.in(3, plan.buffers[op.in[3]].width);
  e.result(0, n_head * layer.head_v);
}

void index_extents(const Plan& plan, const strata_op& op, Extents& e) {
  const int64_t n_head = op.i[STRATA_INDEX_I_N_HEAD], head = plan.kv_layers[op.i[STRATA_INDEX_I_KV_LAYER]].head_k;
  e.in(0, n_head * head);
  e.in(1, head);
  e.in(2, n_head);
  e.result(0, int64_t{1} + op.i[STRATA_INDEX_I_TOP_K]);
}

void expert_extents(const Plan& plan, const strata_op& op, Extents& e) {
  if (op.kind == STRATA_OP_EXPERTS) {
    const strata_expert_set& set = plan.expert_sets[op.i[STRATA_EXPERTS_I_SET]];
    e.in(0, set.n_in);
    e.in(1, int64_t{2} * set.n_used);
    e.result(0, int64_t{set.n_used} * set.n_out);
    return;
  }
  const int64_t n_used = op.i[STRATA_COMBINE_I_N_USED], width = op.i[STRATA_COMBINE_I_WIDTH];
  e.in(0, n_used * width);
  e.in(1, 2 * n_used);
  e.in(2, width);
  e.in(3, 1);
  e.result(0, width);
}

void strided_extents(const Plan& plan, const strata_op& op, Extents& e) {
  const int32_t* i = op.i;
  switch (op.kind) {
    case STRATA_OP_NORM:
      e.in_heads(i[STRATA_NORM_I_N_VEC], i[STRATA_NORM_I_WIDTH], i[STRATA_NORM_I_IN_STRIDE], i[STRATA_NORM_I_IN_OFFSET]);
      e.result_heads(i[STRATA_NORM_I_N_VEC], i[STRATA_NORM_I_WIDTH], i[STRATA_NORM_I_OUT_STRIDE],
                     i[STRATA_NORM_I_OUT_OFFSET]);
      break;
    case STRATA_OP_HEAD_LINEAR: {
      const strata_tensor& w = plan.tensors[op.weight[0]];
      const int32_t n = i[STRATA_HEAD_LINEAR_I_N_HEAD];
      e.in_heads(n, w.n_cols, i[STRATA_HEAD_LINEAR_I_IN_STRIDE], i[STRATA_HEAD_LINEAR_I_IN_OFFSET]);
      e.result_heads(n, w.n_rows, i[STRATA_HEAD_LINEAR_I_OUT_STRIDE], i[STRATA_HEAD_LINEAR_I_OUT_OFFSET]);
      break;
    }
    case STRATA_OP_ROPE: {
      const int32_t n_rot = plan.ropes[i[STRATA_ROPE_I_TABLE]].n_rot;
      e.in_heads(i[STRATA_ROPE_I_N_HEAD], n_rot, i[STRATA_ROPE_I_STRIDE], i[STRATA_ROPE_I_OFFSET]);
      e.result_heads(i[STRATA_ROPE_I_N_HEAD], n_rot, i[STRATA_ROPE_I_STRIDE], i[STRATA_ROPE_I_OFFSET]);
      break;
    }
    default:
      e.in_heads(i[STRATA_COPY_I_N_HEAD], i[STRATA_COPY_I_WIDTH], i[STRATA_COPY_I_IN_STRIDE], i[STRATA_COPY_I_IN_OFFSET]);
      e.result_heads(i[STRATA_COPY_I_N_HEAD], i[STRATA_COPY_I_WIDTH], i[STRATA_COPY_I_OUT_STRIDE],
                     i[STRATA_COPY_I_OUT_OFFSET]);
  }
}

void delta_extents(const strata_op& op, Extents& e) {
  const int32_t* i = op.i;
  const int64_t n_k = i[STRATA_DELTA_I_N_K], n_v = i[STRATA_DELTA_I_N_V];
  const int64_t head_k = i[STRATA_DELTA_I_HEAD_K], head_v = i[STRATA_DELTA_I_HEAD_V];
  e.in(0, 2 * n_k * head_k + n_v * head_v);
  e.in(1, i[STRATA_DELTA_I_PER_ROW] != 0 ? n_v * head_k : n_v);
  e.in(2, n_v);
  e.result(0, n_v * head_v);
}

void state_extents(const strata_op& op, Extents& e) {
  const int32_t* i = op.i;
  switch (op.kind) {
    case STRATA_OP_CONV:
      e.in(0, i[STRATA_CONV_I_WIDTH]);
      e.result_heads(1, i[STRATA_CONV_I_WIDTH], 0, i[STRATA_CONV_I_OUT_OFFSET]);
      break;
    case STRATA_OP_DELTA:
      delta_extents(op, e);
      break;
    case STRATA_OP_SSM_HEADS: {
      const int64_t width = int64_t{i[STRATA_SSM_HEADS_I_N_HEAD]} * i[STRATA_SSM_HEADS_I_HEAD];
      e.in(0, width + int64_t{2} * i[STRATA_SSM_HEADS_I_N_GROUP] * i[STRATA_SSM_HEADS_I_N_STATE]);
      e.in(1, i[STRATA_SSM_HEADS_I_N_HEAD]);
      e.result(0, width);
      break;
    }
    case STRATA_OP_SSM_CHANNELS:
      for (int32_t k = 0; k < 4; ++k) e.in(k, i[k < 2 ? STRATA_SSM_CHANNELS_I_WIDTH : STRATA_SSM_CHANNELS_I_N_STATE]);
      e.result(0, i[STRATA_SSM_CHANNELS_I_WIDTH]);
      break;
    default: {  // LIGHTNING
      const int64_t width = int64_t{i[STRATA_LIGHTNING_I_N_HEAD]} * i[STRATA_LIGHTNING_I_HEAD];
      e.in(0, 3 * width);
      e.result(0, width);
    }
  }
}

}  // namespace

int32_t op_extents(const Plan& plan, const strata_op& op, Extent* extents) {
  Extents e{op, extents};
  switch (op.kind) {
    case STRATA_OP_EMBED:
      e.result(0, plan.tensors[op.weight[0]].n_cols);
      break;
    case STRATA_OP_LINEAR:
      e.in(0, plan.tensors[op.weight[0]].n_cols);
      for (int32_t k = 0; k < op.i[STRATA_LINEAR_I_N]; ++k) e.result(k, plan.tensors[op.weight[k]].n_rows);
      break;
    case STRATA_OP_NORM:
    case STRATA_OP_HEAD_LINEAR:
    case STRATA_OP_ROPE:
    case STRATA_OP_COPY:
      strided_extents(plan, op, e);
      break;
    case STRATA_OP_ATTENTION:
      attention_extents(plan, op, e);
      break;
    case STRATA_OP_INDEX:
      index_extents(plan, op, e);
      break;
    case STRATA_OP_MIX:
      e.in_first(0, op.i[STRATA_MIX_I_N_VEC] * op.i[STRATA_MIX_I_WIDTH]);
      e.in(1, op.i[STRATA_MIX_I_WIDTH]);
      e.result(0, op.i[STRATA_MIX_I_WIDTH]);
      break;
    case STRATA_OP_ROUTER:
      e.in(0, op.i[STRATA_ROUTER_I_N_EXPERT]);
      e.result(0, int64_t{2} * op.i[STRATA_ROUTER_I_N_USED]);
      break;
    case STRATA_OP_EXPERTS:
    case STRATA_OP_COMBINE:
      expert_extents(plan, op, e);
      break;
    case STRATA_OP_GLU:
      e.in_first(0, op.i[STRATA_GLU_I_WIDTH]);
      e.in_first(1, op.i[STRATA_GLU_I_WIDTH]);
      e.result_first(op.i[STRATA_GLU_I_WIDTH]);
      break;
    case STRATA_OP_HEAD:
      e.in(0, plan.tensors[op.weight[0]].n_cols);
      e.result(0, plan.n_vocab);
      break;
    case STRATA_OP_MUL:
      e.in_first(0, op.i[STRATA_MUL_I_WIDTH]);
      e.in_first(1, op.i[STRATA_MUL_I_N_VEC] > 0 ? op.i[STRATA_MUL_I_N_VEC] : op.i[STRATA_MUL_I_WIDTH]);
      e.result_first(op.i[STRATA_MUL_I_WIDTH]);
      break;
    case STRATA_OP_CONV:
    case STRATA_OP_DELTA:
    case STRATA_OP_SSM_HEADS:
    case STRATA_OP_SSM_CHANNELS:
    case STRATA_OP_LIGHTNING:
      state_extents(op, e);
      break;
    default:  // ADD, GATHER, CLAMP, TEMPERATURE, SCALE: i[0] is the width of all operands
      e.in_first(0, op.i[0]);
      e.in_first(1, op.i[0]);
      e.result_first(op.i[0]);
  }
  return e.n;
}

}  // namespace strata
