// STRATA_OP_ATTENTION for cache rows of STRATA_KV_TYPE, bit for bit as cpu/attention.h: every score is 16 strided fma lanes
// and a tree; sums and values of a tile are made alone, and tiles are added in ascending order.
//
// k_kv_store       grid (rows * kv heads), 128 threads
// k_attn_scores    grid (rows * kv heads * parts, blocks that share the tiles), 64 * query_fours threads: 4 keys x 4 queries
//                  each; dynamic shared memory 16 query rows. A cache row is read once for all queries of the pack.
// k_attn_max       grid (rows * kv heads * parts), 512 threads: a warp for each query
// k_attn_values    grid (rows * kv heads * parts * slices of 128 dims, blocks that share the tiles), 32 * query_fours
//                  threads: 4 dims x 4 queries each. Split: a tile's values go to `partial`. Else one block takes all tiles.
// k_attn_finish    split only: grid (rows * n_head, slices), 128 threads: adds the tiles of a pass
// Grids are those of the most rows of the capture; a block without a pack ends at once, and blocks take every gridDim.y-th
// tile, so that any number of tiles up to max_tiles works. Tiles are counted from the first that the pack sees.
#include "cuda/attention.cuh"

namespace strata::cuda {
namespace {

// ---- scores ---------------------------------------------------------------------------------------------------------

// Floats between query rows in shared memory: rows 4 apart, which a warp reads together, stand in different banks.
STRATA_DEVICE int query_stride(int head_k) { return (head_k + 15) / 16 * 16 + 4; }

STRATA_DEVICE void stage_queries(const AttentionArgs& a, const Pack& pack, float* room, int* low, int* high) {
  const int head_k = a.shape.head_k, stride = query_stride(head_k), n_queries = pack.n_queries();
  for (int i = threadIdx.x; i < 4 * a.query_fours * stride; i += blockDim.x) {
    const int query = i / stride, d = i % stride;
    const int64_t row = pack.row + query / pack.n_heads, head = pack.head + query % pack.n_heads;
    room[i] = query < n_queries && d < head_k ? a.q[row * a.q_stride + head * head_k + d] : 0.0f;
  }
  for (int i = threadIdx.x; i < kPack; i += blockDim.x) {
    low[i] = high[i] = 0;
    if (i < n_queries) visible(a.shape, a.pos[pack.row + i / pack.n_heads], pack.seq_high, low[i], high[i]);
  }
}

// Products of 4 queries (rows of `q`) and 4 keys (rows of `k`); thread c of a quad holds lanes 4c .. 4c + 3 of all 16 pairs.
// Returns in s[i] query i times key c: lanes 8 apart are added, then 4, 2, 1 (v_tree16), pairs being dealt out meanwhile.
STRATA_DEVICE void quad_scores(const float* q, int q_stride, const uint8_t* k, int64_t k_stride, int n_dim, float (&s)[4]) {
  const int c = threadIdx.x % 4;
  float acc[4][4][4] = {};  // key, query, lane
#pragma unroll 2
  for (int d = 4 * c; d - 4 * c < n_dim; d += 16) {
    Four key[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) key[j] = load_four(k + j * k_stride, d, n_dim);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Four query = *reinterpret_cast<const Four*>(q + i * q_stride + d);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int l = 0; l < 4; ++l) acc[j][i][l] = v_fma(query.x[l], key[j].x[l], acc[j][i][l]);
    }
  }
  const bool upper = (c & 2) != 0, odd = (c & 1) != 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float by4[4];
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      float by8[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float keep = upper ? acc[j + 2][i][l] : acc[j][i][l], send = upper ? acc[j][i][l] : acc[j + 2][i][l];
        by8[j] = keep + __shfl_xor_sync(kAllLanes, send, 2);
      }
      by4[l] = (odd ? by8[1] : by8[0]) + __shfl_xor_sync(kAllLanes, odd ? by8[0] : by8[1], 1);
    }
    s[i] = (by4[0] + by4[2]) + (by4[1] + by4[3]);
  }
}

