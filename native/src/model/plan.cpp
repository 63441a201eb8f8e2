// Copies and validates the tables that describe data: tensors, buffers, ropes, KV layers.
#include "model/plan.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/kernels.h"
#include "model/validate.h"

namespace strata {
namespace {

constexpr int32_t kTypeF32 = 0, kTypeF16 = 1, kTypeBF16 = 30;

const cpu::TypeKernels* type_facts(int32_t type) { return cpu::type_kernels(cpu::Tier::scalar, type); }

template <class T>
Status copy_table(Array<T>& to, const T* from, int32_t n, const char* name, Error& error) {
  if (n < 0 || n > kMaxTableRows) {
    return error.fail(STRATA_E_ARGUMENT, "desc.n_%s is %d; accepted: 0 to %lld", name, n,
                      static_cast<long long>(kMaxTableRows));
  }
  if (n > 0 && from == nullptr) return error.fail(STRATA_E_ARGUMENT, "desc.%s is null, but desc.n_%s is %d", name, name, n);
  if (!to.copy(from, n)) return error.fail(STRATA_E_MEMORY, "no memory for %d %s", n, name);
  return STRATA_OK;
}

Status copy_paths(const strata_model_desc& desc, Plan& plan, Error& error) {
  if (desc.n_paths < 0 || desc.n_paths > 65536) {
    return error.fail(STRATA_E_ARGUMENT, "desc.n_paths is %d; accepted: 0 to 65536", desc.n_paths);
  }
  if (desc.n_paths > 0 && desc.paths == nullptr) {
    return error.fail(STRATA_E_ARGUMENT, "desc.paths is null, but desc.n_paths is %d", desc.n_paths);
  }
  int64_t n_bytes = 0;
  for (int32_t i = 0; i < desc.n_paths; ++i) {
    if (desc.paths[i] == nullptr) return error.fail(STRATA_E_ARGUMENT, "desc.paths[%d] is null", i);
    n_bytes += static_cast<int64_t>(strlen(desc.paths[i])) + 1;
  }
  if (!plan.path_bytes.resize(n_bytes) || !plan.paths.resize(desc.n_paths)) {
    return error.fail(STRATA_E_MEMORY, "no memory for %d paths", desc.n_paths);
  }
  char* at = plan.path_bytes.data();
  for (int32_t i = 0; i < desc.n_paths; ++i) {
    const size_t bytes = strlen(desc.paths[i]) + 1;
    memcpy(at, desc.paths[i], bytes);
    plan.paths[i] = at;
    at += bytes;
  }
  return STRATA_OK;
}

Status validate_scalars(const Plan& plan, Error& error) {
  const struct {
    const char* name;
    int64_t value, low, high;
  } rows[] = {
      {"n_layer", plan.n_layer, 0, 65536},
      {"n_vocab", plan.n_vocab, 1, kMaxCols},
      {"n_embd", plan.n_embd, 1, kMaxCols},
      {"n_batch", plan.n_batch, 1, kMaxBatch},
      {"n_outputs_max", plan.n_outputs_max, 1, plan.n_batch},
      {"weights_bytes", plan.weights_bytes, 0, int64_t{1} << 50},
      {"activations_bytes", plan.activations_bytes, 0, int64_t{1} << 46},
  };
  for (const auto& row : rows) {
    if (row.value < row.low || row.value > row.high) {
      return error.fail(STRATA_E_ARGUMENT, "desc.%s is %lld; accepted: %lld to %lld", row.name,
                        static_cast<long long>(row.value), static_cast<long long>(row.low),
                        static_cast<long long>(row.high));
    }
  }
  return STRATA_OK;
}

Status validate_tensor_shape(const strata_tensor& tensor, const Row& row) {
  STRATA_TRY(row.range("role", tensor.role, STRATA_ROLE_MATRIX, STRATA_ROLE_EXPERT_VECTOR));
  STRATA_TRY(row.range("n_cols", tensor.n_cols, 1, kMaxCols));
  STRATA_TRY(row.range("n_rows", tensor.n_rows, 1, kMaxRows));
  STRATA_TRY(row.range("n_mats", tensor.n_mats, 1, kMaxMats));
  if (tensor_is_vector(tensor)) {
    if (tensor.type != kTypeF32 && tensor.type != kTypeF16 && tensor.type != kTypeBF16) {
      return row.bad("type", tensor.type, "a vector is F32 (0), F16 (1) or BF16 (30)");
    }
    STRATA_TRY(row.equal("n_rows", tensor.n_rows, 1, "a vector's number of rows"));
    if (tensor.role == STRATA_ROLE_VECTOR)
      STRATA_TRY(row.equal("n_mats", tensor.n_mats, 1, "a vector's number of matrices"));
    return STRATA_OK;
  }
  const cpu::TypeKernels* facts = type_facts(tensor.type);
  if (facts == nullptr) return row.bad("type", tensor.type, "this is no matrix type that the library knows");
  if (tensor.n_cols % facts->block != 0) {
    return row.error.fail(STRATA_E_ARGUMENT, "%s[%lld].n_cols is %lld; rows of %s are multiples of %lld", row.table,
                          static_cast<long long>(row.index), static_cast<long long>(tensor.n_cols), facts->name,
                          static_cast<long long>(facts->block));
  }
  return STRATA_OK;
}

Status validate_tensor_arena(const Plan& plan, const strata_tensor& tensor, const Row& row) {
  const bool vector = tensor_is_vector(tensor);
  const int64_t bytes = vector ? tensor.n_cols * 4 : cpu::packed_bytes(tensor.type, tensor.n_rows, tensor.n_cols);
  if (bytes <= 0) return row.bad("n_rows", tensor.n_rows, "the packed matrix has no size");
  STRATA_TRY(row.range("arena_offset", tensor.arena_offset, 0, plan.weights_bytes));
  if (tensor.arena_offset % 64 != 0) return row.bad("arena_offset", tensor.arena_offset, "a multiple of 64 is needed");
  const int64_t least = tensor.n_mats > 1 ? bytes : 0;  // one matrix needs no stride
  STRATA_TRY(row.range("mat_stride_bytes", tensor.mat_stride_bytes, least, int64_t{1} << 50));
  if (tensor.mat_stride_bytes % (vector ? 4 : 64) != 0) {
    return row.bad("mat_stride_bytes", tensor.mat_stride_bytes,
                   vector ? "a multiple of 4 is needed" : "a multiple of 64 is needed");
  }
  int64_t span, end;
  if (mul_overflows(tensor.n_mats - 1, tensor.mat_stride_bytes, &span) || add_overflows(span, bytes, &span) ||
      add_overflows(span, tensor.arena_offset, &end) || end > plan.weights_bytes) {
    return row.error.fail(
        STRATA_E_ARGUMENT,
        "tensors[%lld] does not fit: arena_offset %lld, %lld matrices %lld bytes apart, the last one of %lld bytes, "
        "in an arena of %lld bytes",
        static_cast<long long>(row.index), static_cast<long long>(tensor.arena_offset),
        static_cast<long long>(tensor.n_mats), static_cast<long long>(tensor.mat_stride_bytes),
        static_cast<long long>(bytes), static_cast<long long>(plan.weights_bytes));
  }
  return STRATA_OK;
}

Status validate_tensor_file(const Plan& plan, const strata_tensor& tensor, const Row& row) {
  if (plan.paths.size() == 0) return STRATA_OK;  // a synthetic model has no file
  const int64_t bytes = tensor_file_bytes(tensor);
  int64_t end;
  if (tensor.source_first >= 0) {
    STRATA_TRY(row.range("source_first", tensor.source_first, 0, plan.sources.size() - tensor.n_mats));
    for (int64_t m = 0; m < tensor.n_mats; ++m) {
      const strata_source& source = plan.sources[tensor.source_first + m];
      const Row at{row.error, "sources", tensor.source_first + m};
      STRATA_TRY(at.range("shard", source.shard, 0, plan.paths.size() - 1));
      STRATA_TRY(at.range("file_offset", source.file_offset, 0, INT64_MAX - bytes));
    }
    return STRATA_OK;
  }
  STRATA_TRY(row.equal("source_first", tensor.source_first, -1, "the value for a tensor without sources"));
  STRATA_TRY(row.range("shard", tensor.shard, 0, plan.paths.size() - 1));
  STRATA_TRY(row.range("file_offset", tensor.file_offset, 0, INT64_MAX));
  STRATA_TRY(row.range("file_stride_bytes", tensor.file_stride_bytes, tensor.n_mats > 1 ? bytes : 0, INT64_MAX));
  if (mul_overflows(tensor.n_mats - 1, tensor.file_stride_bytes, &end) || add_overflows(end, bytes, &end) ||
      add_overflows(end, tensor.file_offset, &end)) {
    return row.bad("file_offset", tensor.file_offset, "the tensor's end does not fit in 64 bits");
  }
  return STRATA_OK;
}

Status validate_tensors(const Plan& plan, Error& error) {
  for (int64_t i = 0; i < plan.tensors.size(); ++i) {
    const Row row{error, "tensors", i};
    STRATA_TRY(validate_tensor_shape(plan.tensors[i], row));
    STRATA_TRY(validate_tensor_arena(plan, plan.tensors[i], row));
    STRATA_TRY(validate_tensor_file(plan, plan.tensors[i], row));
  }
  return STRATA_OK;
}

struct Span {
  int64_t begin, end;
  const char* table;
  int64_t index;
};

int compare_spans(const void* a, const void* b) {
  const int64_t x = static_cast<const Span*>(a)->begin, y = static_cast<const Span*>(b)->begin;
  return x < y ? -1 : x > y;
}

// No two tensors, and no tensor and expert set, share bytes of the arena.
Status validate_overlap(const Plan& plan, Error& error) {
  Array<Span> spans;
  if (!spans.resize(plan.tensors.size() + plan.expert_sets.size()))
    return error.fail(STRATA_E_MEMORY, "no memory to compare tensors");
  int64_t n = 0;
  for (int64_t i = 0; i < plan.tensors.size(); ++i) {
    const strata_tensor& tensor = plan.tensors[i];
    if (tensor.role == STRATA_ROLE_EXPERT_MATRIX || tensor.role == STRATA_ROLE_EXPERT_VECTOR) continue;
    const int64_t last =
        tensor_is_vector(tensor) ? tensor.n_cols * 4 : cpu::packed_bytes(tensor.type, tensor.n_rows, tensor.n_cols);
    spans[n++] = {tensor.arena_offset, tensor.arena_offset + (tensor.n_mats - 1) * tensor.mat_stride_bytes + last, "tensors",
                  i};
  }
  for (int64_t i = 0; i < plan.expert_sets.size(); ++i) {
    const strata_expert_set& set = plan.expert_sets[i];
    spans[n++] = {set.arena_offset, set.arena_offset + set.n_expert * set.slot_bytes, "expert_sets", i};
  }
  if (n > 1) qsort(spans.data(), static_cast<size_t>(n), sizeof(Span), compare_spans);
  for (int64_t i = 1; i < n; ++i) {
    if (spans[i].begin >= spans[i - 1].end) continue;
    return error.fail(STRATA_E_ARGUMENT, "%s[%lld].arena_offset is %lld, inside %s[%lld], which ends at %lld",
                      spans[i].table, static_cast<long long>(spans[i].index), static_cast<long long>(spans[i].begin),
                      spans[i - 1].table, static_cast<long long>(spans[i - 1].index),
                      static_cast<long long>(spans[i - 1].end));
  }
  return STRATA_OK;
}

Status validate_buffers(const Plan& plan, Error& error) {
  for (int64_t i = 0; i < plan.buffers.size(); ++i) {
    const strata_buffer& buffer = plan.buffers[i];
    const Row row{error, "buffers", i};
    STRATA_TRY(row.range("rows", buffer.rows, STRATA_ROWS_TOKENS, STRATA_ROWS_OUTPUTS));
    STRATA_TRY(row.range("width", buffer.width, 1, INT32_MAX));
    STRATA_TRY(row.range("row_stride", buffer.row_stride, buffer.width, INT32_MAX));
    STRATA_TRY(row.range("offset", buffer.offset, 0, plan.activations_bytes));
    if (buffer.offset % 4 != 0) return row.bad("offset", buffer.offset, "a multiple of 4 is needed");
    const int64_t floats = int64_t{rows_max(plan, buffer.rows) - 1} * buffer.row_stride + buffer.width;
    if (floats > (plan.activations_bytes - buffer.offset) / 4) {
      return error.fail(STRATA_E_ARGUMENT,
                        "buffers[%lld] does not fit: offset %lld and %lld floats in an arena of %lld bytes",
                        static_cast<long long>(i), static_cast<long long>(buffer.offset), static_cast<long long>(floats),
                        static_cast<long long>(plan.activations_bytes));
    }
  }
  return STRATA_OK;
}

Status validate_ropes(const Plan& plan, Error& error) {
  for (int64_t i = 0; i < plan.freqs.size(); ++i) {
    if (!std::isfinite(plan.freqs[i]))
      return error.fail(STRATA_E_ARGUMENT, "freqs[%lld] is not finite", static_cast<long long>(i));
  }
  for (int64_t i = 0; i < plan.ropes.size(); ++i) {
    const strata_rope& rope = plan.ropes[i];
    const Row row{error, "ropes", i};
    STRATA_TRY(row.range("style", rope.style, STRATA_ROPE_NORM, STRATA_ROPE_NEOX));
    STRATA_TRY(row.range("n_rot", rope.n_rot, 2, 65536));
    if (rope.n_rot % 2 != 0) return row.bad("n_rot", rope.n_rot, "an even number is needed");
    STRATA_TRY(row.range("freq_first", rope.freq_first, 0, plan.freqs.size() - rope.n_rot / 2));
    STRATA_TRY(row.finite("magnitude", rope.magnitude));
    STRATA_TRY(row.range("factors", rope.factors, -1, plan.tensors.size() - 1));
    if (rope.factors < 0) continue;
    const strata_tensor& factors = plan.tensors[rope.factors];
    STRATA_TRY(row.equal("factors' role", factors.role, STRATA_ROLE_VECTOR, "a vector's"));
    STRATA_TRY(row.equal("factors' n_cols", factors.n_cols, rope.n_rot / 2, "n_rot / 2"));
  }
  return STRATA_OK;
}

Status validate_kv_layers(const Plan& plan, Error& error) {
  for (int64_t i = 0; i < plan.kv_layers.size(); ++i) {
    const strata_kv_layer& layer = plan.kv_layers[i];
    const Row row{error, "kv_layers", i};
    STRATA_TRY(row.range("n_head_kv", layer.n_head_kv, 1, kMaxHeads));
    STRATA_TRY(row.range("head_k", layer.head_k, 1, 65536));
    STRATA_TRY(row.range("head_v", layer.head_v, 1, 65536));
    STRATA_TRY(row.range("v_in_k", layer.v_in_k, 0, 1));
    if (layer.v_in_k == 1) STRATA_TRY(row.range("head_v", layer.head_v, 1, layer.head_k));
  }
  return STRATA_OK;
}

Status validate_states(const Plan& plan, Error& error) {
  for (int64_t i = 0; i < plan.states.size(); ++i) {
    STRATA_TRY((Row{error, "states", i}.range("n_floats", plan.states[i].n_floats, 1, kMaxStateFloats)));
  }
  return STRATA_OK;
}

Status copy_tables(const strata_model_desc& desc, Plan& plan, Error& error) {
  STRATA_TRY(copy_paths(desc, plan, error));
  STRATA_TRY(copy_table(plan.tensors, desc.tensors, desc.n_tensors, "tensors", error));
  STRATA_TRY(copy_table(plan.sources, desc.sources, desc.n_sources, "sources", error));
  STRATA_TRY(copy_table(plan.buffers, desc.buffers, desc.n_buffers, "buffers", error));
  STRATA_TRY(copy_table(plan.ropes, desc.ropes, desc.n_ropes, "ropes", error));
  STRATA_TRY(copy_table(plan.freqs, desc.freqs, desc.n_freqs, "freqs", error));
  STRATA_TRY(copy_table(plan.kv_layers, desc.kv_layers, desc.n_kv_layers, "kv_layers", error));
  STRATA_TRY(copy_table(plan.expert_sets, desc.expert_sets, desc.n_expert_sets, "expert_sets", error));
  STRATA_TRY(copy_table(plan.states, desc.states, desc.n_states, "states", error));
  return copy_table(plan.ops, desc.ops, desc.n_ops, "ops", error);
}

}  // namespace

bool tensor_is_vector(const strata_tensor& tensor) {
  return tensor.role == STRATA_ROLE_VECTOR || tensor.role == STRATA_ROLE_EXPERT_VECTOR;
}

int64_t tensor_row_bytes(const strata_tensor& tensor) {
  if (tensor_is_vector(tensor)) return tensor.n_cols * (tensor.type == kTypeF32 ? 4 : 2);
  const cpu::TypeKernels* facts = type_facts(tensor.type);
  return tensor.n_cols / facts->block * facts->block_bytes;
}

int64_t tensor_file_bytes(const strata_tensor& tensor) { return tensor_row_bytes(tensor) * tensor.n_rows; }

Status plan_open(const strata_model_desc& desc, Plan& plan, Error& error) {
  if (desc.abi_version != STRATA_ABI_VERSION) {
    return error.fail(STRATA_E_ARGUMENT, "desc.abi_version is %d; this library has %d", desc.abi_version,
                      STRATA_ABI_VERSION);
  }
  STRATA_TRY(copy_tables(desc, plan, error));
  plan.n_layer = desc.n_layer;
  plan.n_vocab = desc.n_vocab;
  plan.n_embd = desc.n_embd;
  plan.n_batch = desc.n_batch;
  plan.n_outputs_max = desc.n_outputs_max;
  plan.weights_bytes = desc.weights_bytes;
  plan.activations_bytes = desc.activations_bytes;
  STRATA_TRY(validate_scalars(plan, error));
  STRATA_TRY(validate_tensors(plan, error));
  STRATA_TRY(validate_expert_sets(plan, error));
  STRATA_TRY(validate_overlap(plan, error));
  STRATA_TRY(validate_buffers(plan, error));
  STRATA_TRY(validate_ropes(plan, error));
  STRATA_TRY(validate_kv_layers(plan, error));
  STRATA_TRY(validate_states(plan, error));
  return validate_ops(plan, error);
}

}  // namespace strata
