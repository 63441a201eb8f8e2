// Rotary positions. k_rope_table: angles in double, sine and cosine rounded once; grid (pairs / 128 rounded up, tokens),
// 128 threads, once a step. k_rope: rotates head vectors in place; grid (heads, rows), 128 threads.
#include "base/ieee_math.h"
#include "cuda/kernel_args.h"
#include "strata.h"

namespace strata::cuda {

extern "C" __global__ void __launch_bounds__(128) k_rope_table(const __grid_constant__ RopeTableArgs args) {
  const int p = blockIdx.x * 128 + threadIdx.x, half = args.n_rot / 2;
  if (p >= half) return;
  double angle = static_cast<double>(args.pos[blockIdx.y]) * args.freqs[p];
  if (args.factors != nullptr) angle = angle / static_cast<double>(args.factors[p]);
  double sine, cosine;
  m_sincos(angle, sine, cosine);
  float* row = args.table + static_cast<int64_t>(blockIdx.y) * args.n_rot;
  row[p] = static_cast<float>(cosine * static_cast<double>(args.magnitude));
  row[half + p] = static_cast<float>(sine * static_cast<double>(args.magnitude));
}

extern "C" __global__ void __launch_bounds__(128) k_rope(const __grid_constant__ RopeArgs args) {
  const int half = args.n_rot / 2;
  float* x = args.x + blockIdx.y * args.x_row + blockIdx.x * args.x_head;
  const float* cosines = args.table + static_cast<int64_t>(blockIdx.y) * args.n_rot;
  for (int p = threadIdx.x; p < half; p += 128) {
    const int first = args.style == STRATA_ROPE_NORM ? 2 * p : p;
    const int second = args.style == STRATA_ROPE_NORM ? 2 * p + 1 : p + half;
    const float a = x[first], b = x[second], c = cosines[p], s = cosines[half + p];
    x[first] = v_fma(a, c, -(b * s));
    x[second] = v_fma(a, s, b * c);
  }
}

}  // namespace strata::cuda