// ---- softmax and values -----------------------------------------------------------------------------------------------

// p of one tile, transposed; rows of 20 floats keep fours of queries aligned and spread the banks.
using Weights = float[kTile][kPack + 4];

// Half-warps make the exponentials of one query each and their sum in 16 strided lanes and a tree; keep(query, sum) takes
// it in one thread. False when a weight of keys [begin, end) is zero: its value row must not count (contract of cpu).
template <class Keep>
STRATA_DEVICE bool weigh_tile(const AttentionArgs& a, const Pack& pack, int tile, int begin, int end, Weights& p, Keep keep) {
  const int lane = threadIdx.x % 16;
  bool all = true;
  for (int query = threadIdx.x / 16; query < 4 * a.query_fours; query += blockDim.x / 16) {
    const bool used = query < pack.n_queries();
    const int64_t at = used ? pack.query(a, query) : 0;
    const float m = used ? a.max[at] : 0.0f;
    const float* s = a.s + (at * a.max_tiles + tile) * kTile;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) {
      const int j = 16 * i + lane;
      const float e = used ? m_exp(s[j] - m) : 0.0f;
      sum = sum + e;
      p[j][query] = e;
      all = all && (!used || e != 0.0f || j < begin || j >= end);
    }
#pragma unroll
    for (int step = 8; step > 0; step /= 2) sum = sum + __shfl_xor_sync(kAllLanes, sum, step);
    if (used && lane == 0) keep(query, sum);
  }
  return all;
}

// acc[query][dim] = fma chain over keys [begin, end) of a tile, ascending; weights of zero are left out unless kAll.
template <bool kAll>
STRATA_DEVICE void tile_values(const AttentionArgs& a, const uint8_t* v, int dim, int begin, int end, const Weights& p,
                               int first_query, float (&acc)[4][4]) {
#pragma unroll 8
  for (int j = begin; j < end; ++j) {
    const Four value = load_four(v + j * a.v_row_bytes, dim, a.shape.head_v);
    const Four weight = *reinterpret_cast<const Four*>(&p[j][first_query]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        const float next = v_fma(weight.x[i], value.x[d], acc[i][d]);
        acc[i][d] = kAll || weight.x[i] != 0.0f ? next : acc[i][d];
      }
  }
}

// Sum of a query's tiles, its sink included, to the factor of its values.
STRATA_DEVICE float values_factor(const AttentionArgs& a, float sum, int head, float m) {
  if (a.sinks != nullptr) sum = sum + m_exp(a.sinks[head] - m);
  return 1.0f / sum;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) k_attn_scores(const __grid_constant__ AttentionArgs args) {
  extern __shared__ Four room[];
  __shared__ int low[kPack], high[kPack];
  __shared__ float warp_max[8][kPack];
  Pack pack;
  if (!open_pack(args, blockIdx.x, pack)) return;
  if (static_cast<int>(blockIdx.y) >= pack.n_tiles) return;
  auto* queries = reinterpret_cast<float*>(room);
  stage_queries(args, pack, queries, low, high);
  const int fours = args.query_fours, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_query = threadIdx.x / 4 % fours * 4, first_key = threadIdx.x / 4 / fours * 4;
  const int key_in_tile = first_key + threadIdx.x % 4, stride = query_stride(args.shape.head_k);
  const int64_t head_at = pack.kv_head * kTile * args.k_row_bytes;
  for (int tile = blockIdx.y; tile < pack.n_tiles; tile += gridDim.y) {
    __syncthreads();  // the queries are there; the last tile's maxima have been read
    const uint8_t* k = args.kv + pack.blocks[tile] * args.block_bytes + head_at + first_key * args.k_row_bytes;
    float s[4];
    quad_scores(queries + first_query * stride, stride, k, args.k_row_bytes, args.shape.head_k, s);
    const int key = (pack.first_tile + tile) * kTile + key_in_tile;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = first_query + i;
      s[i] = s[i] * args.scale;
      if (args.softcap != 0.0f) s[i] = m_softcap(s[i], args.softcap);
      if (key < low[query] || key >= high[query]) s[i] = minus_infinity();
      if (query < pack.n_queries()) args.s[(pack.query(args, query) * args.max_tiles + tile) * kTile + key_in_tile] = s[i];
      s[i] = larger(s[i], __shfl_xor_sync(kAllLanes, s[i], 1));
      s[i] = larger(s[i], __shfl_xor_sync(kAllLanes, s[i], 2));
      for (int step = 4 * fours; step < 32; step *= 2) s[i] = larger(s[i], __shfl_xor_sync(kAllLanes, s[i], step));
      if (lane / (4 * fours) == 0 && lane % 4 == 0) warp_max[warp][query] = s[i];
    }
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < pack.n_queries()) {
      float best = warp_max[0][threadIdx.x];
      for (int w = 1; w < 2 * fours; ++w) best = larger(best, warp_max[w][threadIdx.x]);
      args.tile_max[pack.query(args, threadIdx.x) * args.max_tiles + tile] = best;
    }
  }
}

