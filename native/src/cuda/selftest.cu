// Kernels that hold the instructions of prelude.cuh to their meaning; no engine uses them, native/tests does.
#include "base/ieee_math.h"

namespace strata::cuda {

// out[i] = exp, silu, tanh, softplus, sqrt, 1 / x and a product of subnormals for n floats: the compiler's flags as seen
// from the results. Row r of 7 rows, n apart.
extern "C" __global__ void k_test_math(const float* x, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float v = x[i];
  out[i] = m_exp(v);
  out[n + i] = m_silu(v);
  out[2 * n + i] = m_tanh(v);
  out[3 * n + i] = m_softplus(v);
  out[4 * n + i] = v_sqrt(v_abs(v));
  out[5 * n + i] = 1.0f / v;
  out[6 * n + i] = v * 0x1p-126f + v * v;
}

// Reads n quads of 16 bytes: what the card's memory gives to a kernel that does nothing else. out is written if a sum is 1.
extern "C" __global__ void __launch_bounds__(512) k_test_read(const Quad* from, int64_t n, uint32_t* out) {
  uint32_t sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * 512;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * 512 + threadIdx.x; i < n; i += 4 * step) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (i + k * step >= n) break;
      const Quad q = load_quad(from + i + k * step);
      sum += q.x ^ q.y ^ q.z ^ q.w;
    }
  }
  if (sum == 1) *out = sum;
}

// All 65,536 halves to floats and back.
extern "C" __global__ void k_test_half(float* floats, uint16_t* halves) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float x = half_to_float(static_cast<uint16_t>(i));
  floats[i] = x;
  halves[i] = float_to_half(x);
}

// d = a b for int8 a [16][32], b [8][32] (columns), d int32 [16][8]; one warp. The operands come through copy_async.
extern "C" __global__ void __launch_bounds__(32) k_test_mma(const uint8_t* a, const uint8_t* b, int32_t* d) {
  __shared__ alignas(16) uint8_t room[(16 + 8) * 32];
  const int lane = threadIdx.x, g = lane / 4, i = lane % 4;
  copy_async(room + 16 * lane, a + 16 * lane);
  if (lane < 16) copy_async(room + 512 + 16 * lane, b + 16 * lane);
  copy_commit();
  copy_wait<0>();
  __syncwarp();
  const auto word = [&](int row, int column) { return *reinterpret_cast<const uint32_t*>(room + 32 * row + column); };
  const uint32_t fa[4] = {word(g, 4 * i), word(g + 8, 4 * i), word(g, 4 * i + 16), word(g + 8, 4 * i + 16)};
  const uint32_t fb[2] = {word(16 + g, 4 * i), word(16 + g, 4 * i + 16)};
  int32_t fd[4] = {};
  mma_16x8x32(fd, fa, fb);
  d[8 * g + 2 * i] = fd[0];
  d[8 * g + 2 * i + 1] = fd[1];
  d[8 * (g + 8) + 2 * i] = fd[2];
  d[8 * (g + 8) + 2 * i + 1] = fd[3];
}

// Answers every doorbell with its value + 1 until it has answered `last`, or the deadline passes, or abort is not zero; the
// words lie in mapped host memory. words: doorbell, done, abort, 16 words of 8 bytes apart.
extern "C" __global__ void __launch_bounds__(32) k_test_mailbox(uint64_t* words, uint64_t last, uint64_t deadline_ns) {
  if (threadIdx.x != 0) return;
  const uint64_t start = device_time_ns();
  uint64_t seen = 0;
  while (seen < last && device_time_ns() - start < deadline_ns && load_acquire_system(words + 32) == 0) {
    const uint64_t doorbell = load_acquire_system(words);
    if (doorbell == seen) continue;
    seen = doorbell;
    store_release_system(words + 16, seen + 1);
  }
}

}  // namespace strata::cuda
