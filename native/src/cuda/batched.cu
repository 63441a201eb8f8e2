// Packed matrices times many tokens (prompts), compiled once for each packed type, STRATA_PACKED.
//
// k_linear_batch: y = W x for up to four matrices on one input. Grid (tiles of 64 rows of all parts, tiles of 64 tokens).
// k_expert_rows_batch: one matrix of the slots, for tasks of up to 64 pairs. Grid (tiles of 64 rows, tasks).
//
// 256 threads, one tile of 64 x 64 outputs (batched.cuh). Bytes moved: a matrix once for every 64 tokens, decoded as often;
// the floor is the larger of bytes / bandwidth and the products' own time. Exact: bits equal the CPU kernels'.
#include "cuda/batched.cuh"
#include "cuda/kernel_args.h"

namespace strata::cuda {
namespace {

using Tile = Batch<STRATA_PACKED>::Room;

}  // namespace

extern "C" __global__ void __launch_bounds__(kBatchThreads, 2) k_linear_batch(const __grid_constant__ LinearArgs args) {
  __shared__ Tile room;
  __shared__ const uint8_t* acts[kTileTokens];
  int p = 0;
  while (p + 1 < args.n_parts && static_cast<int>(blockIdx.x) >= args.part[p + 1].first_block) ++p;
  const LinearPart& part = args.part[p];
  const int first_row = (blockIdx.x - part.first_block) * kTileRows, first_token = blockIdx.y * kTileTokens;
  const int n_tokens = args.n_tokens - first_token < kTileTokens ? args.n_tokens - first_token : kTileTokens;
  if (threadIdx.x < kTileTokens) {
    const int token = static_cast<int>(threadIdx.x) < n_tokens ? threadIdx.x : n_tokens - 1;
    acts[threadIdx.x] = args.acts + (first_token + token) * args.act_stride;
  }
  float y[4][4];
  multiply_tile<STRATA_PACKED>(part.w, args.n_cols, first_row, part.n_rows, acts, n_tokens, room, y);
  const float scale = part.scale != nullptr ? args.factor * *part.scale : args.factor;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = first_row + tile_row(k), token = tile_token(n, k);
      if (row >= part.n_rows || token >= n_tokens) continue;
      float value = scale != 1.0f ? y[n][k] * scale : y[n][k];
      value = finish(value, nullptr, part.bias, row);
      part.y[(first_token + token) * part.y_stride + row] = args.softcap != 0.0f ? m_softcap(value, args.softcap) : value;
    }
  }
}

extern "C" __global__ void __launch_bounds__(kBatchThreads, 2) k_expert_rows_batch(const __grid_constant__ ExpertArgs args) {
  __shared__ Tile room;
  __shared__ const uint8_t* acts[kTileTokens];
  if (args.n_tasks != nullptr && static_cast<int>(blockIdx.y) >= *args.n_tasks) return;
  const ExpertTask task = args.tasks[blockIdx.y];
  const int first_row = blockIdx.x * kTileRows;
  if (threadIdx.x < kTileTokens) {
    const int pair = task.first_pair + (static_cast<int>(threadIdx.x) < task.n_pairs ? threadIdx.x : task.n_pairs - 1);
    acts[threadIdx.x] = args.acts + (args.pair_in != nullptr ? args.pair_in[pair] : pair) * args.act_stride;
  }
  float y[4][4];
  multiply_tile<STRATA_PACKED>(task.slot + args.up.w, args.n_cols, first_row, args.n_rows, acts, task.n_pairs, room, y);
  const auto floats = [&](int64_t at) { return at < 0 ? nullptr : reinterpret_cast<const float*>(task.slot + at); };
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = first_row + tile_row(k), t = tile_token(n, k), pair = task.first_pair + t;
      if (row >= args.n_rows || t >= task.n_pairs) continue;
      const int64_t out_row = args.pair_out != nullptr ? args.pair_out[pair] : pair;
      args.out[out_row * args.out_stride + row] = finish(y[n][k], floats(args.up.scale), floats(args.up.bias), row);
    }
  }
}

}  // namespace strata::cuda
