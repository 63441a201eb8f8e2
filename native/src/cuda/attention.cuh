// What the attention kernels share: rows of a cache of STRATA_KV_TYPE, and the packs that blocks work on.
#pragma once
#include "base/ieee_math.h"
#include "cuda/attention_args.h"
#include "strata.h"

namespace strata::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kTile = kAttnTileKeys, kPack = kAttnPackQueries;

struct alignas(16) Four {
  float x[4];
};
struct alignas(8) HalfFour {
  uint16_t x[4];
};

STRATA_DEVICE float minus_infinity() { return v_from_bits(static_cast<int32_t>(0xff800000)); }
// The larger one; NaN when either is.
STRATA_DEVICE float larger(float a, float b) { return a < b || b != b ? b : a; }

// ---- cache rows -----------------------------------------------------------------------------------------------------

STRATA_DEVICE float q8_scale(const uint8_t* block) { return half_to_float(*reinterpret_cast<const uint16_t*>(block)); }

STRATA_DEVICE float load_one(const uint8_t* row, int d) {
  if constexpr (STRATA_KV_TYPE == STRATA_KV_F32) return reinterpret_cast<const float*>(row)[d];
  if constexpr (STRATA_KV_TYPE == STRATA_KV_F16) return half_to_float(reinterpret_cast<const uint16_t*>(row)[d]);
  const uint8_t* block = row + d / 32 * 34;
  return static_cast<float>(static_cast<int8_t>(block[2 + d % 32])) * q8_scale(block);
}
// Values d .. d + 3 of a row of n values, zeros behind its end; d is a multiple of 4.
STRATA_DEVICE Four load_four(const uint8_t* row, int d, int n) {
  Four result;
  if (n % 4 != 0 || d >= n) {  // rows that are not aligned to four values, and the last of the 16 lanes
#pragma unroll
    for (int i = 0; i < 4; ++i) result.x[i] = d + i < n ? load_one(row, d + i) : 0.0f;
    return result;
  }
  if constexpr (STRATA_KV_TYPE == STRATA_KV_F32) {
    return *reinterpret_cast<const Four*>(row + 4 * d);
  } else if constexpr (STRATA_KV_TYPE == STRATA_KV_F16) {
    const HalfFour halves = *reinterpret_cast<const HalfFour*>(row + 2 * d);
#pragma unroll
    for (int i = 0; i < 4; ++i) result.x[i] = half_to_float(halves.x[i]);
    return result;
  } else {
    const uint8_t* block = row + d / 32 * 34;
    const auto* codes = reinterpret_cast<const uint16_t*>(block + 2 + d % 32);
    const float scale = q8_scale(block);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint16_t pair = codes[i];
      result.x[2 * i] = static_cast<float>(static_cast<int8_t>(pair & 0xff)) * scale;
      result.x[2 * i + 1] = static_cast<float>(static_cast<int8_t>(pair >> 8)) * scale;
    }
    return result;
  }
}

// A warp stores 32 values x (one of each lane) as a Q8_0 block; see store_q8_block of cpu/attn_impl.h.
STRATA_DEVICE void store_q8_block(float x, uint8_t* block) {
  const int lane = threadIdx.x % 32;
  const bool finite = __all_sync(kAllLanes, v_abs(x) < v_from_bits(0x7f800000));
  float amax = v_abs(x);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) amax = larger(amax, __shfl_xor_sync(kAllLanes, amax, step));
  const uint16_t half = finite ? m_float_to_half(amax / 127.0f) : static_cast<uint16_t>(0x7e00);
  const float d = half_to_float(half);
  const float code = finite && d > 0.0f ? m_clamp(m_round_even(x / d), -127.0f, 127.0f) : 0.0f;
  if (lane == 0) *reinterpret_cast<uint16_t*>(block) = half;
  block[2 + lane] = static_cast<uint8_t>(static_cast<int8_t>(static_cast<int32_t>(code)));
}
STRATA_DEVICE void store_row(const float* x, uint8_t* row, int n) {
  if constexpr (STRATA_KV_TYPE == STRATA_KV_Q8_0) {
    for (int d = threadIdx.x; d < n; d += blockDim.x) store_q8_block(x[d], row + d / 32 * 34);  // n % 32 == 0: whole warps
  } else {
    for (int d = threadIdx.x; d < n; d += blockDim.x) {
      if constexpr (STRATA_KV_TYPE == STRATA_KV_F32)
        reinterpret_cast<float*>(row)[d] = x[d];
      else
        reinterpret_cast<uint16_t*>(row)[d] = m_float_to_half(x[d]);
    }
  }
}

