// LINEAR, HEAD_LINEAR and HEAD: the input is rounded once for each form, then one launch for all matrices of one type.
#include <algorithm>

#include "cuda/gpu_ops.h"

namespace strata::cuda {
namespace {

// Sets the parts' places in the grid; returns its width.
int32_t place_blocks(LinearArgs& args, int32_t rows_per_block) {
  int32_t n_blocks = 0;
  for (int32_t p = 0; p < args.n_parts; ++p) {
    args.part[p].first_block = n_blocks;
    n_blocks += static_cast<int32_t>(ceil_div(args.part[p].n_rows, rows_per_block));
  }
  return n_blocks;
}

}  // namespace

// Rounds rows of floats to `place`; f32 has nothing to round. device_rows: the number of rows that count, on the device.
Status Walk::round_rows(cpu::ActForm form, const float* x, int64_t x_stride, int64_t n_cols, int64_t n_rows,
                        const int32_t* device_rows, int64_t place) {
  const int64_t unit = form == cpu::ActForm::a32 ? 32 : 256, stride = gpu_act_row_bytes(form, n_cols);
  for (int64_t first = 0; first < n_rows; first += kMaxGridRows) {
    const int64_t n = std::min(kMaxGridRows, n_rows - first);
    // The device's number counts from row 0: in later parts all rows are rounded, wanted or not.
    const ActArgs args{x + first * x_stride,
                       x_stride,
                       at<uint8_t>(place + first * stride),
                       stride,
                       n_cols,
                       first == 0 ? device_rows : nullptr};
    STRATA_TRY(go(gpu_.functions->act[static_cast<int32_t>(form)], ceil_div(n_cols / unit, 8), n, 256, args));
  }
  return STRATA_OK;
}

// Rows of a buffer in the form that a weight type asks for.
Status Walk::acts_of(int32_t b, int32_t type, int64_t n_cols, Acts& acts) {
  const cpu::ActForm form = act_form(type);
  if (form == cpu::ActForm::f32) {
    acts = {reinterpret_cast<const uint8_t*>(row(b)), stride(b) * 4};
    return STRATA_OK;
  }
  const int32_t f = static_cast<int32_t>(form);
  acts = {at<const uint8_t>(gpu_.layout->acts[f]), gpu_act_row_bytes(form, n_cols)};
  Rounded& rounded = rounded_[f];
  if (rounded.buffer == b && rounded.n_cols == n_cols && rounded.n_rows == n_rows(b)) return STRATA_OK;
  rounded = {b, n_cols, n_rows(b)};
  return round_rows(form, row(b), stride(b), n_cols, n_rows(b), nullptr, gpu_.layout->acts[f]);
}

// Up to four matrices of one type on the same rows; first_block of the parts is set here.
Status Walk::multiply(int32_t type, const LinearPart* parts, int32_t n_parts, int64_t n_cols, const Acts& acts,
                      int32_t n_tokens, float factor, float softcap) {
  const TypeFunctions& functions = gpu_.functions->types[type];
  const TypeKernels& kernels = *functions.kernels;
  LinearArgs args{};
  std::copy_n(parts, n_parts, args.part);
  args.n_parts = n_parts;
  args.n_tokens = n_tokens;
  args.n_cols = n_cols;
  args.acts = acts.rows;
  args.act_stride = acts.stride;
  args.factor = factor;
  args.softcap = softcap;
  if (functions.linear_batch != nullptr && n_tokens > kFewTokens)
    return go(functions.linear_batch, place_blocks(args, kTileRows), ceil_div(n_tokens, kTileTokens), kBatchThreads, args);
  return go(functions.linear[variant_of(n_tokens)], place_blocks(args, kernels.rows_per_block),
            ceil_div(n_tokens, kMaxTokens), linear_threads(kernels, n_tokens), args);
}

Status Walk::linear(const strata_op& op) {
  const int32_t n = op.i[STRATA_LINEAR_I_N];
  const int64_t n_cols = gpu_.plan->tensors[op.weight[0]].n_cols;
  bool done[STRATA_OP_N_OUT] = {};
  for (int32_t first = 0; first < n; ++first) {
    if (done[first]) continue;
    const int32_t type = gpu_.plan->tensors[op.weight[first]].type;
    LinearPart parts[kMaxParts];
    int32_t n_parts = 0;
    for (int32_t k = first; k < n; ++k) {
      const strata_tensor& tensor = gpu_.plan->tensors[op.weight[k]];
      if (tensor.type != type) continue;
      done[k] = true;
      parts[n_parts++] = {matrix(op.weight[k]),
                          row(op.out[k]),
                          vector(op.weight[4 + k]),
                          vector(op.weight[8 + k]),
                          stride(op.out[k]),
                          static_cast<int32_t>(tensor.n_rows),
                          0};
    }
    Acts acts;
    STRATA_TRY(acts_of(op.in[0], type, n_cols, acts));
    STRATA_TRY(multiply(type, parts, n_parts, n_cols, acts, n_rows(op.in[0]), 1.0f, 0.0f));
  }
  return STRATA_OK;
}

// One launch for each head: every head has an input of its own. Rounded row t * n_head + h.
Status Walk::head_linear(const strata_op& op) {
  const int32_t n_head = op.i[STRATA_HEAD_LINEAR_I_N_HEAD];
  const strata_tensor& tensor = gpu_.plan->tensors[op.weight[0]];
  const cpu::ActForm form = act_form(tensor.type);
  const float* x = row(op.in[0]) + op.i[STRATA_HEAD_LINEAR_I_IN_OFFSET];
  const int64_t x_head = op.i[STRATA_HEAD_LINEAR_I_IN_STRIDE], row_bytes = gpu_act_row_bytes(form, tensor.n_cols);
  const int64_t place = gpu_.layout->acts[static_cast<int32_t>(form)];
  if (form != cpu::ActForm::f32) {
    rounded_[static_cast<int32_t>(form)].buffer = -1;
    for (int32_t t = 0; t < shape_.n_tokens; ++t) {
      STRATA_TRY(round_rows(form, x + t * stride(op.in[0]), x_head, tensor.n_cols, n_head, nullptr,
                            place + t * n_head * row_bytes));
    }
  }
  for (int32_t h = 0; h < n_head; ++h) {
    Acts acts{reinterpret_cast<const uint8_t*>(x + h * x_head), stride(op.in[0]) * 4};
    if (form != cpu::ActForm::f32) acts = {at<const uint8_t>(place + h * row_bytes), n_head * row_bytes};
    const LinearPart part{
        matrix(op.weight[0], h),
        row(op.out[0]) + op.i[STRATA_HEAD_LINEAR_I_OUT_OFFSET] + int64_t{h} * op.i[STRATA_HEAD_LINEAR_I_OUT_STRIDE],
        nullptr,
        nullptr,
        stride(op.out[0]),
        static_cast<int32_t>(tensor.n_rows),
        0};
    STRATA_TRY(multiply(tensor.type, &part, 1, tensor.n_cols, acts, n_rows(op.in[0]), 1.0f, 0.0f));
  }
  return STRATA_OK;
}

Status Walk::head(const strata_op& op) {
  const strata_tensor& tensor = gpu_.plan->tensors[op.weight[0]];
  Acts acts;
  STRATA_TRY(acts_of(op.in[0], tensor.type, tensor.n_cols, acts));
  const LinearPart part{matrix(op.weight[0]),
                        row(op.out[0]),
                        vector(op.weight[1]),
                        vector(op.weight[2]),
                        stride(op.out[0]),
                        static_cast<int32_t>(tensor.n_rows),
                        0};
  return multiply(tensor.type, &part, 1, tensor.n_cols, acts, n_rows(op.in[0]), op.f[STRATA_HEAD_F_SCALE],
                  op.f[STRATA_HEAD_F_SOFTCAP]);
}

}  // namespace strata::cuda
