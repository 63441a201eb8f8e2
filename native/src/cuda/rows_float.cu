// Matrices of F32, F16 and BF16 rows (STRATA_FLOAT_TYPE, GGML type number) times float32 rows, in the order of dot16: 16
// strided fma lanes, then a tree. The router's matrix too.
//
// k_linear_<tokens>: as linear.cu's, for 1 or up to 8 tokens; four rows a block of 128 threads. All threads bring a chunk of
// rows and activations into shared memory (every load under way at once), then a half-warp for each (row, token) walks it:
// the fma chain of n_cols / 16 steps is the contract's, so short rows are bound by its latency, long matrices by bytes /
// bandwidth. k_expert_rows_<tokens>: one matrix of an expert's slot. k_embed: a token's row.
#include "base/ieee_math.h"
#include "cuda/kernel_args.h"
#include "cuda/layout.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128, kRows = 4, kHalfWarps = kThreads / 16;
constexpr int kBytes = STRATA_FLOAT_TYPE == 0 ? 4 : 2;

STRATA_DEVICE float weight(const uint8_t* row, int64_t i) {
  if constexpr (STRATA_FLOAT_TYPE == 0) return load_float(row + 4 * i);
  const uint16_t bits = load_half_word(row + 2 * i);
  return STRATA_FLOAT_TYPE == 1 ? half_to_float(bits) : bf16_to_float(bits);
}

// A chunk of the rows and of the tokens' activations, as floats.
template <int kTokens>
struct Staged {
  static constexpr int kChunk = kTokens == 1 ? 2048 : 512;
  static constexpr int kPairs = (kRows * kTokens + kHalfWarps - 1) / kHalfWarps;  // of one half-warp
  float w[kRows][kChunk + 16], x[kTokens][kChunk];  // the two rows of a warp use different banks
};

template <int kTokens>
STRATA_DEVICE void stage(const uint8_t* w, int64_t n_cols, int64_t begin, int first_row, int n_rows,
                         const uint8_t* const (&acts)[kTokens], Staged<kTokens>& staged) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const uint8_t* row = w + static_cast<int64_t>(first_row + r < n_rows ? first_row + r : n_rows - 1) * n_cols * kBytes;
#pragma unroll
    for (int i = 0; i < Staged<kTokens>::kChunk / kThreads; ++i) {
      const int k = kThreads * i + threadIdx.x;
      staged.w[r][k] = begin + k < n_cols ? weight(row, begin + k) : 0.0f;
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const auto* x = reinterpret_cast<const float*>(acts[t]);
#pragma unroll
    for (int i = 0; i < Staged<kTokens>::kChunk / kThreads; ++i) {
      const int k = kThreads * i + threadIdx.x;
      staged.x[t][k] = x != nullptr && begin + k < n_cols ? load_float(x + begin + k) : 0.0f;
    }
  }
}

// acc[i]: product of pair i of this half-warp: row = pair % kRows, token = pair / kRows, pair = half-warp + kHalfWarps * i.
// Zeros behind the end are the contract's padding: the missing lanes take fma(0, 0, lane). acts of absent tokens are null.
template <int kTokens>
STRATA_DEVICE void multiply(const uint8_t* w, int64_t n_cols, int first_row, int n_rows,
                            const uint8_t* const (&acts)[kTokens], Staged<kTokens>& staged,
                            float (&acc)[Staged<kTokens>::kPairs]) {
  constexpr int kChunk = Staged<kTokens>::kChunk, kPairs = Staged<kTokens>::kPairs;
  const int lane = threadIdx.x % 16, half_warp = threadIdx.x / 16;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) acc[i] = 0.0f;
  for (int64_t begin = 0; begin < n_cols; begin += kChunk) {
    __syncthreads();
    stage<kTokens>(w, n_cols, begin, first_row, n_rows, acts, staged);
    __syncthreads();
    const int64_t left = n_cols - begin;
    const int n_steps = static_cast<int>((left < kChunk ? left : kChunk) + 15) / 16;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = half_warp + kHalfWarps * i;
      if (pair >= kRows * kTokens) continue;
      const float *row = staged.w[pair % kRows], *x = staged.x[pair / kRows];
#pragma unroll 8
      for (int s = 0; s < n_steps; ++s) acc[i] = v_fma(row[16 * s + lane], x[16 * s + lane], acc[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2) acc[i] = acc[i] + __shfl_xor_sync(0xffffffffu, acc[i], step);
  }
}

