// The walk, and the ops that meet no matrix.
#include "cuda/gpu_ops.h"

#include <algorithm>
#include <cstring>

namespace strata::cuda {
namespace {

constexpr uint32_t kPoisonWord = 0x7fc00000u;  // as engine/walk.h's

// Whether the rows of two buffers may share bytes.
bool meet(const Plan& plan, const strata_buffer& a, const strata_buffer& b) {
  const auto end = [&](const strata_buffer& buffer) {
    return buffer.offset + 4 * (int64_t{rows_max(plan, buffer.rows) - 1} * buffer.row_stride + buffer.width);
  };
  return a.offset < end(b) && b.offset < end(a);
}

}  // namespace

Walk::Walk(const GpuContext& gpu, const StepShape& shape, const uint8_t* inputs, Error& error)
    : gpu_(gpu),
      shape_(shape),
      inputs_(input_places(shape.n_tokens, shape.n_outputs, block_table_rows(shape.n_tokens, gpu.max_seqs), shape.n_blocks)),
      host_inputs_(inputs),
      error_(error) {}

const uint8_t* Walk::matrix(int32_t tensor, int64_t m) const {
  return at<const uint8_t>(gpu_.layout->tensors[tensor] + m * gpu_.plan->tensors[tensor].mat_stride_bytes);
}

const float* Walk::vector(int32_t tensor) const {
  return tensor < 0 ? nullptr : at<const float>(gpu_.layout->tensors[tensor]);
}

const TypeFunctions& Walk::type_of(int32_t tensor) const { return gpu_.functions->types[gpu_.plan->tensors[tensor].type]; }

bool Walk::given_up(uint64_t sequence) const {
  return sequence != 0 &&
         (gpu_.mailbox->load(kMailboxAbort) >= sequence || gpu_.mailbox->load(kMailboxFailure) >> kFailureShift >= sequence);
}

Status Walk::run(uint64_t sequence) {
  STRATA_TRY(begin());
  for (int64_t i = 0; i < gpu_.plan->ops.size(); ++i) {
    if (given_up(sequence)) return STRATA_E_CANCELLED;
    STRATA_TRY(op(i));
  }
  return finish();
}

Status Walk::begin() {
  const Driver& driver = *gpu_.driver;
  STRATA_CU(driver, error_,
            cuMemcpyHtoDAsync(gpu_.arena + static_cast<uint64_t>(gpu_.layout->inputs), host_inputs_,
                              static_cast<size_t>(inputs_.bytes), gpu_.stream));
  if (gpu_.poison) {
    STRATA_CU(driver, error_,
              cuMemsetD32Async(gpu_.arena + static_cast<uint64_t>(gpu_.layout->activations), kPoisonWord,
                               static_cast<size_t>(gpu_.plan->activations_bytes / 4), gpu_.stream));
  }
  for (int64_t r = 0; r < gpu_.plan->ropes.size(); ++r) {
    const strata_rope& rope = gpu_.plan->ropes[r];
    const RopeTableArgs args{input<int32_t>(inputs_.pos),
                             at<const double>(gpu_.layout->freqs) + rope.freq_first,
                             vector(rope.factors),
                             at(gpu_.layout->rope_tables[r]),
                             rope.n_rot,
                             rope.magnitude};
    STRATA_TRY(go(gpu_.functions->rope_table, ceil_div(rope.n_rot / 2, 128), shape_.n_tokens, 128, args));
  }
  return STRATA_OK;
}

Status Walk::finish() {
  const int32_t logits = gpu_.plan->ops[gpu_.plan->ops.size() - 1].out[0];
  FinishArgs args{};
  args.step = header();
  args.state = state();
  args.logits = row(logits);
  args.host = host_row(logits);
  args.step_done = shared<uint64_t>(mailbox_line(kMailboxStepDone));
  args.row_stride = stride(logits);
  args.n_rows = shape_.n_outputs;
  args.width = gpu_.plan->n_vocab;
  const int64_t blocks = std::min<int64_t>(std::max<int64_t>(ceil_div(int64_t{args.n_rows} * args.width, 1024), 1), 128);
  return go(gpu_.functions->finish, blocks, 1, 256, args);
}

// Names the op in the text of a failure that a launch described without knowing its place.
Status Walk::name_place(Status status, int64_t index) {
  const strata_op& op = gpu_.plan->ops[index];
  char what[sizeof error_.text];
  memcpy(what, error_.status != STRATA_OK ? error_.text : "failed", error_.status != STRATA_OK ? sizeof what : 7);
  error_.clear();
  return error_.fail(status, "op %lld %s, layer %d: %s", static_cast<long long>(index), op_name(op.kind), op.layer, what);
}

// Rounded rows of a buffer end when an op writes over the buffer's bytes.
void Walk::forget_written(const strata_op& op) {
  for (Rounded& rounded : rounded_) {
    for (int32_t k = 0; k < STRATA_OP_N_OUT && rounded.buffer >= 0; ++k) {
      if (op.out[k] >= 0 && meet(*gpu_.plan, buffer(op.out[k]), buffer(rounded.buffer))) rounded.buffer = -1;
    }
  }
}

Status Walk::op(int64_t index) {
  const strata_op& op = gpu_.plan->ops[index];
  if (n_rows(op.out[0]) == 0) return STRATA_OK;
  const Status status = run_op(op);
  if (status != STRATA_OK) return name_place(status, index);
  forget_written(op);
  return STRATA_OK;
}

Status Walk::run_op(const strata_op& op) {
  switch (op.kind) {
    case STRATA_OP_EMBED:
      return embed(op);
    case STRATA_OP_NORM:
      return norm(op);
    case STRATA_OP_LINEAR:
      return linear(op);
    case STRATA_OP_HEAD_LINEAR:
      return head_linear(op);
    case STRATA_OP_ROPE:
      return rope(op);
    case STRATA_OP_COPY:
      return copy(op);
    case STRATA_OP_ATTENTION:
      return attention(op);
    case STRATA_OP_ROUTER:
      return router(op);
    case STRATA_OP_EXPERTS:
      return experts(op);
    case STRATA_OP_COMBINE:
      return combine(op);
    case STRATA_OP_GLU:
      return glu(op);
    case STRATA_OP_ADD:
      return add(op);
    case STRATA_OP_GATHER:
      return gather(op);
    case STRATA_OP_HEAD:
      return head(op);
    case STRATA_OP_MUL:
      return mul(op);
    case STRATA_OP_CLAMP:
      return clamp(op);
    case STRATA_OP_TEMPERATURE:
      return temperature(op);
    case STRATA_OP_SCALE:
      return scale(op);
    default:
      return error_.fail(STRATA_E_UNSUPPORTED, "there is no CUDA kernel for this op");
  }
}

Status Walk::embed(const strata_op& op) {
  const strata_tensor& tensor = gpu_.plan->tensors[op.weight[0]];
  const TypeFunctions& type = type_of(op.weight[0]);
  const EmbedArgs args{matrix(op.weight[0]), input<int32_t>(inputs_.token), row(op.out[0]), stride(op.out[0]),
                       tensor.n_cols,        op.f[STRATA_EMBED_F_SCALE]};
  return go(type.embed, ceil_div(tensor.n_cols, type.kernels->embed_columns), shape_.n_tokens, type.kernels->embed_threads,
            args);
}

Status Walk::norm(const strata_op& op) {
  NormArgs args{};
  args.x = row(op.in[0]) + op.i[STRATA_NORM_I_IN_OFFSET];
  args.out = row(op.out[0]) + op.i[STRATA_NORM_I_OUT_OFFSET];
  args.gain = vector(op.weight[0]);
  args.bias = vector(op.weight[1]);
  args.x_row = stride(op.in[0]);
  args.x_vec = op.i[STRATA_NORM_I_IN_STRIDE];
  args.out_row = stride(op.out[0]);
  args.out_vec = op.i[STRATA_NORM_I_OUT_STRIDE];
  args.width = op.i[STRATA_NORM_I_WIDTH];
  args.gain_stride = op.i[STRATA_NORM_I_GAIN_PER_VEC] != 0 ? args.width : 0;
  args.kind = op.i[STRATA_NORM_I_KIND];
  args.eps = op.f[STRATA_NORM_F_EPS];
  return go(gpu_.functions->norm, op.i[STRATA_NORM_I_N_VEC], n_rows(op.in[0]), 256, args);
}

Status Walk::rope(const strata_op& op) {
  const int32_t table = op.i[STRATA_ROPE_I_TABLE];
  const strata_rope& rope = gpu_.plan->ropes[table];
  const int32_t n_head = op.i[STRATA_ROPE_I_N_HEAD];
  const RopeArgs args{row(op.out[0]) + op.i[STRATA_ROPE_I_OFFSET],
                      at<const float>(gpu_.layout->rope_tables[table]),
                      stride(op.out[0]),
                      op.i[STRATA_ROPE_I_STRIDE],
                      rope.n_rot,
                      n_head,
                      rope.style};
  return go(gpu_.functions->rope, n_head, shape_.n_tokens, 128, args);
}

Status Walk::copy(const strata_op& op) {
  const CopyArgs args{row(op.in[0]) + op.i[STRATA_COPY_I_IN_OFFSET],
                      row(op.out[0]) + op.i[STRATA_COPY_I_OUT_OFFSET],
                      stride(op.in[0]),
                      op.i[STRATA_COPY_I_IN_STRIDE],
                      stride(op.out[0]),
                      op.i[STRATA_COPY_I_OUT_STRIDE],
                      op.i[STRATA_COPY_I_N_HEAD],
                      op.i[STRATA_COPY_I_WIDTH]};
  return go(gpu_.functions->copy, ceil_div(int64_t{args.n_vec} * args.width, 256), n_rows(op.in[0]), 256, args);
}

Status Walk::attention(const strata_op& op) {
  const KvLayer& layer = gpu_.layout->kv_layers[op.i[STRATA_ATTENTION_I_KV_LAYER]];
  AttentionArgs args{};
  args.shape = attention_shape(*gpu_.plan, op, shape_.n_tokens, shape_.n_blocks);
  args.q = row(op.in[0]);
  args.q_stride = stride(op.in[0]);
  if (op.in[1] >= 0) {
    args.k = row(op.in[1]);
    args.k_stride = stride(op.in[1]);
  }
  if (op.in[2] >= 0) {
    args.v = row(op.in[2]);
    args.v_stride = stride(op.in[2]);
  }
  args.out = row(op.out[0]);
  args.out_stride = stride(op.out[0]);
  args.kv = at<uint8_t>(gpu_.layout->kv + layer.offset);
  args.k_row_bytes = layer.k_row_bytes;
  args.v_row_bytes = layer.v_row_bytes;
  args.v_offset = layer.v_offset;
  args.v_head_bytes = layer.v_head_bytes;
  args.block_bytes = layer.block_bytes;
  args.sinks = vector(op.weight[0]);
  args.pos = input<int32_t>(inputs_.pos);
  args.seq = input<int32_t>(inputs_.seq);
  args.block_table = input<int32_t>(inputs_.block_table);
  args.n_tokens = &header()->n_tokens;
  args.max_blocks = shape_.n_blocks;
  args.scale = op.f[STRATA_ATTENTION_F_SCALE];
  args.softcap = op.f[STRATA_ATTENTION_F_SOFTCAP];
  if (attention_scratch_bytes(args.shape) > gpu_.layout->attention_bytes)
    return error_.fail(STRATA_E_INTERNAL, "the attention's scratch was planned too small");
  return launch_attention(*gpu_.driver, gpu_.functions->attention, gpu_.stream, args,
                          gpu_.arena + static_cast<uint64_t>(gpu_.layout->attention), error_);
}

Status Walk::router(const strata_op& op) {
  RouterArgs args{};
  args.logits = row(op.in[0]);
  args.bias = vector(op.weight[0]);
  args.selection = reinterpret_cast<int32_t*>(row(op.out[0]));
  args.logits_stride = stride(op.in[0]);
  args.selection_stride = stride(op.out[0]);
  args.n_expert = op.i[STRATA_ROUTER_I_N_EXPERT];
  args.n_used = op.i[STRATA_ROUTER_I_N_USED];
  args.scores = op.i[STRATA_ROUTER_I_SCORES];
  args.n_group = op.i[STRATA_ROUTER_I_N_GROUP];
  args.n_group_used = op.i[STRATA_ROUTER_I_N_GROUP_USED];
  args.normalize = op.i[STRATA_ROUTER_I_NORMALIZE];
  args.select_logits = op.i[STRATA_ROUTER_I_SELECT_LOGITS];
  args.scale = op.f[STRATA_ROUTER_F_SCALE];
  args.norm_min = op.f[STRATA_ROUTER_F_NORM_MIN];
  args.chunk = op.i[STRATA_ROUTER_I_CHUNK];
  return go(gpu_.functions->router, n_rows(op.in[0]), 1, 32, args, 8 * int64_t{args.n_expert});
}

Status Walk::combine(const strata_op& op) {
  CombineArgs args{};
  args.y = row(op.in[0]);
  args.selection = reinterpret_cast<const int32_t*>(row(op.in[1]));
  args.out = row(op.out[0]);
  args.y_stride = stride(op.in[0]);
  args.selection_stride = stride(op.in[1]);
  args.out_stride = stride(op.out[0]);
  if (op.in[2] >= 0) {
    args.shared = row(op.in[2]);
    args.shared_stride = stride(op.in[2]);
  }
  if (op.in[2] >= 0 && op.in[3] >= 0) {
    args.shared_gate = row(op.in[3]);
    args.gate_stride = stride(op.in[3]);
  }
  args.n_used = op.i[STRATA_COMBINE_I_N_USED];
  args.width = op.i[STRATA_COMBINE_I_WIDTH];
  args.unit_weights = op.i[STRATA_COMBINE_I_UNIT_WEIGHTS];
  return go(gpu_.functions->combine, ceil_div(args.width, 256), n_rows(op.out[0]), 256, args);
}

Status Walk::glu(const strata_op& op) {
  ElementArgs args{};
  if (op.in[0] >= 0) {
    args.x = row(op.in[0]);
    args.x_stride = stride(op.in[0]);
  }
  args.y = row(op.in[1]);
  args.y_stride = stride(op.in[1]);
  args.out = row(op.out[0]);
  args.out_stride = stride(op.out[0]);
  args.width = op.i[STRATA_GLU_I_WIDTH];
  args.kind = op.i[STRATA_GLU_I_KIND];
  args.a = op.f[STRATA_GLU_F_P0];
  args.b = op.f[STRATA_GLU_F_P1];
  return go(gpu_.functions->glu, ceil_div(args.width, 256), n_rows(op.in[1]), 256, args);
}

Status Walk::add(const strata_op& op) {
  ElementArgs args{};
  args.x = row(op.in[0]);
  args.x_stride = stride(op.in[0]);
  if (op.in[1] >= 0) {
    args.y = row(op.in[1]);
    args.y_stride = stride(op.in[1]);
  }
  args.out = row(op.out[0]);
  args.out_stride = stride(op.out[0]);
  args.width = op.i[STRATA_ADD_I_WIDTH];
  args.a = op.f[STRATA_ADD_F_A];
  args.b = op.f[STRATA_ADD_F_B];
  return go(gpu_.functions->add, ceil_div(args.width, 256), n_rows(op.in[0]), 256, args);
}

Status Walk::mul(const strata_op& op) {
  ElementArgs args{};
  args.x = row(op.in[0]);
  args.x_stride = stride(op.in[0]);
  args.y = row(op.in[1]);
  args.y_stride = stride(op.in[1]);
  args.out = row(op.out[0]);
  args.out_stride = stride(op.out[0]);
  args.width = op.i[STRATA_MUL_I_WIDTH];
  args.kind = op.i[STRATA_MUL_I_ACT];
  args.n_vec = op.i[STRATA_MUL_I_N_VEC];
  return go(gpu_.functions->mul, ceil_div(args.width, 256), n_rows(op.in[0]), 256, args);
}

Status Walk::gather(const strata_op& op) {
  const GatherArgs args{row(op.in[0]),    row(op.out[0]),    input<int32_t>(inputs_.output_row),
                        stride(op.in[0]), stride(op.out[0]), op.i[STRATA_GATHER_I_WIDTH]};
  return go(gpu_.functions->gather, ceil_div(args.width, 256), shape_.n_outputs, 256, args);
}

Status Walk::clamp(const strata_op& op) {
  ElementArgs args{};
  args.x = row(op.out[0]);
  args.out = row(op.out[0]);
  args.x_stride = args.out_stride = stride(op.out[0]);
  args.width = op.i[STRATA_CLAMP_I_WIDTH];
  args.a = op.f[STRATA_CLAMP_F_LIMIT];
  return go(gpu_.functions->clamp, ceil_div(args.width, 256), n_rows(op.out[0]), 256, args);
}

Status Walk::temperature(const strata_op& op) {
  TemperatureArgs args{};
  args.x = row(op.out[0]);
  args.pos = input<int32_t>(inputs_.pos);
  args.stride = stride(op.out[0]);
  args.length = op.i[STRATA_TEMPERATURE_I_LENGTH];
  args.offset = op.i[STRATA_TEMPERATURE_I_OFFSET];
  args.width = op.i[STRATA_TEMPERATURE_I_WIDTH];
  args.scale = op.f[STRATA_TEMPERATURE_F_SCALE];
  return go(gpu_.functions->temperature, ceil_div(args.width, 256), shape_.n_tokens, 256, args);
}

Status Walk::scale(const strata_op& op) {
  const ScaleArgs args{row(op.out[0]), vector(op.weight[0]), stride(op.out[0]), op.i[STRATA_SCALE_I_WIDTH]};
  return go(gpu_.functions->scale, ceil_div(args.width, 256), n_rows(op.out[0]), 256, args);
}

}  // namespace strata::cuda
