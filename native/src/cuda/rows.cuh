// File rows of any quantised type times up to 8 activation rows: the exact generic path, for types without a packed layout.
//
// A team of lanes inside a warp has one row: 32 lanes for blocks of 32, 8 lanes for super-blocks. A lane decodes one file
// block and forms its units' exact int32 sums; then the sums go round by shuffles, so that lane j mod 4 walks the units
// j, j + 4, ... in ascending order into accumulator a[j mod 4] (contract C1). Lanes beyond the fourth repeat the work of
// the first four.
#pragma once
#include "base/ieee_math.h"
#include "cpu/decode_256.h"
#include "cpu/decode_32.h"
#include "cuda/layout.h"

namespace strata::cuda {

// Decoded codes (local) times activation codes (global).
STRATA_DEVICE int32_t dot_int8(const int8_t* a, const int8_t* b, int n) {
  int32_t sum = 0;
  for (int i = 0; i < n; i += 4) sum = dot4(*reinterpret_cast<const uint32_t*>(a + i), load_word(b + i), sum);
  return sum;
}

// Blocks of 32, and NVFP4's 64 in four units of 16.
template <class D>
struct Rows32 {
  static constexpr int kType = D::kType, kTeam = 32, kUnits = D::kValues / D::kUnit, kBlock = D::kValues, kBytes = D::kBytes;
  static constexpr bool kHasMin = D::kHasMin;
  struct Block {
    alignas(16) int8_t q[D::kValues];
    float d[kUnits], m[kUnits];
  };
  STRATA_DEVICE int64_t d_offset(int64_t n_cols) { return a32_d_offset(n_cols); }
  // Units that share one activation scale.
  static constexpr int kUnitsPerScale = 32 / D::kUnit;

  STRATA_DEVICE void decode(const uint8_t* block, Block& out) {
    int16_t q[D::kValues];
    D::decode(block, q, out.d, out.m);
#pragma unroll
    for (int i = 0; i < D::kValues; ++i) out.q[i] = static_cast<int8_t>(q[i]);
  }
  STRATA_DEVICE void sums(const Block& block, const uint8_t* act, int64_t n_cols, int index, int32_t (&isum)[kUnits],
                          int32_t (&msum)[kUnits]) {
    const auto* x = reinterpret_cast<const int8_t*>(act) + static_cast<int64_t>(index) * D::kValues;
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      isum[k] = dot_int8(block.q + k * D::kUnit, x + k * D::kUnit, D::kUnit);
      msum[k] = kHasMin ? reinterpret_cast<const int32_t*>(act + a32_sum_offset(n_cols))[index] : 0;
    }
  }
  STRATA_DEVICE void dequantize(const uint8_t* bytes, float scale, float* out) {
    Block block;
    decode(bytes, block);
    for (int i = 0; i < D::kValues; ++i) {
      const float product = block.d[i / D::kUnit] * static_cast<float>(block.q[i]);
      const float value = kHasMin ? product + block.m[i / D::kUnit] : product;
      out[i] = scale != 1.0f ? value * scale : value;
    }
  }
};

// Super-blocks. The minimum is subtracted: its factor is -dmin.
template <class D>
struct Rows256 {
  static constexpr int kType = D::kType, kTeam = 8, kUnits = 1, kBlock = 256, kBytes = D::kBytes, kUnitsPerScale = 1;
  static constexpr bool kHasMin = D::kHasMin;
  struct Block {
    cpu::SuperBlock super;
    float d[1], m[1];
  };
  STRATA_DEVICE int64_t d_offset(int64_t n_cols) { return a256_d_offset(n_cols); }
  // A call: the block's bytes are in local memory anyway, and five kernels would hold a copy of the decoder each.
  static __device__ __noinline__ void decode(const uint8_t* block, Block& out) {
    D::decode(block, out.super);
    out.d[0] = out.super.d;
    out.m[0] = kHasMin ? -out.super.dmin : 0.0f;
  }
  static __device__ __noinline__ void sums(const Block& block, const uint8_t* act, int64_t n_cols, int index,
                                           int32_t (&isum)[1], int32_t (&msum)[1]) {
    const auto* x = reinterpret_cast<const int8_t*>(act) + static_cast<int64_t>(index) * 256;
    const auto* sum16 = reinterpret_cast<const int16_t*>(act + a256_sum16_offset(n_cols)) + 16 * index;
    isum[0] = msum[0] = 0;
#pragma unroll 4
    for (int g = 0; g < 16; ++g) {
      isum[0] += block.super.scale[g] * dot_int8(block.super.q + 16 * g, x + 16 * g, 16);
      if (kHasMin) msum[0] += block.super.minimum[g] * sum16[g];
    }
  }
  STRATA_DEVICE void dequantize(const uint8_t* bytes, float scale, float* out) {
    Block decoded;
    decode(bytes, decoded);
    const cpu::SuperBlock& block = decoded.super;
    for (int i = 0; i < 256; ++i) {
      const float product = (block.d * static_cast<float>(block.scale[i / 16])) * static_cast<float>(block.q[i]);
      const float value = kHasMin ? product - block.dmin * static_cast<float>(block.minimum[i / 16]) : product;
      out[i] = scale != 1.0f ? value * scale : value;
    }
  }
};

