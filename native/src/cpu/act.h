// Activation rows rounded to int8: where each part of a row lies, and the rounding every tier and CUDA share.
//
// Forms (ActForm): f32 keeps the floats. a32 has one float scale for 32 values, a256 one for 256 values.
// A row of n_cols values is a run of sections, each starting at a multiple of 64 bytes from the row's start:
//
//   f32    float   x[n_cols]
//   a32    int8    q[n_cols]         a32: n_cols is a multiple of 32
//          float   d[n_cols / 32]
//          int32   sum[n_cols / 32]     exact sums of q over each 32 values
//   a256   int8    q[n_cols]         a256: n_cols is a multiple of 256
//          float   d[n_cols / 256]
//          int16   sum16[n_cols / 16]   exact sums of q over each 16 values, |sum16| <= 16 * 127 = 2,032
//          int16   sum32[n_cols / 32]   exact sums of q over each 32 values, |sum32| <= 4,064
//
// Rounding of one scale's values x[0..n):
//   amax = max |x[i]|; d = amax / 127 (float32 division)
//   any x[i] not finite  -> d = the quiet NaN 0x7fc00000, all q = 0: every output that meets the block is NaN
//   d == 0               -> d = +0, all q = 0 (amax is 0, or so small that amax / 127 underflows to 0)
//   otherwise            -> q[i] = round-to-nearest-even(x[i] / d), kept inside [-127, 127]. The clamp acts only where d
//                           is subnormal: there d has lost bits, and amax / d may exceed 127.
// All divisions are float32 divisions, subnormals included: threads run with FTZ and DAZ off.
// Functions here have internal linkage: sources built with different instruction sets must not share one copy.
#pragma once
#include <cstdint>

#include "cpu/kernels.h"

namespace strata::cpu {

static constexpr int64_t align64(int64_t bytes) { return (bytes + 63) & ~int64_t{63}; }

// Byte offsets of the sections behind q (q is at offset 0).
static constexpr int64_t a32_d_offset(int64_t n_cols) { return align64(n_cols); }
static constexpr int64_t a32_sum_offset(int64_t n_cols) { return a32_d_offset(n_cols) + align64(n_cols / 32 * 4); }
static constexpr int64_t a32_row_bytes(int64_t n_cols) { return a32_sum_offset(n_cols) + align64(n_cols / 32 * 4); }

static constexpr int64_t a256_d_offset(int64_t n_cols) { return n_cols; }
static constexpr int64_t a256_sum16_offset(int64_t n_cols) { return a256_d_offset(n_cols) + align64(n_cols / 256 * 4); }
static constexpr int64_t a256_sum32_offset(int64_t n_cols) { return a256_sum16_offset(n_cols) + align64(n_cols / 16 * 2); }
static constexpr int64_t a256_row_bytes(int64_t n_cols) { return a256_sum32_offset(n_cols) + align64(n_cols / 32 * 2); }

// Typed views of one row.
struct A32Row {
  const int8_t* q;
  const float* d;
  const int32_t* sum;
};
struct A256Row {
  const int8_t* q;
  const float* d;
  const int16_t* sum16;
  const int16_t* sum32;
};

static inline A32Row a32_view(const uint8_t* row, int64_t n_cols) {
  return {reinterpret_cast<const int8_t*>(row), reinterpret_cast<const float*>(row + a32_d_offset(n_cols)),
          reinterpret_cast<const int32_t*>(row + a32_sum_offset(n_cols))};
}

static inline A256Row a256_view(const uint8_t* row, int64_t n_cols) {
  return {reinterpret_cast<const int8_t*>(row), reinterpret_cast<const float*>(row + a256_d_offset(n_cols)),
          reinterpret_cast<const int16_t*>(row + a256_sum16_offset(n_cols)),
          reinterpret_cast<const int16_t*>(row + a256_sum32_offset(n_cols))};
}

// Activation row of token t and output row of token t, with the index tables
// honoured.
static inline const uint8_t* act_row(const MatmulArgs& args, int64_t t) {
  return args.acts + (args.act_index != nullptr ? args.act_index[t] : t) * args.act_stride;
}
static inline float* y_row(const MatmulArgs& args, int64_t t) {
  return args.y + (args.y_index != nullptr ? args.y_index[t] : t) * args.y_stride;
}

// Rounds one row of n_cols floats; one function for each tier, the same bits
// from all. x needs no alignment.
using ActQuantFn = void (*)(ActForm form, const float* x, int64_t n_cols, uint8_t* row);
void act_quantize_row_ref(ActForm form, const float* x, int64_t n_cols, uint8_t* row);
void act_quantize_row_avx2(ActForm form, const float* x, int64_t n_cols, uint8_t* row);
void act_quantize_row_avx512(ActForm form, const float* x, int64_t n_cols, uint8_t* row);

}  // namespace strata::cpu
