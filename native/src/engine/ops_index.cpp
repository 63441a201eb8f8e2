// INDEX: which keys a query of a sparse attention reads (the lightning indexer of DeepSeek-V3.2, arXiv 2512.02556).
//
// score(j) = chain of fma(w[h], relu(dot16(q_h, k_j)), sum) from 0, h ascending. The TOP_K keys j <= pos with the largest
// scores are kept, of equal ones the first, and written in ascending order behind their count. A query that sees no more
// keys than TOP_K keeps all of them, and nothing is computed for it. NaN counts as larger than every number.
// Work: as many tokens at a time as there are workers; their scores in pieces of tiles, then one choice for each token.
#include <string.h>

#include <algorithm>

#include "cpu/attention.h"
#include "engine/kv.h"
#include "engine/op_split.h"
#include "engine/ops.h"

namespace strata {
namespace {

using cpu::kAttnTile;

constexpr int64_t kPieceTiles = 8;

struct Index {
  StepContext& ctx;
  const strata_op& op;
  const int32_t layer;
  const int64_t n_head, top_k, head;
  const cpu::VecMath& vec;
  int64_t n_pos;       // positions that a row of `scores` has room for
  float* scores;       // [n_workers][n_pos], a row for each token of the group
  int32_t* ids;        // [n_workers][n_pos]
  float* tile_scores;  // [n_workers][n_head][kAttnTile]

  const uint8_t* keys(int64_t t, int64_t tile) const {
    const int32_t* blocks = ctx.step.block_table + int64_t{ctx.step.seq[t]} * ctx.step.max_blocks;
    return ctx.kv.keys(layer, blocks[tile], 0);
  }
  int64_t n_seen(int64_t t) const { return int64_t{ctx.step.pos[t]} + 1; }

  void store(int64_t t) const {
    const int64_t pos = ctx.step.pos[t], row_bytes = ctx.kv.layer(layer).k_row_bytes;
    uint8_t* block = const_cast<uint8_t*>(keys(t, pos / kAttnTile));
    vec.kv_store(ctx.kv.type(), ctx.row(op.in[1], t), block + pos % kAttnTile * row_bytes, head);
  }

  // Scores of the positions of one tile.
  void score(int64_t t, int64_t tile, float* part, float* out) const {
    const int64_t n = std::min(kAttnTile, n_seen(t) - tile * kAttnTile);
    const float* w = ctx.row(op.in[2], t);
    vec.attn_scores(ctx.kv.type(), ctx.row(op.in[0], t), head, n_head, keys(t, tile), ctx.kv.layer(layer).k_row_bytes, n,
                    head, 1.0f, part, kAttnTile);
    memset(out, 0, static_cast<size_t>(n) * sizeof(float));
    for (int64_t h = 0; h < n_head; ++h) {
      float* row = part + h * kAttnTile;
      vec.unary(cpu::Unary::relu, row, row, n);
      vec.axpy(w[h], row, out, n);
    }
  }

  // Larger numbers for larger scores, zeros of both signs alike.
  static int32_t rank(float score) {
    const float x = score + 0.0f;
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return INT32_MAX;
    return bits ^ ((bits >> 31) & INT32_MAX);
  }

  void choose(int64_t t, const float* score_row, int32_t* candidates) const {
    int32_t* out = reinterpret_cast<int32_t*>(ctx.row(op.out[0], t));
    const int64_t n = n_seen(t), count = std::min(n, top_k);
    for (int64_t j = 0; j < (n <= top_k ? 0 : n); ++j) candidates[j] = static_cast<int32_t>(j);
    if (n > top_k) {
      const auto before = [&](int32_t a, int32_t b) {
        const int32_t x = rank(score_row[a]), y = rank(score_row[b]);
        return x != y ? x > y : a < b;
      };
      std::nth_element(candidates, candidates + count - 1, candidates + n, before);
      std::sort(candidates, candidates + count);
    }
    out[0] = static_cast<int32_t>(count);
    for (int64_t j = 0; j < count; ++j) out[1 + j] = n > top_k ? candidates[j] : static_cast<int32_t>(j);
    for (int64_t j = count; j < top_k; ++j) out[1 + j] = 0;
  }

