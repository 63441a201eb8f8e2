// Arguments, launch shape and scratch of the attention kernels: one definition for the host and for NVRTC.
//
// A pack is what one block works on: up to kAttnPackQueries queries that read the same cache rows, namely some rows of the
// step that belong to one sequence, times some heads of one key-value head's group. Packs never cross a multiple of
// job_rows rows (counted from the chunk's first) nor a change of sequence, so that a block finds its pack by looking at a
// few words of `seq`. All sizes here depend on what a graph capture fixes; rows, positions and numbers of tiles are read
// from device memory when the kernels run.
#pragma once
#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

namespace strata::cuda {

constexpr int32_t kAttnTileKeys = 64;     // positions of a tile and of a cache block
constexpr int32_t kAttnPackQueries = 16;  // of one block
constexpr int32_t kAttnSliceDims = 128;   // value dimensions of one block
constexpr int32_t kAttnMaxHeadK = 752;    // 16 query rows in 48 KiB of shared memory

// What a capture fixes about one ATTENTION op.
struct AttentionShape {
  int32_t n_head, n_head_kv, head_k, head_v;
  int32_t max_tokens;   // most rows of a step
  int32_t max_ctx;      // every position of the step is below it
  int32_t window;       // 0: none
  int32_t window_kind;  // STRATA_WINDOW_*
  int32_t causal;
};

// k_kv_store, k_attn_*; all pointers are device addresses.
struct AttentionArgs {
  AttentionShape shape;
  const float* q;                                    // [row][n_head][head_k]
  const float* k;                                    // [row][n_head_kv][head_k]; absent: nothing is stored
  const float* v;                                    // [row][n_head_kv][head_v]; absent: values are part of the keys
  float* out;                                        // [row][n_head][head_v]
  int64_t q_stride, k_stride, v_stride, out_stride;  // floats between rows
  uint8_t* kv;                                       // block 0 of this layer; the numbers below are KvLayer's, in bytes
  int64_t k_row_bytes, v_row_bytes, v_offset, v_head_bytes, block_bytes;
  const float* sinks;  // [n_head], or absent
  const int32_t *pos, *seq, *block_table, *n_tokens;
  int64_t max_blocks;  // of one row of block_table
  float scale, softcap;
  // Filled by launch_attention.
  int32_t first_token, chunk_tokens;                  // rows of this launch
  int32_t job_rows, job_heads, n_parts, query_fours;  // query_fours: fours of queries a block has threads for
  int32_t max_tiles, first_tile, pass_tiles;          // first_tile: of this pass, counted from the pack's first
  int32_t split, first_pass, last_pass;               // split: tiles go to `partial` and k_attn_finish adds them
  float* s;                                           // [chunk row][n_head][max_tiles][64] scores
  float* tile_max;                                    // [chunk row][n_head][max_tiles]
  float* tile_sum;                                    // [chunk row][n_head][max_tiles]
  float* max;                                         // [chunk row][n_head]
  float* partial;                                     // [chunk row][n_head][pass_tiles][head_v]
};

// How an op is cut into launches. Rows are taken in chunks, and the tiles of split values in passes, so that the scratch
// stays near kAttnScratchTarget; one row and one tile are the least.
struct AttentionCut {
  int32_t job_rows, job_heads, n_parts, query_fours, n_slices;
  int32_t max_tiles, chunk_tokens, pass_tiles;
  bool split;
  int64_t s_at, tile_max_at, tile_sum_at, max_at, partial_at, bytes;  // places in the scratch
};

constexpr int64_t kAttnScratchTarget = 64 << 20;  // bytes, of scores and of partial values each
constexpr int32_t kAttnWholeBlocks = 256;         // with so many blocks of values their tiles need not be split
constexpr int32_t kAttnBlocks = 2048;             // about as many share the tiles of a launch

static constexpr int64_t attn_min(int64_t a, int64_t b) { return a < b ? a : b; }
static constexpr int64_t attn_max(int64_t a, int64_t b) { return a < b ? b : a; }
static constexpr int64_t attn_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
static constexpr int64_t attn_align(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Most tiles that a pack sees: of the whole context, or of the window of its first to its last row and the two ends.
static constexpr int64_t attention_max_tiles(const AttentionShape& shape, int64_t job_rows) {
  const int64_t all = attn_max(attn_ceil(shape.max_ctx, kAttnTileKeys), 1);
  const bool symmetric = shape.window_kind != 0 && shape.window_kind != 1;
  if (shape.window <= 0 || (shape.causal == 0 && !symmetric)) return all;
  return attn_min(all, attn_ceil(int64_t{shape.window} + 1 + job_rows, kAttnTileKeys) + 1);
}

static constexpr AttentionCut attention_cut(const AttentionShape& shape) {
  AttentionCut cut{};
  const int64_t group = shape.n_head / shape.n_head_kv, n_head = shape.n_head;
  cut.n_parts = static_cast<int32_t>(attn_ceil(group, kAttnPackQueries));
  cut.job_heads = static_cast<int32_t>(attn_ceil(group, cut.n_parts));
  cut.job_rows = static_cast<int32_t>(attn_min(kAttnPackQueries / cut.job_heads, shape.max_tokens));
  const int64_t queries = int64_t{cut.job_rows} * cut.job_heads;
  cut.query_fours = queries <= 4 ? 1 : queries <= 8 ? 2 : 4;
  cut.n_slices = static_cast<int32_t>(attn_ceil(shape.head_v, kAttnSliceDims));
  const int64_t tiles = attention_max_tiles(shape, cut.job_rows);
  cut.max_tiles = static_cast<int32_t>(tiles);
  const int64_t row_bytes = n_head * tiles * kAttnTileKeys * 4;  // scores of one row
  const int64_t fitting = attn_max(kAttnScratchTarget / row_bytes, 1);
  const int64_t whole_packs = fitting < cut.job_rows ? fitting : fitting / cut.job_rows * cut.job_rows;
  const int64_t rows = attn_min(whole_packs, shape.max_tokens);
  cut.chunk_tokens = static_cast<int32_t>(rows);
  const int64_t blocks = attn_ceil(rows, cut.job_rows) * shape.n_head_kv * cut.n_parts * cut.n_slices;
  cut.split = tiles > 2 && blocks < kAttnWholeBlocks;
  const int64_t tile_bytes = rows * n_head * shape.head_v * 4;  // partial values of one tile
  cut.pass_tiles = cut.split ? static_cast<int32_t>(attn_min(tiles, attn_max(kAttnScratchTarget / tile_bytes, 1))) : 0;
  const int64_t facts = attn_align(rows * n_head * tiles * 4);
  cut.s_at = 0;
  cut.tile_max_at = attn_align(rows * row_bytes);
  cut.tile_sum_at = cut.tile_max_at + facts;
  cut.max_at = cut.tile_sum_at + facts;
  cut.partial_at = cut.max_at + attn_align(rows * n_head * 4);
  cut.bytes = cut.partial_at + attn_align(cut.pass_tiles * tile_bytes);
  return cut;
}

// Device bytes that launch_attention needs for an op of this shape; one buffer serves all ops of a stream in turn.
static constexpr int64_t attention_scratch_bytes(const AttentionShape& shape) { return attention_cut(shape).bytes; }

}  // namespace strata::cuda
