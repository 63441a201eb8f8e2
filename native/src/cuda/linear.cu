// Compiled once for each packed type, STRATA_PACKED.
//
// k_linear_<tokens>: y = W x for up to four packed matrices on one input, for 1 to 8 rows of activations (decode).
//
// Shapes: W [n_rows, n_cols] in groups of 16 rows; x n_tokens rounded rows; y float32 rows. One team (packed.cuh) for each
// group; block = one team; grid = (groups of all parts, tokens / 8 rounded up). Bytes moved: every matrix once, so floor = bytes / bandwidth.
// Exact: bits equal the CPU kernels', whatever the number of tokens.
#include "cuda/kernel_args.h"
#include "cuda/packed.cuh"

namespace strata::cuda {
namespace {

template <class Q, int kTokens, int kRoom>
STRATA_DEVICE void linear_tokens(const LinearArgs& args, const LinearPart& part, int group, int first, int n_tokens,
                                 Accumulators<kRoom>& room) {
  const uint8_t* acts[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) acts[t] = args.acts + (first + (t < n_tokens ? t : n_tokens - 1)) * args.act_stride;
  float acc[kTokens];
  accumulate_group<Q, kTokens>(part.w + group * Q::group_bytes(args.n_cols), args.n_cols, threadIdx.x, acts, acc);
  store_accumulators<Q>(room, threadIdx.x, acc);
}

template <class Q, int kTokens>
STRATA_DEVICE void linear(const LinearArgs& args) {
  __shared__ Accumulators<kTokens> room;
  int p = 0;
  while (p + 1 < args.n_parts && static_cast<int>(blockIdx.x) >= args.part[p + 1].first_block) ++p;
  const LinearPart& part = args.part[p];
  const int group = blockIdx.x - part.first_block, first = blockIdx.y * kTokens;
  const int n_tokens = args.n_tokens - first < kTokens ? args.n_tokens - first : kTokens;
  if constexpr (kTokens == 1) {
    __shared__ OneTokenRoom<Q> units;
    accumulate_one<Q>(part.w + group * Q::group_bytes(args.n_cols), args.n_cols, threadIdx.x,
                      args.acts + first * args.act_stride, units, room);
  } else {
    if (n_tokens <= kTokens / 2)
      linear_tokens<Q, kTokens / 2>(args, part, group, first, n_tokens, room);
    else
      linear_tokens<Q, kTokens>(args, part, group, first, n_tokens, room);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n_tokens * kGroupRows; i += static_cast<int>(blockDim.x)) {
    const int t = i / kGroupRows, lane = i % kGroupRows, row = group * kGroupRows + lane;
    if (row >= part.n_rows) continue;
    const float scale = part.scale != nullptr ? args.factor * *part.scale : args.factor;
    float y = room.total(t, lane);
    if (scale != 1.0f) y = y * scale;
    y = finish(y, nullptr, part.bias, row);
    part.y[(first + t) * part.y_stride + row] = args.softcap != 0.0f ? m_softcap(y, args.softcap) : y;
  }
}

}  // namespace

#define STRATA_LINEAR(tokens)                                                                                            \
  extern "C" __global__ void __launch_bounds__(tokens == 1 ? STRATA_PACKED::kOneThreads : Team<STRATA_PACKED>::kThreads) \
      k_linear_##tokens(const __grid_constant__ LinearArgs args) {                                                       \
    linear<STRATA_PACKED, tokens>(args);                                                                                 \
  }

STRATA_LINEAR(1)
STRATA_LINEAR(2)
STRATA_LINEAR(8)

// Row of a token as floats, the bits of gguf's dequantisation. Grid (n_cols / 256 rounded up, tokens), 256 threads.
extern "C" __global__ void __launch_bounds__(256) k_embed(const __grid_constant__ EmbedArgs args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (k >= args.n_cols) return;
  const int32_t row = args.tokens[blockIdx.y];
  const uint8_t* group = args.w + row / kGroupRows * STRATA_PACKED::group_bytes(args.n_cols);
  const float value = STRATA_PACKED::value(group, args.n_cols, row % kGroupRows, k);
  args.out[blockIdx.y * args.out_stride + k] = args.scale != 1.0f ? value * args.scale : value;
}

}  // namespace strata::cuda
