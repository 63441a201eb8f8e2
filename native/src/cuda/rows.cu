// Matrices in the file's row layout, quantised types (STRATA_ROWS, e.g. Rows256<cpu::DecodeQ5K>): the exact generic path.
//
// k_linear_<tokens>: as linear.cu's, a warp holding 32 / kTeam rows, 4 warps a block. k_expert_rows_<tokens>: one matrix of
// an expert's slot. k_embed: a token's row as floats. Bytes moved: each matrix once; decoding costs more than reading, so
// the floor of bytes / bandwidth is not reached. Exact: bits equal the CPU kernels'.
#include "cuda/kernel_args.h"
#include "cuda/rows.cuh"

namespace strata::cuda {
namespace {

using Rows = STRATA_ROWS;
constexpr int kWarps = 4, kRowsOfWarp = 32 / Rows::kTeam, kRowsOfBlock = kWarps * kRowsOfWarp;

STRATA_DEVICE int row_of_thread(int block) { return block * kRowsOfBlock + static_cast<int>(threadIdx.x) / Rows::kTeam; }

template <int kTokens>
STRATA_DEVICE void linear(const LinearArgs& args) {
  int p = 0;
  while (p + 1 < args.n_parts && static_cast<int>(blockIdx.x) >= args.part[p + 1].first_block) ++p;
  const LinearPart& part = args.part[p];
  const int row = row_of_thread(blockIdx.x - part.first_block), lane = threadIdx.x % Rows::kTeam;
  const int readable = row < part.n_rows ? row : part.n_rows - 1;  // the whole warp takes part in the shuffles
  const int first = blockIdx.y * kTokens;
  const int n_tokens = args.n_tokens - first < kTokens ? args.n_tokens - first : kTokens;
  const uint8_t* acts[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) acts[t] = args.acts + (first + t) * args.act_stride;
  float y[kTokens];
  const uint8_t* w = part.w + readable * (args.n_cols / Rows::kBlock * Rows::kBytes);
  row_times_tokens<Rows, kTokens>(w, args.n_cols, lane, acts, n_tokens, y);
  if (row >= part.n_rows || lane != 0) return;
  const float scale = part.scale != nullptr ? args.factor * *part.scale : args.factor;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= n_tokens) break;
    float value = scale != 1.0f ? y[t] * scale : y[t];
    if (part.bias != nullptr) value = value + part.bias[row];
    part.y[(first + t) * part.y_stride + row] = args.softcap != 0.0f ? m_softcap(value, args.softcap) : value;
  }
}

template <int kTokens>
STRATA_DEVICE void expert_rows(const ExpertArgs& args) {
  if (args.n_tasks != nullptr && static_cast<int>(blockIdx.y) >= *args.n_tasks) return;
  const ExpertTask task = args.tasks[blockIdx.y];
  const int row = row_of_thread(blockIdx.x), lane = threadIdx.x % Rows::kTeam;
  const int readable = row < args.n_rows ? row : args.n_rows - 1;
  const uint8_t* acts[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int pair = task.first_pair + (t < task.n_pairs ? t : 0);
    acts[t] = args.acts + (args.pair_in != nullptr ? args.pair_in[pair] : pair) * args.act_stride;
  }
  float y[kTokens];
  const uint8_t* w = task.slot + args.up.w + readable * (args.n_cols / Rows::kBlock * Rows::kBytes);
  row_times_tokens<Rows, kTokens>(w, args.n_cols, lane, acts, task.n_pairs, y);
  if (row >= args.n_rows || lane != 0) return;
  const auto floats = [&](int64_t offset) { return reinterpret_cast<const float*>(task.slot + offset); };
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= task.n_pairs) break;
    float value = y[t];
    if (args.up.scale >= 0) value = value * *floats(args.up.scale);
    if (args.up.bias >= 0) value = value + floats(args.up.bias)[row];
    const int pair = task.first_pair + t;
    args.out[(args.pair_out != nullptr ? args.pair_out[pair] : pair) * args.out_stride + row] = value;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) k_linear_1(const __grid_constant__ LinearArgs args) { linear<1>(args); }
extern "C" __global__ void __launch_bounds__(128) k_linear_8(const __grid_constant__ LinearArgs args) { linear<8>(args); }
extern "C" __global__ void __launch_bounds__(128) k_expert_rows_1(const __grid_constant__ ExpertArgs args) {
  expert_rows<1>(args);
}
extern "C" __global__ void __launch_bounds__(128) k_expert_rows_8(const __grid_constant__ ExpertArgs args) {
  expert_rows<8>(args);
}

// A thread for each file block. Grid (blocks / 64 rounded up, tokens), 64 threads.
extern "C" __global__ void __launch_bounds__(64) k_embed(const __grid_constant__ EmbedArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 64 + threadIdx.x, n_blocks = args.n_cols / Rows::kBlock;
  if (index >= n_blocks) return;
  float* out = args.out + blockIdx.y * args.out_stride + index * Rows::kBlock;
  Rows::dequantize(args.w + (args.tokens[blockIdx.y] * n_blocks + index) * Rows::kBytes, args.scale, out);
}

}  // namespace strata::cuda