// y of one row for up to kTokens tokens; every lane of the team gets it. `lane` counts inside the team; all 32 lanes of
// the warp call together.
template <class R, int kTokens>
STRATA_DEVICE void row_times_tokens(const uint8_t* row, int64_t n_cols, int lane, const uint8_t* const (&acts)[kTokens],
                                    int n_tokens, float (&y)[kTokens]) {
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kTeam = R::kTeam, kUnits = R::kUnits;
  const int n_blocks = static_cast<int>(n_cols / R::kBlock);
  float acc[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) acc[t] = 0.0f;
  for (int first = 0; first < n_blocks; first += kTeam) {
    typename R::Block block;
    const int index = first + lane;
    if (index < n_blocks) R::decode(row + static_cast<int64_t>(index) * R::kBytes, block);
    const int n_units = (n_blocks - first < kTeam ? n_blocks - first : kTeam) * kUnits;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      int32_t isum[kUnits] = {}, msum[kUnits] = {};
      float s[kUnits] = {}, m[kUnits] = {};
      if (t < n_tokens && index < n_blocks) {
        R::sums(block, acts[t], n_cols, index, isum, msum);
        const auto* dx = reinterpret_cast<const float*>(acts[t] + R::d_offset(n_cols));
#pragma unroll
        for (int k = 0; k < kUnits; ++k) {
          const float scale = dx[(index * kUnits + k) / R::kUnitsPerScale];
          s[k] = block.d[k] * scale;
          m[k] = R::kHasMin ? block.m[k] * scale : 0.0f;
        }
      }
      // Unit u of this round is unit u % kUnits of lane u / kUnits. With four units a block, chain j takes unit j of each.
#pragma unroll 2
      for (int u = lane & 3; u < kTeam * kUnits; u += 4) {
        const int from = u / kUnits;
        float unit_sum = static_cast<float>(__shfl_sync(kAll, isum[0], from, kTeam));
        float unit_scale = __shfl_sync(kAll, s[0], from, kTeam);
#pragma unroll
        for (int k = 1; k < kUnits; ++k) {
          const float other = static_cast<float>(__shfl_sync(kAll, isum[k], from, kTeam));
          const float other_scale = __shfl_sync(kAll, s[k], from, kTeam);
          if ((u & (kUnits - 1)) == k) unit_sum = other, unit_scale = other_scale;
        }
        if (u < n_units) acc[t] = v_fma(unit_sum, unit_scale, acc[t]);
        if constexpr (R::kHasMin) {
          const float minimum = static_cast<float>(__shfl_sync(kAll, msum[0], from, kTeam));
          const float factor = __shfl_sync(kAll, m[0], from, kTeam);
          if (u < n_units) acc[t] = v_fma(minimum, factor, acc[t]);
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float a0 = __shfl_sync(kAll, acc[t], 0, kTeam), a1 = __shfl_sync(kAll, acc[t], 1, kTeam);
    const float a2 = __shfl_sync(kAll, acc[t], 2, kTeam), a3 = __shfl_sync(kAll, acc[t], 3, kTeam);
    y[t] = (a0 + a2) + (a1 + a3);
  }
}

}  // namespace strata::cuda
