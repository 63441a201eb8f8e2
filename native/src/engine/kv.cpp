#include "engine/kv.h"

#include <string.h>

namespace strata {
namespace {

// False when the type cannot hold a head of this layer.
bool lay_out(const strata_kv_layer& heads, int32_t kv_type, int64_t offset, int32_t n_blocks, KvLayer& layer, int64_t& end) {
  if (kv_type == STRATA_KV_Q8_0 && (heads.head_k % 32 != 0 || heads.head_v % 32 != 0)) return false;
  layer.offset = offset;
  layer.k_row_bytes = cpu::kv_row_bytes(kv_type, heads.head_k);
  if (layer.k_row_bytes <= 0) return false;
  const int64_t keys_bytes = heads.n_head_kv * kKvBlock * layer.k_row_bytes;
  if (heads.v_in_k != 0) {
    layer.v_row_bytes = layer.k_row_bytes;
    layer.v_offset = 0;
    layer.block_bytes = keys_bytes;
  } else {
    layer.v_row_bytes = cpu::kv_row_bytes(kv_type, heads.head_v);
    layer.v_offset = keys_bytes;
    layer.block_bytes = keys_bytes + heads.n_head_kv * kKvBlock * layer.v_row_bytes;
  }
  layer.v_head_bytes = kKvBlock * layer.v_row_bytes;
  int64_t bytes;
  return !__builtin_mul_overflow(layer.block_bytes, int64_t{n_blocks}, &bytes) &&
         !__builtin_add_overflow(offset, bytes, &end);
}

}  // namespace

int64_t KvStore::measure_bytes(const Plan& plan, int32_t kv_type, int32_t n_blocks) {
  if (n_blocks < 0) return -1;
  int64_t end = 0;
  for (const strata_kv_layer& heads : plan.kv_layers) {
    KvLayer layer;
    if (!lay_out(heads, kv_type, end, n_blocks, layer, end)) return -1;
  }
  return end;
}

Status KvStore::open(const Plan& plan, int32_t kv_type, int32_t n_blocks, Error& error) {
  const int64_t bytes = measure_bytes(plan, kv_type, n_blocks);
  if (bytes < 0) {
    return error.fail(STRATA_E_UNSUPPORTED,
                      "config.kv_type is %d and n_kv_blocks %d; accepted: F32 (0) and F16 (1), Q8_0 (8) where "
                      "every head's size is a multiple of 32",
                      kv_type, n_blocks);
  }
  if (!layers_.resize(plan.kv_layers.size()) || !arena_.open(bytes)) {
    return error.fail(STRATA_E_MEMORY, "no memory for the KV cache: %lld bytes", static_cast<long long>(bytes));
  }
  // Touched now (contract C6): a cache that only runs out of memory while it fills would be killed, not refused.
  if (bytes > 0) memset(arena_.data(), 0, static_cast<size_t>(bytes));
  int64_t end = 0;
  for (int64_t l = 0; l < layers_.size(); ++l) lay_out(plan.kv_layers[l], kv_type, end, n_blocks, layers_[l], end);
  type_ = kv_type;
  n_blocks_ = n_blocks;
  return STRATA_OK;
}

void KvStore::copy_block(int32_t from, int32_t to) {
  if (from == to) return;
  for (const KvLayer& layer : layers_) {
    uint8_t* blocks = arena_.data() + layer.offset;
    memcpy(blocks + to * layer.block_bytes, blocks + from * layer.block_bytes, static_cast<size_t>(layer.block_bytes));
  }
}

}  // namespace strata
