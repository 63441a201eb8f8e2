// Rows that no matrix meets: COPY, GATHER, SCALE, TEMPERATURE, and expert inputs that carry their router weight.
//
// Grid (elements of a row / 256 rounded up, rows), 256 threads, one element each. Bytes moved: each operand once. Bits: the
// CPU's, of engine/ops_rows.cpp.
#include "base/ieee_math.h"
#include "cuda/gpu_args.h"

namespace strata::cuda {
namespace {

STRATA_DEVICE int element() { return blockIdx.x * 256 + threadIdx.x; }

}  // namespace

extern "C" __global__ void __launch_bounds__(256) k_gpu_copy(const __grid_constant__ CopyArgs args) {
  const int i = element();
  if (i >= args.n_vec * args.width) return;
  const int vec = i / args.width, k = i % args.width;
  args.out[blockIdx.y * args.out_row + vec * args.out_vec + k] = args.x[blockIdx.y * args.x_row + vec * args.x_vec + k];
}

extern "C" __global__ void __launch_bounds__(256) k_gpu_gather(const __grid_constant__ GatherArgs args) {
  const int i = element();
  if (i >= args.width) return;
  args.out[blockIdx.y * args.out_stride + i] = args.x[args.rows[blockIdx.y] * args.x_stride + i];
}

extern "C" __global__ void __launch_bounds__(256) k_gpu_scale(const __grid_constant__ ScaleArgs args) {
  const int i = element();
  if (i >= args.width) return;
  float* x = args.x + blockIdx.y * args.stride + i;
  *x = *x * *args.factor;
}

// The factor is computed in double and rounded to float32 once.
extern "C" __global__ void __launch_bounds__(256) k_gpu_temperature(const __grid_constant__ TemperatureArgs args) {
  const int i = element();
  if (i >= args.width) return;
  const auto steps = static_cast<double>((args.pos[blockIdx.y] + args.offset) / args.length);
  const auto factor = static_cast<float>(1.0 + static_cast<double>(args.scale) * m_log_double(1.0 + steps));
  float* x = args.x + blockIdx.y * args.stride + i;
  *x = *x * factor;
}

extern "C" __global__ void __launch_bounds__(256) k_gpu_weigh(const __grid_constant__ WeighArgs args) {
  const int i = element();
  if (i >= args.width) return;
  const int64_t pair = static_cast<int64_t>(args.first_pair) + blockIdx.y, token = pair / args.n_used;
  const auto* weights = reinterpret_cast<const float*>(args.selection + token * args.selection_stride + args.n_used);
  args.out[pair * args.width + i] = args.x[token * args.x_stride + i] * weights[pair % args.n_used];
}

}  // namespace strata::cuda
