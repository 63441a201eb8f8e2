// Matrices of F32, F16 and BF16 rows (STRATA_FLOAT_TYPE, GGML type number) times float32 rows, in the order of dot16: 16
// strided fma lanes, then a tree. The router's matrix too.
//
// k_linear_8: as linear.cu's, for 1 to 8 tokens; two rows a block of 128 threads. All threads bring a chunk of both rows
// into shared memory (every load in flight at once), then a half-warp for each (row, token) walks it: the fma chain of
// n_cols / 16 steps is the contract's, so short rows are bound by its latency, long matrices by bytes / bandwidth.
// k_expert_rows_8: one matrix of an expert's slot. k_embed: a token's row.
#include "base/ieee_math.h"
#include "cuda/kernel_args.h"
#include "cuda/layout.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128, kRows = 2, kChunk = 2048, kHalfWarps = kThreads / 16, kPairs = kRows * kMaxTokens / kHalfWarps;
constexpr int kBytes = STRATA_FLOAT_TYPE == 0 ? 4 : 2;

STRATA_DEVICE float weight(const uint8_t* row, int64_t i) {
  if constexpr (STRATA_FLOAT_TYPE == 0) return reinterpret_cast<const float*>(row)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[i];
  return STRATA_FLOAT_TYPE == 1 ? half_to_float(bits) : bf16_to_float(bits);
}

// acc[i]: the lane of this thread for pair i: row = pair % kRows, token = pair / kRows, pair = half-warp + kHalfWarps * i.
STRATA_DEVICE void multiply(const uint8_t* w, int64_t n_cols, int first_row, int n_rows,
                            const uint8_t* const (&acts)[kPairs], float (&staged)[kRows][kChunk], float (&acc)[kPairs]) {
  const int lane = threadIdx.x % 16, half_warp = threadIdx.x / 16;
  for (int i = 0; i < kPairs; ++i) acc[i] = 0.0f;
  for (int64_t begin = 0; begin < n_cols; begin += kChunk) {
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* row = w + static_cast<int64_t>(first_row + r < n_rows ? first_row + r : n_rows - 1) * n_cols * kBytes;
#pragma unroll
      for (int k = 0; k < kChunk / kThreads; ++k) {
        const int64_t c = begin + k * kThreads + threadIdx.x;
        staged[r][k * kThreads + threadIdx.x] = c < n_cols ? weight(row, c) : 0.0f;
      }
    }
    __syncthreads();
    const int64_t left = n_cols - begin;
    const int n_steps = static_cast<int>((left < kChunk ? left : kChunk) + 15) / 16;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (acts[i] == nullptr) continue;
      const float* x = reinterpret_cast<const float*>(acts[i]) + begin;
      const float* row = staged[(half_warp + kHalfWarps * i) % kRows];
#pragma unroll 8
      for (int s = 0; s < n_steps; ++s) {
        const int c = 16 * s + lane;
        acc[i] = v_fma(row[c], c < left ? x[c] : 0.0f, acc[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2) acc[i] = acc[i] + __shfl_xor_sync(0xffffffffu, acc[i], step);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) k_linear_8(const __grid_constant__ LinearArgs args) {
  __shared__ float staged[kRows][kChunk];
  int p = 0;
  while (p + 1 < args.n_parts && static_cast<int>(blockIdx.x) >= args.part[p + 1].first_block) ++p;
  const LinearPart& part = args.part[p];
  const int first_row = (blockIdx.x - part.first_block) * kRows, half_warp = threadIdx.x / 16;
  const uint8_t* acts[kPairs];
  float acc[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int token = (half_warp + kHalfWarps * i) / kRows;
    acts[i] = token < args.n_tokens ? args.acts + token * args.act_stride : nullptr;
  }
  multiply(part.w, args.n_cols, first_row, part.n_rows, acts, staged, acc);
  if (threadIdx.x % 16 != 0) return;
  const float scale = part.scale != nullptr ? args.factor * *part.scale : args.factor;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int pair = half_warp + kHalfWarps * i, row = first_row + pair % kRows, token = pair / kRows;
    if (token >= args.n_tokens || row >= part.n_rows) continue;
    float y = scale != 1.0f ? acc[i] * scale : acc[i];
    if (part.bias != nullptr) y = y + part.bias[row];
    part.y[token * part.y_stride + row] = args.softcap != 0.0f ? m_softcap(y, args.softcap) : y;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) k_expert_rows_8(const __grid_constant__ ExpertArgs args) {
  __shared__ float staged[kRows][kChunk];
  if (args.n_tasks != nullptr && static_cast<int>(blockIdx.y) >= *args.n_tasks) return;
  const ExpertTask task = args.tasks[blockIdx.y];
  const int first_row = blockIdx.x * kRows, half_warp = threadIdx.x / 16;
  const uint8_t* acts[kPairs];
  float acc[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int t = (half_warp + kHalfWarps * i) / kRows, pair = task.first_pair + t;
    acts[i] = nullptr;
    if (t < task.n_pairs) acts[i] = args.acts + (args.pair_in != nullptr ? args.pair_in[pair] : pair) * args.act_stride;
  }
  multiply(task.slot + args.up.w, args.n_cols, first_row, args.n_rows, acts, staged, acc);
  if (threadIdx.x % 16 != 0) return;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int at = half_warp + kHalfWarps * i, row = first_row + at % kRows, pair = task.first_pair + at / kRows;
    if (at / kRows >= task.n_pairs || row >= args.n_rows) continue;
    float y = acc[i];
    if (args.up.scale >= 0) y = y * *reinterpret_cast<const float*>(task.slot + args.up.scale);
    if (args.up.bias >= 0) y = y + reinterpret_cast<const float*>(task.slot + args.up.bias)[row];
    args.out[(args.pair_out != nullptr ? args.pair_out[pair] : pair) * args.out_stride + row] = y;
  }
}

// Grid (n_cols / 256 rounded up, tokens), 256 threads.
extern "C" __global__ void __launch_bounds__(256) k_embed(const __grid_constant__ EmbedArgs args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (k >= args.n_cols) return;
  const float value = weight(args.w + args.tokens[blockIdx.y] * args.n_cols * kBytes, k);
  args.out[blockIdx.y * args.out_stride + k] = args.scale != 1.0f ? value * args.scale : value;
}

}  // namespace strata::cuda
