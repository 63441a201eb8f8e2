// The paged key-value cache: blocks of STRATA_KV_BLOCK_TOKENS positions, the same block ids in every layer.
//
// Memory map, all layers one after the other:
//   layer l: [block b][part]           part = keys of all heads, then values of all heads (none where values alias keys)
//   keys:    [kv head h][64 positions][kv_row_bytes(type, head_k)]
//   values:  [kv head h][64 positions][kv_row_bytes(type, head_v)]
// One head's rows of a block are contiguous: attention reads runs of 64 rows, and a block of one layer is one run of
// bytes to copy. Every part is a multiple of 64 bytes.
#pragma once
#include "base/arena.h"
#include "cpu/vecmath.h"
#include "model/plan.h"

namespace strata {

constexpr int64_t kKvBlock = STRATA_KV_BLOCK_TOKENS;
static_assert(kKvBlock == cpu::kAttnTile, "an attention tile is a block of the cache");

// Sizes of one layer, in bytes.
struct KvLayer {
  int64_t offset;  // of block 0
  int64_t k_row_bytes;
  int64_t v_row_bytes;   // with aliased values: of the key row that holds them
  int64_t v_offset;      // of the values of head 0 inside a block
  int64_t v_head_bytes;  // between the values of two heads
  int64_t block_bytes;
};

class KvStore {
 public:
  // Bytes of a cache of this shape; -1 when the type cannot hold a head of the plan, or the number does not fit.
  static int64_t measure_bytes(const Plan& plan, int32_t kv_type, int32_t n_blocks);

  Status open(const Plan& plan, int32_t kv_type, int32_t n_blocks, Error& error);
  void copy_block(int32_t from, int32_t to);

  int32_t type() const { return type_; }
  int32_t n_blocks() const { return n_blocks_; }
  const KvLayer& layer(int32_t l) const { return layers_[l]; }
  // Row 0 of head h in a block of layer l.
  uint8_t* keys(int32_t l, int32_t block, int64_t h) const {
    const KvLayer& layer = layers_[l];
    return arena_.data() + layer.offset + block * layer.block_bytes + h * kKvBlock * layer.k_row_bytes;
  }
  uint8_t* values(int32_t l, int32_t block, int64_t h) const {
    const KvLayer& layer = layers_[l];
    return arena_.data() + layer.offset + block * layer.block_bytes + layer.v_offset + h * layer.v_head_bytes;
  }

 private:
  Arena arena_;
  Array<KvLayer> layers_;
  int32_t type_ = STRATA_KV_F32;
  int32_t n_blocks_ = 0;
};

}  // namespace strata
