// The weights arena: where bytes of the file go, and how ops see them.
#include "model/weights.h"

#include <string.h>
#include <sys/mman.h>

#include "base/ieee_math.h"

namespace strata {
namespace {

constexpr int32_t kTypeF32 = 0, kTypeF16 = 1;

void to_float(int32_t type, const uint8_t* bytes, int64_t n, float* out) {
  if (type == kTypeF32) {
    memcpy(out, bytes, static_cast<size_t>(n) * 4);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    memcpy(&half, bytes + 2 * i, sizeof half);
    out[i] = type == kTypeF16 ? m_half_to_float(half) : m_bf16_to_float(half);
  }
}

}  // namespace

Weights::~Weights() {
  for (const Mapping& mapping : mappings_) {
    if (mapping.data != nullptr) munmap(const_cast<uint8_t*>(mapping.data), static_cast<size_t>(mapping.bytes));
  }
}

Status Weights::reserve(Error& error) {
  if (ready()) return error.fail(STRATA_E_STATE, "the model's weights are loaded already");
  if (!arena_.open(plan_.weights_bytes)) {
    return error.fail(STRATA_E_MEMORY, "no memory for a weights arena of %lld bytes",
                      static_cast<long long>(plan_.weights_bytes));
  }
  ready_.store(true, std::memory_order_release);
  return STRATA_OK;
}

void Weights::place(const strata_tensor& tensor, int64_t mat, int64_t row_first, int64_t n_rows, const uint8_t* bytes) {
  uint8_t* at = arena_.data() + tensor.arena_offset + mat * tensor.mat_stride_bytes;
  if (tensor_is_vector(tensor)) {
    to_float(tensor.type, bytes, tensor.n_cols, reinterpret_cast<float*>(at));
    return;
  }
  cpu::pack_rows(tensor.type, bytes, row_first, row_first + n_rows, tensor.n_rows, tensor.n_cols, at);
}

Status Weights::fill(int32_t tensor, int64_t mat, int64_t row_first, int64_t n_rows, const uint8_t* bytes, int64_t n_bytes,
                     Error& error) {
  if (!ready() || mappings_.size() != 0) return error.fail(STRATA_E_STATE, "strata_model_fill needs a reserved model");
  if (tensor < 0 || tensor >= plan_.tensors.size()) {
    return error.fail(STRATA_E_ARGUMENT, "tensor is %d; accepted: 0 to %lld", tensor,
                      static_cast<long long>(plan_.tensors.size() - 1));
  }
  const strata_tensor& t = plan_.tensors[tensor];
  if (mat < 0 || mat >= t.n_mats) {
    return error.fail(STRATA_E_ARGUMENT, "mat is %lld; accepted: 0 to %lld", static_cast<long long>(mat),
                      static_cast<long long>(t.n_mats - 1));
  }
  const bool first = row_first >= 0 && row_first < t.n_rows && row_first % cpu::kGroupRows == 0;
  const bool last = first && n_rows > 0 && n_rows <= t.n_rows - row_first &&
                    (n_rows % cpu::kGroupRows == 0 || row_first + n_rows == t.n_rows);
  if (!last) {
    return error.fail(STRATA_E_ARGUMENT,
                      "rows %lld to %lld of %lld; whole groups of %lld rows, or up to the last row, are accepted",
                      static_cast<long long>(row_first), static_cast<long long>(row_first + n_rows),
                      static_cast<long long>(t.n_rows), static_cast<long long>(cpu::kGroupRows));
  }
  const int64_t wanted = n_rows * tensor_row_bytes(t);
  if (bytes == nullptr || n_bytes != wanted) {
    return error.fail(STRATA_E_ARGUMENT, "n_bytes is %lld; these rows have %lld", static_cast<long long>(n_bytes),
                      static_cast<long long>(wanted));
  }
  place(t, mat, row_first, n_rows, bytes);
  return STRATA_OK;
}

void Weights::progress(int64_t* done, int64_t* total) const {
  *done = done_bytes_.load(std::memory_order_relaxed);
  *total = total_bytes_.load(std::memory_order_relaxed);
}

cpu::MatView Weights::matrix(int32_t tensor, int64_t m) const {
  if (tensor < 0) return {-1, cpu::Layout::packed, 0, 0, nullptr};
  const strata_tensor& t = plan_.tensors[tensor];
  if (t.role == STRATA_ROLE_EXPERT_MATRIX && mappings_.size() != 0) {
    const bool listed = t.source_first >= 0;
    const int32_t shard = listed ? plan_.sources[t.source_first + m].shard : t.shard;
    const int64_t offset = listed ? plan_.sources[t.source_first + m].file_offset : t.file_offset + m * t.file_stride_bytes;
    return {t.type, cpu::Layout::rows, t.n_rows, t.n_cols, mappings_[shard].data + offset};
  }
  return {t.type, cpu::Layout::packed, t.n_rows, t.n_cols, arena_.data() + t.arena_offset + m * t.mat_stride_bytes};
}

const float* Weights::vector(int32_t tensor, int64_t m) const {
  if (tensor < 0) return nullptr;
  const strata_tensor& t = plan_.tensors[tensor];
  return reinterpret_cast<const float*>(arena_.data() + t.arena_offset + m * t.mat_stride_bytes);
}

Status Weights::fetch(int32_t set, int32_t expert, ExpertView* view) {
  const strata_expert_set& s = plan_.expert_sets[set];
  *view = {matrix(s.gate, expert),       matrix(s.up, expert),       matrix(s.down, expert),
           vector(s.gate_bias, expert),  vector(s.up_bias, expert),  vector(s.down_bias, expert),
           vector(s.gate_scale, expert), vector(s.up_scale, expert), vector(s.down_scale, expert)};
  return STRATA_OK;
}

}  // namespace strata
