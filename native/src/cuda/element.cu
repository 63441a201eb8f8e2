// Ops of single elements: k_glu, k_add, k_mul, k_clamp, and k_combine, the weighted sum of expert rows in router order.
//
// Grid (width / 256 rounded up, rows), 256 threads, one element each. Bytes moved: each operand once.
#include "base/ieee_math.h"
#include "cuda/glu.cuh"
#include "cuda/kernel_args.h"

namespace strata::cuda {
namespace {

STRATA_DEVICE int element() { return blockIdx.x * 256 + threadIdx.x; }

STRATA_DEVICE float activated(int32_t act, float x) {
  switch (act) {
    case STRATA_ACT_SIGMOID:
      return m_sigmoid(x);
    case STRATA_ACT_SILU:
      return m_silu(x);
    case STRATA_ACT_SOFTPLUS:
      return m_softplus(x);
    default:
      return x;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) k_glu(const __grid_constant__ ElementArgs args) {
  const int i = element();
  if (i >= args.width) return;
  const float gate = args.x != nullptr ? args.x[blockIdx.y * args.x_stride + i] : 0.0f;
  args.out[blockIdx.y * args.out_stride + i] = glu(args.kind, gate, args.y[blockIdx.y * args.y_stride + i], args.a, args.b);
}

// a * x + b * y, each operation rounded alone; a product by 1 changes no bit.
extern "C" __global__ void __launch_bounds__(256) k_add(const __grid_constant__ ElementArgs args) {
  const int i = element();
  if (i >= args.width) return;
  const float x = args.x[blockIdx.y * args.x_stride + i];
  float sum = args.a * x;
  if (args.y != nullptr) sum = sum + args.b * args.y[blockIdx.y * args.y_stride + i];
  args.out[blockIdx.y * args.out_stride + i] = sum;
}

extern "C" __global__ void __launch_bounds__(256) k_mul(const __grid_constant__ ElementArgs args) {
  const int i = element();
  if (i >= args.width) return;
  const int factor = args.n_vec == 0 ? i : i / (args.width / args.n_vec);
  const float y = activated(args.kind, args.y[blockIdx.y * args.y_stride + factor]);
  args.out[blockIdx.y * args.out_stride + i] = args.x[blockIdx.y * args.x_stride + i] * y;
}

extern "C" __global__ void __launch_bounds__(256) k_clamp(const __grid_constant__ ElementArgs args) {
  const int i = element();
  if (i >= args.width) return;
  args.out[blockIdx.y * args.out_stride + i] = m_clamp(args.x[blockIdx.y * args.x_stride + i], -args.a, args.a);
}

extern "C" __global__ void __launch_bounds__(256) k_combine(const __grid_constant__ CombineArgs args) {
  const int i = element();
  if (i >= args.width) return;
  const int64_t row = blockIdx.y;
  const float* y = args.y + row * args.y_stride + i;
  const auto* weights = reinterpret_cast<const float*>(args.selection + row * args.selection_stride + args.n_used);
  float acc = 0.0f;
  for (int k = 0; k < args.n_used; ++k) {
    acc = v_fma(args.unit_weights != 0 ? 1.0f : weights[k], y[static_cast<int64_t>(k) * args.width], acc);
  }
  if (args.shared != nullptr) {
    const float shared = args.shared[row * args.shared_stride + i];
    acc = acc + (args.shared_gate != nullptr ? m_sigmoid(args.shared_gate[row * args.gate_stride]) * shared : shared);
  }
  args.out[row * args.out_stride + i] = acc;
}

}  // namespace strata::cuda