template <int kTokens>
STRATA_DEVICE void linear(const LinearArgs& args) {
  __shared__ Staged<kTokens> staged;
  int p = 0;
  while (p + 1 < args.n_parts && static_cast<int>(blockIdx.x) >= args.part[p + 1].first_block) ++p;
  const LinearPart& part = args.part[p];
  const int first_row = (blockIdx.x - part.first_block) * kRows, half_warp = threadIdx.x / 16;
  const int first = blockIdx.y * kTokens, n_tokens = args.n_tokens - first;
  const uint8_t* acts[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) acts[t] = t < n_tokens ? args.acts + (first + t) * args.act_stride : nullptr;
  float acc[Staged<kTokens>::kPairs];
  multiply<kTokens>(part.w, args.n_cols, first_row, part.n_rows, acts, staged, acc);
  if (threadIdx.x % 16 != 0) return;
  const float scale = part.scale != nullptr ? args.factor * *part.scale : args.factor;
#pragma unroll
  for (int i = 0; i < Staged<kTokens>::kPairs; ++i) {
    const int pair = half_warp + kHalfWarps * i, row = first_row + pair % kRows, token = pair / kRows;
    if (token >= n_tokens || row >= part.n_rows) continue;
    float y = scale != 1.0f ? acc[i] * scale : acc[i];
    if (part.bias != nullptr) y = y + part.bias[row];
    part.y[(first + token) * part.y_stride + row] = args.softcap != 0.0f ? m_softcap(y, args.softcap) : y;
  }
}

template <int kTokens>
STRATA_DEVICE void expert_rows(const ExpertArgs& args) {
  __shared__ Staged<kTokens> staged;
  if (args.n_tasks != nullptr && static_cast<int>(blockIdx.y) >= *args.n_tasks) return;
  const ExpertTask task = args.tasks[blockIdx.y];
  const int first_row = blockIdx.x * kRows, half_warp = threadIdx.x / 16;
  const uint8_t* acts[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int pair = task.first_pair + t;
    acts[t] = nullptr;
    if (t < task.n_pairs) acts[t] = args.acts + (args.pair_in != nullptr ? args.pair_in[pair] : pair) * args.act_stride;
  }
  float acc[Staged<kTokens>::kPairs];
  multiply<kTokens>(task.slot + args.up.w, args.n_cols, first_row, args.n_rows, acts, staged, acc);
  if (threadIdx.x % 16 != 0) return;
#pragma unroll
  for (int i = 0; i < Staged<kTokens>::kPairs; ++i) {
    const int at = half_warp + kHalfWarps * i, row = first_row + at % kRows, pair = task.first_pair + at / kRows;
    if (at / kRows >= task.n_pairs || row >= args.n_rows) continue;
    float y = acc[i];
    if (args.up.scale >= 0) y = y * *reinterpret_cast<const float*>(task.slot + args.up.scale);
    if (args.up.bias >= 0) y = y + reinterpret_cast<const float*>(task.slot + args.up.bias)[row];
    args.out[(args.pair_out != nullptr ? args.pair_out[pair] : pair) * args.out_stride + row] = y;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) k_linear_1(const __grid_constant__ LinearArgs args) {
  linear<1>(args);
}
extern "C" __global__ void __launch_bounds__(kThreads) k_linear_8(const __grid_constant__ LinearArgs args) {
  linear<8>(args);
}
extern "C" __global__ void __launch_bounds__(kThreads) k_expert_rows_1(const __grid_constant__ ExpertArgs args) {
  expert_rows<1>(args);
}
extern "C" __global__ void __launch_bounds__(kThreads) k_expert_rows_8(const __grid_constant__ ExpertArgs args) {
  expert_rows<8>(args);
}

// Grid (n_cols / 256 rounded up, tokens), 256 threads.
extern "C" __global__ void __launch_bounds__(256) k_embed(const __grid_constant__ EmbedArgs args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (k >= args.n_cols) return;
  const float value = weight(args.w + args.tokens[blockIdx.y] * args.n_cols * kBytes, k);
  args.out[blockIdx.y * args.out_stride + k] = args.scale != 1.0f ? value * args.scale : value;
}

}  // namespace strata::cuda
