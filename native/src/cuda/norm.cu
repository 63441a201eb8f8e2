// k_norm: RMS, layer and L2 norms of vectors, sums in 256 strided lanes and a tree (docs/numerics.md, section 4).
//
// Grid (vectors, rows), 256 threads: thread i is lane i of the sum. Bytes moved: x twice (three times for the layer norm,
// from the cache), out once.
#include "base/ieee_math.h"
#include "cuda/kernel_args.h"
#include "strata.h"

namespace strata::cuda {
namespace {

// Lanes i and i + 128 are added, then 64, ... 1 apart; every thread gets the sum.
STRATA_DEVICE float tree256(float lane, float (&room)[256]) {
  const int i = threadIdx.x;
  __syncthreads();  // the last call's result has been read
  room[i] = lane;
  __syncthreads();
  if (i < 128) room[i] = room[i] + room[i + 128];
  __syncthreads();
  if (i < 64) room[i] = room[i] + room[i + 64];
  __syncthreads();
  if (i < 32) {
    float sum = room[i] + room[i + 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, step);
    if (i == 0) room[0] = sum;
  }
  __syncthreads();
  return room[0];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) k_norm(const __grid_constant__ NormArgs args) {
  __shared__ float room[256];
  const int64_t vec = blockIdx.x, row = blockIdx.y;
  const float* x = args.x + row * args.x_row + vec * args.x_vec;
  float* out = args.out + row * args.out_row + vec * args.out_vec;
  const float* gain = args.gain != nullptr ? args.gain + vec * args.gain_stride : nullptr;
  const float* bias = args.bias != nullptr ? args.bias + vec * args.gain_stride : nullptr;
  const auto width = static_cast<float>(args.width);
  float mean = 0.0f;
  if (args.kind == STRATA_NORM_LAYER) {
    float lane = 0.0f;
    for (int i = threadIdx.x; i < args.width; i += 256) lane = lane + x[i];
    mean = tree256(lane, room) / width;
  }
  const auto centred = [&](int i) { return args.kind == STRATA_NORM_LAYER ? x[i] - mean : x[i]; };
  float lane = 0.0f;
  for (int i = threadIdx.x; i < args.width; i += 256) lane = v_fma(centred(i), centred(i), lane);
  const float squares = tree256(lane, room);
  const float r = 1.0f / v_sqrt((args.kind == STRATA_NORM_L2 ? squares : squares / width) + args.eps);
  for (int i = threadIdx.x; i < args.width; i += 256) {
    float y = centred(i) * r;
    if (gain != nullptr) y = y * gain[i];
    out[i] = bias != nullptr ? y + bias[i] : y;
  }
}

}  // namespace strata::cuda
