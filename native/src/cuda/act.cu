// Rounding of activation rows to int8 with one float scale per 32 (A32) or 256 (A256) values; act.h has the rules.
//
// x float32 rows -> rows of act.h's sections; A32 rows get the pairs section too (layout.h). One warp for each scale:
// blocks of 8 warps, grid (scales / 8, rows). Bytes moved: 4 read and about 2 written a value.
#include "base/ieee_math.h"
#include "cuda/kernel_args.h"
#include "cuda/layout.h"

namespace strata::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;

// The scale of a unit whose largest |x| has these bits, and what a code is then. Integer order of the bits of |x| is the
// order of the magnitudes, infinity and NaN on top.
struct Scale {
  float d;
  bool zeros;

  __device__ __forceinline__ explicit Scale(int32_t amax_bits) {
    const bool finite = amax_bits < 0x7f800000;
    d = finite ? v_from_bits(amax_bits) / 127.0f : v_from_bits(0x7fc00000);
    zeros = !finite || d == 0.0f;
  }
  __device__ __forceinline__ int32_t code(float x) const {
    return zeros ? 0 : static_cast<int32_t>(m_round_even(m_clamp(x / d, -127.0f, 127.0f)));
  }
};
STRATA_DEVICE int32_t largest(int32_t bits) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const int32_t other = __shfl_xor_sync(kAll, bits, step);
    bits = other > bits ? other : bits;
  }
  return bits;
}
// Sum over the n lanes of an aligned run.
template <int n>
STRATA_DEVICE int32_t sum_lanes(int32_t value) {
#pragma unroll
  for (int step = 1; step < n; step *= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) k_act_a32(const __grid_constant__ ActArgs args) {
  const int lane = threadIdx.x & 31, unit = blockIdx.x * 8 + threadIdx.x / 32, row = blockIdx.y;
  if (unit >= args.n_cols / 32 || (args.n_rows != nullptr && row >= *args.n_rows)) return;
  const float x = args.x[row * args.x_stride + 32 * unit + lane];
  const Scale scale(largest(v_bits(x) & 0x7fffffff));
  const int32_t code = scale.code(x), sum = sum_lanes<32>(code);
  uint8_t* out = args.acts + row * args.act_stride;
  out[32 * unit + lane] = static_cast<uint8_t>(code);
  out[a32_pairs_offset(args.n_cols) + 32 * unit + (lane < 16 ? 2 * lane : 2 * lane - 31)] = static_cast<uint8_t>(code);
  if (lane != 0) return;
  reinterpret_cast<float*>(out + a32_d_offset(args.n_cols))[unit] = scale.d;
  reinterpret_cast<int32_t*>(out + a32_sum_offset(args.n_cols))[unit] = sum;
}

// A lane has eight values side by side.
extern "C" __global__ void __launch_bounds__(256) k_act_a256(const __grid_constant__ ActArgs args) {
  const int lane = threadIdx.x & 31, unit = blockIdx.x * 8 + threadIdx.x / 32, row = blockIdx.y;
  if (unit >= args.n_cols / 256 || (args.n_rows != nullptr && row >= *args.n_rows)) return;
  const float* x = args.x + row * args.x_stride + 256 * unit + 8 * lane;
  float value[8];
  int32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    value[i] = x[i];
    const int32_t magnitude = v_bits(value[i]) & 0x7fffffff;
    bits = magnitude > bits ? magnitude : bits;
  }
  const Scale scale(largest(bits));
  uint8_t* out = args.acts + row * args.act_stride;
  int32_t sum = 0;
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int32_t code = scale.code(value[i]);
    sum += code;
    words[i / 4] |= (static_cast<uint32_t>(code) & 255u) << (8 * (i % 4));
  }
  auto* q = reinterpret_cast<uint32_t*>(out + 256 * unit + 8 * lane);
  q[0] = words[0];
  q[1] = words[1];
  const int32_t sum16 = sum_lanes<2>(sum), sum32 = sum_lanes<4>(sum);
  if (lane % 2 == 0)
    reinterpret_cast<int16_t*>(out + a256_sum16_offset(args.n_cols))[16 * unit + lane / 2] = static_cast<int16_t>(sum16);
  if (lane % 4 == 0)
    reinterpret_cast<int16_t*>(out + a256_sum32_offset(args.n_cols))[8 * unit + lane / 4] = static_cast<int16_t>(sum32);
  if (lane == 0) reinterpret_cast<float*>(out + a256_d_offset(args.n_cols))[unit] = scale.d;
}

}  // namespace strata::cuda