// The largest score of each query and its sink; +0 for a zero of either sign.
extern "C" __global__ void __launch_bounds__(512) k_attn_max(const __grid_constant__ AttentionArgs args) {
  Pack pack;
  if (!open_pack(args, blockIdx.x, pack)) return;
  const int i = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (i >= pack.n_queries()) return;
  const int64_t query = pack.query(args, i);
  const float* tiles = args.tile_max + query * args.max_tiles;
  float best = minus_infinity();
#pragma unroll 4
  for (int tile = lane; tile < pack.n_tiles; tile += 32) best = larger(best, tiles[tile]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) best = larger(best, __shfl_xor_sync(kAllLanes, best, step));
  best = best + 0.0f;
  if (args.sinks != nullptr) {
    const float sink = args.sinks[pack.head + i % pack.n_heads];
    best = sink > best || sink != sink ? sink : best;
  }
  if (lane == 0) args.max[query] = best;
}

extern "C" __global__ void __launch_bounds__(128) k_attn_values(const __grid_constant__ AttentionArgs args) {
  alignas(16) __shared__ Weights p;
  __shared__ float total[kPack];
  const int head_v = args.shape.head_v, n_slices = (head_v + kAttnSliceDims - 1) / kAttnSliceDims;
  const int slice = blockIdx.x % n_slices, fours = args.query_fours;
  Pack pack;
  if (!open_pack(args, blockIdx.x / n_slices, pack)) return;
  const int first_query = threadIdx.x % fours * 4, dim = slice * kAttnSliceDims + threadIdx.x / fours * 4;
  if (threadIdx.x < kPack) total[threadIdx.x] = 0.0f;
  const int pass_end = args.first_tile + args.pass_tiles;
  const int end_tile = args.split != 0 && pass_end < pack.n_tiles ? pass_end : pack.n_tiles;
  const uint8_t* values = args.kv + args.v_offset + pack.kv_head * args.v_head_bytes;
  float out[4][4] = {};  // query, dim
  for (int tile = args.first_tile + blockIdx.y; tile < end_tile; tile += gridDim.y) {
    const int first = (pack.first_tile + tile) * kTile;
    const int begin = pack.low > first ? pack.low - first : 0, end = pack.high - first < kTile ? pack.high - first : kTile;
    __syncthreads();  // the last tile's weights have been read
    const bool all = weigh_tile(args, pack, tile, begin, end, p, [&](int query, float sum) {
      total[query] = total[query] + sum;
      if (args.split != 0 && slice == 0) args.tile_sum[pack.query(args, query) * args.max_tiles + tile] = sum;
    });
    const bool no_zero = __syncthreads_and(all) != 0;
    float acc[4][4] = {};
    const uint8_t* v = values + pack.blocks[tile] * args.block_bytes;
    if (dim >= head_v) continue;
    if (no_zero)
      tile_values<true>(args, v, dim, begin, end, p, first_query, acc);
    else
      tile_values<false>(args, v, dim, begin, end, p, first_query, acc);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = first_query + i;
      float* partial = args.partial + (pack.query(args, query) * args.pass_tiles + tile - args.first_tile) * head_v + dim;
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        if (args.split == 0)
          out[i][d] = out[i][d] + acc[i][d];
        else if (query < pack.n_queries() && dim + d < head_v)
          partial[d] = acc[i][d];
      }
    }
  }
  if (args.split != 0) return;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int query = first_query + i;
    if (query >= pack.n_queries()) continue;
    const int head = pack.head + query % pack.n_heads;
    const float factor = values_factor(args, total[query], head, args.max[pack.query(args, query)]);
    float* row = args.out + (pack.row + query / pack.n_heads) * args.out_stride + static_cast<int64_t>(head) * head_v;