// ---- packs ----------------------------------------------------------------------------------------------------------

struct Pack {
  int row, n_rows;       // of the step
  int head, n_heads;     // first query head
  int kv_head;
  int low, high;         // keys that any row sees
  int first_tile, n_tiles;
  int seq_high;          // end of the sequence's positions, this step's rows included; causal ops do not use it
  const int32_t* blocks;  // of the pack's first tile

  __device__ __forceinline__ int n_queries() const { return n_rows * n_heads; }
  // Row and head of query i, and its place in the scratch.
  __device__ __forceinline__ int64_t query(const AttentionArgs& a, int i) const {
    return static_cast<int64_t>(row - a.first_token + i / n_heads) * a.shape.n_head + head + i % n_heads;
  }
};

// Keys that the query at `pos` sees.
STRATA_DEVICE void visible(const AttentionShape& shape, int pos, int seq_high, int& low, int& high) {
  const int window = shape.window;
  low = 0;
  high = shape.causal != 0 ? pos + 1 : seq_high;
  if (window == 0) return;
  if (shape.window_kind == STRATA_WINDOW_STANDARD) {
    low = pos - window + 1 > 0 ? pos - window + 1 : 0;
  } else if (shape.window_kind == STRATA_WINDOW_CHUNKED) {
    low = pos / window * window;
  } else {
    low = pos - window / 2 > 0 ? pos - window / 2 : 0;
    high = high < pos + window / 2 + 1 ? high : pos + window / 2 + 1;
  }
}

// Pack of which `row` is a row and `slot` counts kv heads and parts of heads.
STRATA_DEVICE void fill_pack(const AttentionArgs& a, int row, int slot, int end, Pack& pack) {
  const int seq = a.seq[row], part = slot % a.n_parts, group = a.shape.n_head / a.shape.n_head_kv;
  const int limit = a.first_token + ((row - a.first_token) / a.job_rows + 1) * a.job_rows;
  pack.row = row;
  pack.n_rows = 1;
  while (row + pack.n_rows < limit && row + pack.n_rows < end && a.seq[row + pack.n_rows] == seq) ++pack.n_rows;
  pack.kv_head = slot / a.n_parts;
  pack.head = pack.kv_head * group + part * a.job_heads;
  pack.n_heads = a.job_heads < group - part * a.job_heads ? a.job_heads : group - part * a.job_heads;
  pack.seq_high = 0;
  if (a.shape.causal == 0) {
    int last = row + pack.n_rows - 1;
    const int n_tokens = *a.n_tokens;
    while (last + 1 < n_tokens && a.seq[last + 1] == seq) ++last;
    pack.seq_high = a.pos[last] + 1;
  }
  int unused;
  visible(a.shape, a.pos[row], pack.seq_high, pack.low, unused);
  visible(a.shape, a.pos[row + pack.n_rows - 1], pack.seq_high, unused, pack.high);
  pack.first_tile = pack.low / kTile;
  const int n_tiles = (pack.high + kTile - 1) / kTile - pack.first_tile;
  pack.n_tiles = n_tiles < a.max_tiles ? n_tiles : a.max_tiles;  // never more than the scratch holds
  pack.blocks = a.block_table + seq * a.max_blocks + pack.first_tile;
}

// False: no pack starts at this slot (row of the chunk * kv heads * parts).
STRATA_DEVICE bool open_pack(const AttentionArgs& a, int slot, Pack& pack) {
  const int per_row = a.shape.n_head_kv * a.n_parts, in_chunk = slot / per_row, row = a.first_token + in_chunk;
  const int n_tokens = *a.n_tokens, chunk_end = a.first_token + a.chunk_tokens;
  const int end = n_tokens < chunk_end ? n_tokens : chunk_end;
  if (row >= end) return false;
  if (in_chunk % a.job_rows != 0 && a.seq[row - 1] == a.seq[row]) return false;
  fill_pack(a, row, slot % per_row, end, pack);
  return true;
}

}  // namespace
}  // namespace strata::cuda
