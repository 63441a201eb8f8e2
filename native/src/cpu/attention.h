// Softmax attention of a few queries over one key-value head of the paged cache, in steps that can be shared by threads.
//
// Order (contract C1). Tiles are kAttnTile positions and start at absolute positions that are multiples of it; a tile is
// one block of the cache. For one query:
//   s_j = softcap(dot16(q, k_j) * scale)                  -inf where key j is not visible
//   m   = the largest s_j, and the sink if there is one   exact, whatever the order
//   p_j = exp(s_j - m); L_tile = sum of p over the tile in 16 strided lanes and a tree
//   l   = 0 + L_tile in ascending tiles, then + exp(sink - m)
//   o   = 0 + (fma chain over the tile's p_j * v_j in ascending j) in ascending tiles, then o * (1 / l)
// With `kept` a key that is not in its row's list is not visible either.
// Tiles without a visible key add zeros, so skipping them changes no bit; which queries share a job changes none either.
#pragma once
#include "cpu/vecmath.h"

namespace strata::cpu {

constexpr int64_t kAttnQueries = 16;  // of one job

// Query i belongs to row i / n_heads of the run (position first_pos + row) and to head i % n_heads of the job.
struct AttnJob {
  const VecMath* vec;
  int32_t kv_type;
  int64_t n_dim_k, n_dim_v;
  const uint8_t* k;  // this head's rows in block 0
  const uint8_t* v;
  int64_t block_bytes, k_row_bytes, v_row_bytes;
  const int32_t* blocks;       // block of tile b of the sequence
  int64_t n_rows, n_heads;     // n_rows * n_heads <= kAttnQueries
  const int64_t* low;          // [n_rows] first visible key
  const int64_t* high;         // [n_rows] end of the visible keys
  const int32_t* const* kept;  // [n_rows] count, then ascending positions; null: no lists
  int64_t first_tile, n_tiles;
  int64_t key_low, key_high;  // of all rows together
  float scale, softcap;
  const float* sinks;  // [n_heads] or null
  const float* q;      // [n_rows * n_heads][n_dim_k]
  float* s;            // [n_rows * n_heads][n_tiles * kAttnTile]: scores, then p
  float* tile_max;     // [n_rows * n_heads][n_tiles]
  float* tile_sum;     // [n_rows * n_heads][n_tiles]
  float* out;          // [n_rows * n_heads][n_dim_v]

  int64_t n_queries() const { return n_rows * n_heads; }
  int64_t s_stride() const { return n_tiles * kAttnTile; }
};

// Step 1, for tiles [begin, end) counted from first_tile: scores and each tile's maximum.
void attn_scores_step(const AttnJob& job, int64_t begin, int64_t end);
// Step 2, when step 1 is done for all tiles: exponentials and each tile's sum.
void attn_softmax_step(const AttnJob& job, int64_t begin, int64_t end);
// Step 3, when step 2 is done for all tiles: dimensions [begin, end) of the result; begin is a multiple of 32.
void attn_values_step(const AttnJob& job, int64_t begin, int64_t end);

}  // namespace strata::cpu