#pragma unroll
    for (int d = 0; d < 4; ++d)
      if (dim + d < head_v) row[dim + d] = out[i][d] * factor;
  }
}

// The result keeps the sum between passes; the last one scales it. Loads of many tiles are under way at once: the chain of
// additions is short beside their latency.
extern "C" __global__ void __launch_bounds__(128) k_attn_finish(const __grid_constant__ AttentionArgs args) {
  const int in_chunk = blockIdx.x / args.shape.n_head, head = blockIdx.x % args.shape.n_head;
  const int head_v = args.shape.head_v, dim = blockIdx.y * kAttnSliceDims + threadIdx.x;
  const int row = args.first_token + in_chunk, group = args.shape.n_head / args.shape.n_head_kv;
  if (row >= *args.n_tokens || dim >= head_v) return;
  int first = in_chunk;
  while (first % args.job_rows != 0 && args.seq[args.first_token + first - 1] == args.seq[row]) --first;
  const int slot = first * args.shape.n_head_kv * args.n_parts + head / group * args.n_parts + head % group / args.job_heads;
  Pack pack;
  if (!open_pack(args, slot, pack)) return;
  const int64_t query = static_cast<int64_t>(in_chunk) * args.shape.n_head + head;
  const float* partial = args.partial + query * args.pass_tiles * head_v + dim;
  float* out = args.out + row * args.out_stride + static_cast<int64_t>(head) * head_v + dim;
  const int left = pack.n_tiles - args.first_tile, n_tiles = left < args.pass_tiles ? left : args.pass_tiles;
  float acc = args.first_pass != 0 ? 0.0f : *out;
#pragma unroll 16
  for (int tile = 0; tile < n_tiles; ++tile) acc = acc + partial[static_cast<int64_t>(tile) * head_v];
  if (args.last_pass != 0) {
    const float* sums = args.tile_sum + query * args.max_tiles;
    float sum = 0.0f;
#pragma unroll 16
    for (int tile = 0; tile < pack.n_tiles; ++tile) sum = sum + sums[tile];
    acc = acc * values_factor(args, sum, head, args.max[query]);
  }
  *out = acc;
}

extern "C" __global__ void __launch_bounds__(128) k_kv_store(const __grid_constant__ AttentionArgs args) {
  const int row = blockIdx.x / args.shape.n_head_kv, head = blockIdx.x % args.shape.n_head_kv;
  if (row >= *args.n_tokens) return;
  const int pos = args.pos[row], place = pos % kAttnTileKeys;
  const int32_t block = args.block_table[args.seq[row] * args.max_blocks + pos / kAttnTileKeys];
  uint8_t* base = args.kv + block * args.block_bytes;
  const int head_k = args.shape.head_k, head_v = args.shape.head_v;
  store_row(args.k + row * args.k_stride + static_cast<int64_t>(head) * head_k,
            base + (static_cast<int64_t>(head) * kAttnTileKeys + place) * args.k_row_bytes, head_k);
  if (args.v == nullptr) return;
  store_row(args.v + row * args.v_stride + static_cast<int64_t>(head) * head_v,
            base + args.v_offset + head * args.v_head_bytes + place * args.v_row_bytes, head_v);
}

}  // namespace strata::cuda
