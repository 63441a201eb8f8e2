#include "cpu/attention.h"

#include <string.h>

#include <algorithm>

#include "base/ieee_math.h"

namespace strata::cpu {
namespace {

float minus_infinity() { return v_from_bits(static_cast<int32_t>(0xff800000)); }
int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max64(int64_t a, int64_t b) { return a < b ? b : a; }

// Positions of a tile that the job computes: from the tile's start (the lanes of its sums are counted from there) to the
// last key that any row sees.
int64_t tile_keys(const AttnJob& job, int64_t tile) {
  return min64(kAttnTile, job.key_high - (job.first_tile + tile) * kAttnTile);
}

// The part of a row's list that begins at position `first`.
const int32_t* list_from(const int32_t* list, int64_t first) {
  return std::lower_bound(list + 1, list + 1 + list[0], static_cast<int32_t>(first));
}

// Whether a list of any row names a position of the tile.
bool any_kept(const AttnJob& job, int64_t first, int64_t n) {
  for (int64_t row = 0; row < job.n_rows; ++row) {
    const int32_t *list = job.kept[row], *at = list_from(list, first);
    if (at != list + 1 + list[0] && *at < first + n) return true;
  }
  return false;
}

void keep_listed(const int32_t* list, int64_t first, int64_t n, float* s) {
  const int32_t *at = list_from(list, first), *end = list + 1 + list[0];
  for (int64_t j = 0; j < n; ++j) {
    if (at != end && *at == first + j)
      ++at;
    else
      s[j] = minus_infinity();
  }
}

// Scores of the keys that a row of the job sees; -inf for the others, whose rows are not read if no row sees them.
void mask_row(const AttnJob& job, int64_t query, int64_t tile, float* s) {
  const int64_t first = (job.first_tile + tile) * kAttnTile, n = tile_keys(job, tile);
  const int64_t row = query / job.n_heads;
  const int64_t low = min64(max64(job.low[row] - first, 0), n), high = max64(min64(job.high[row] - first, n), 0);
  for (int64_t j = 0; j < low; ++j) s[j] = minus_infinity();
  for (int64_t j = high; j < n; ++j) s[j] = minus_infinity();
  if (job.kept != nullptr) keep_listed(job.kept[row], first, n, s);
}

// A NaN score makes the maximum NaN; a NaN sink too.
float query_max(const AttnJob& job, int64_t query) {
  float m = job.vec->max(job.tile_max + query * job.n_tiles, job.n_tiles);
  if (job.sinks != nullptr) {
    const float sink = job.sinks[query % job.n_heads];
    m = sink > m || sink != sink ? sink : m;
  }
  return m;
}

float query_sum(const AttnJob& job, int64_t query) {
  const float* sums = job.tile_sum + query * job.n_tiles;
  float sum = 0.0f;
  for (int64_t tile = 0; tile < job.n_tiles; ++tile) sum += sums[tile];
  if (job.sinks != nullptr) sum += m_exp(job.sinks[query % job.n_heads] - query_max(job, query));
  return sum;
}

}  // namespace

void attn_scores_step(const AttnJob& job, int64_t begin, int64_t end) {
  const int64_t n_queries = job.n_queries(), s_stride = job.s_stride();
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = (job.first_tile + tile) * kAttnTile, n = tile_keys(job, tile);
    const int64_t skip = max64(job.key_low - first, 0);  // keys before it are seen by no row
    float* s = job.s + tile * kAttnTile;
    if (job.kept != nullptr && !any_kept(job, first, n)) {
      for (int64_t query = 0; query < n_queries; ++query) {
        for (int64_t j = 0; j < n; ++j) s[query * s_stride + j] = minus_infinity();
        job.tile_max[query * job.n_tiles + tile] = minus_infinity();
      }
      continue;
    }
    const uint8_t* k = job.k + job.blocks[job.first_tile + tile] * job.block_bytes + skip * job.k_row_bytes;
    job.vec->attn_scores(job.kv_type, job.q, job.n_dim_k, n_queries, k, job.k_row_bytes, n - skip, job.n_dim_k, job.scale,
                         s + skip, s_stride);
    for (int64_t query = 0; query < n_queries; ++query) {
      float* row = s + query * s_stride;
      if (job.softcap != 0.0f) job.vec->softcap(row + skip, job.softcap, row + skip, n - skip);
      mask_row(job, query, tile, row);
      job.tile_max[query * job.n_tiles + tile] = job.vec->max(row, n);
    }
  }
}

void attn_softmax_step(const AttnJob& job, int64_t begin, int64_t end) {
  for (int64_t query = 0; query < job.n_queries(); ++query) {
    const float m = query_max(job, query);
    for (int64_t tile = begin; tile < end; ++tile) {
      float* s = job.s + query * job.s_stride() + tile * kAttnTile;
      job.tile_sum[query * job.n_tiles + tile] = job.vec->exp_sub(s, m, s, tile_keys(job, tile));
    }
  }
}

void attn_values_step(const AttnJob& job, int64_t begin, int64_t end) {
  const int64_t n_queries = job.n_queries(), n_dim = end - begin;
  for (int64_t query = 0; query < n_queries; ++query) {
    memset(job.out + query * job.n_dim_v + begin, 0, static_cast<size_t>(n_dim) * sizeof(float));
  }
  const int64_t skip_bytes = kv_row_bytes(job.kv_type, begin);
  for (int64_t tile = 0; tile < job.n_tiles; ++tile) {
    const uint8_t* v = job.v + job.blocks[job.first_tile + tile] * job.block_bytes + skip_bytes;
    job.vec->attn_values(job.kv_type, job.s + tile * kAttnTile, job.s_stride(), n_queries, v, job.v_row_bytes,
                         tile_keys(job, tile), n_dim, job.out + begin, job.n_dim_v);
  }
  for (int64_t query = 0; query < n_queries; ++query) {
    float* out = job.out + query * job.n_dim_v + begin;
    job.vec->scale(out, 1.0f / query_sum(job, query), out, n_dim);
  }
}

}  // namespace strata::cpu