  // The tokens [first, first + n), n <= n_workers.
  Status run_group(int64_t first, int64_t n) const {
    int64_t most = 0;
    for (int64_t t = first; t < first + n; ++t) most = n_seen(t) > top_k ? std::max(most, n_seen(t)) : most;
    const int64_t piece = kPieceTiles * kAttnTile, n_pieces = (most + piece - 1) / piece;
    STRATA_TRY(ctx.pool.run(n * n_pieces, 1, [&](int64_t item, int32_t worker) {
      const int64_t k = item / n_pieces, t = first + k, begin = item % n_pieces * piece;
      if (n_seen(t) <= top_k || ctx.stopped()) return;
      float* part = tile_scores + worker * n_head * kAttnTile;
      for (int64_t j = begin; j < std::min(begin + piece, n_seen(t)); j += kAttnTile)
        score(t, j / kAttnTile, part, scores + k * n_pos + j);
    }));
    return ctx.pool.run(n, 1, [&](int64_t k, int32_t) { choose(first + k, scores + k * n_pos, ids + k * n_pos); });
  }
};

int64_t index_head(const Plan& plan, const strata_op& op) { return plan.kv_layers[op.i[STRATA_INDEX_I_KV_LAYER]].head_k; }

}  // namespace

int64_t index_scratch(const ScratchQuery& query, const strata_op& op) {
  const int64_t n_pos = query.n_kv_blocks * kAttnTile, n_workers = query.n_workers;
  return scratch_array_bytes<float>(n_workers * n_pos) + scratch_array_bytes<int32_t>(n_workers * n_pos) +
         scratch_array_bytes<float>(n_workers * op.i[STRATA_INDEX_I_N_HEAD] * kAttnTile);
}

Status run_index(StepContext& ctx, const strata_op& op) {
  int64_t most = 0;
  for (int64_t t = 0; t < ctx.step.n_tokens; ++t) most = std::max<int64_t>(most, ctx.step.pos[t] + 1);
  const int64_t n_tiles = (most + kAttnTile - 1) / kAttnTile, n_workers = ctx.n_workers(),
                n_head = op.i[STRATA_INDEX_I_N_HEAD];
  if (n_tiles > ctx.kv.n_blocks()) {
    return ctx.error.fail(STRATA_E_ARGUMENT, "a sequence names %lld KV blocks; the cache has %d",
                          static_cast<long long>(n_tiles), ctx.kv.n_blocks());
  }
  float* scores = ctx.scratch_array<float>(n_workers * n_tiles * kAttnTile);
  int32_t* ids = ctx.scratch_array<int32_t>(n_workers * n_tiles * kAttnTile);
  float* tile_scores = ctx.scratch_array<float>(n_workers * n_head * kAttnTile);
  if (tile_scores == nullptr) return ctx.error.status;
  const Index index{ctx,
                    op,
                    op.i[STRATA_INDEX_I_KV_LAYER],
                    n_head,
                    op.i[STRATA_INDEX_I_TOP_K],
                    index_head(ctx.plan(), op),
                    *cpu::vec_math(ctx.tier),
                    n_tiles * kAttnTile,
                    scores,
                    ids,
                    tile_scores};
  STRATA_TRY(for_rows(ctx, ctx.step.n_tokens, index.head, [&](int64_t t) { index.store(t); }));
  for (int64_t first = 0; first < ctx.step.n_tokens; first += n_workers)
    STRATA_TRY(index.run_group(first, std::min<int64_t>(n_workers, ctx.step.n_tokens - first)));
  return STRATA_OK;
}

}  // namespace strata
