#include "cuda/attention.h"

namespace strata::cuda {
namespace {

uint32_t u32(int64_t n) { return static_cast<uint32_t>(n); }

Status check(const AttentionShape& shape, Error& error) {
  if (shape.n_head_kv < 1 || shape.n_head < 1 || shape.n_head % shape.n_head_kv != 0) {
    return error.fail(STRATA_E_UNSUPPORTED, "attention of %d heads over %d key-value heads: no whole groups", shape.n_head,
                      shape.n_head_kv);
  }
  if (shape.head_k < 1 || shape.head_k > kAttnMaxHeadK || shape.head_v < 1) {
    return error.fail(STRATA_E_UNSUPPORTED, "attention heads of %d and %d values; the GPU's kernels take keys of 1 to %d",
                      shape.head_k, shape.head_v, kAttnMaxHeadK);
  }
  if (shape.max_tokens < 1 || shape.max_ctx < 1)
    return error.fail(STRATA_E_ARGUMENT, "attention for %d rows, %d positions", shape.max_tokens, shape.max_ctx);
  return STRATA_OK;
}

// Blocks that share the tiles of each of `jobs` packs.
int64_t tile_blocks(int64_t jobs, int64_t n_tiles) {
  return attn_min(attn_max(attn_ceil(kAttnBlocks, jobs), 1), attn_min(n_tiles, 65535));
}

// One chunk of rows, whose first is args.first_token.
Status launch_chunk(const Driver& driver, const AttentionFunctions& functions, CUstream stream, AttentionArgs& args,
                    const AttentionCut& cut, Error& error) {
  const AttentionShape& shape = args.shape;
  const int64_t slots = int64_t{args.chunk_tokens} * shape.n_head_kv * cut.n_parts;
  const int64_t packs = attn_ceil(args.chunk_tokens, cut.job_rows) * shape.n_head_kv * cut.n_parts;
  const int64_t query_bytes = 4 * cut.query_fours * (attn_ceil(shape.head_k, 16) * 16 + 4) * 4;
  STRATA_TRY(launch(driver, functions.scores, u32(slots), u32(tile_blocks(packs, cut.max_tiles)), u32(64 * cut.query_fours),
                    u32(query_bytes), stream, args, error));
  STRATA_TRY(launch(driver, functions.max, u32(slots), 1, 512, 0, stream, args, error));
  const int64_t blocks = cut.split ? tile_blocks(packs * cut.n_slices, cut.pass_tiles) : 1;
  const int64_t step = cut.split ? cut.pass_tiles : cut.max_tiles;
  for (int64_t tile = 0; tile < cut.max_tiles; tile += step) {
    args.first_tile = static_cast<int32_t>(tile);
    args.first_pass = tile == 0 ? 1 : 0;
    args.last_pass = tile + step >= cut.max_tiles ? 1 : 0;
    STRATA_TRY(launch(driver, functions.values, u32(slots * cut.n_slices), u32(blocks), u32(32 * cut.query_fours), 0, stream,
                      args, error));
    if (!cut.split) continue;
    STRATA_TRY(launch(driver, functions.finish, u32(int64_t{args.chunk_tokens} * shape.n_head), u32(cut.n_slices),
                      kAttnSliceDims, 0, stream, args, error));
  }
  return STRATA_OK;
}

}  // namespace

const char* attention_module(int32_t kv_type) {
  switch (kv_type) {
    case STRATA_KV_F32:
      return "attention.f32";
    case STRATA_KV_F16:
      return "attention.f16";
    case STRATA_KV_Q8_0:
      return "attention.q8_0";
    default:
      return nullptr;
  }
}

Status find_attention(const Driver& driver, CUmodule module, AttentionFunctions& functions, Error& error) {
  STRATA_CU(driver, error, cuModuleGetFunction(&functions.store, module, "k_kv_store"));
  STRATA_CU(driver, error, cuModuleGetFunction(&functions.scores, module, "k_attn_scores"));
  STRATA_CU(driver, error, cuModuleGetFunction(&functions.max, module, "k_attn_max"));
  STRATA_CU(driver, error, cuModuleGetFunction(&functions.values, module, "k_attn_values"));
  STRATA_CU(driver, error, cuModuleGetFunction(&functions.finish, module, "k_attn_finish"));
  return STRATA_OK;
}

Status launch_attention(const Driver& driver, const AttentionFunctions& functions, CUstream stream,
                        const AttentionArgs& args, CUdeviceptr scratch, Error& error) {
  const AttentionShape& shape = args.shape;
  STRATA_TRY(check(shape, error));
  const AttentionCut cut = attention_cut(shape);
  AttentionArgs filled = args;
  const auto place = [&](int64_t at) { return reinterpret_cast<float*>(scratch + static_cast<uint64_t>(at)); };
  filled.job_rows = cut.job_rows;
  filled.job_heads = cut.job_heads;
  filled.n_parts = cut.n_parts;
  filled.query_fours = cut.query_fours;
  filled.max_tiles = cut.max_tiles;
  filled.pass_tiles = cut.pass_tiles;
  filled.split = cut.split ? 1 : 0;
  filled.s = place(cut.s_at);
  filled.tile_max = place(cut.tile_max_at);
  filled.tile_sum = place(cut.tile_sum_at);
  filled.max = place(cut.max_at);
  filled.partial = place(cut.partial_at);
  if (args.k != nullptr) {
    STRATA_TRY(
        launch(driver, functions.store, u32(int64_t{shape.max_tokens} * shape.n_head_kv), 1, 128, 0, stream, filled, error));
  }
  for (int32_t first = 0; first < shape.max_tokens; first += cut.chunk_tokens) {
    filled.first_token = first;
    filled.chunk_tokens = static_cast<int32_t>(attn_min(cut.chunk_tokens, shape.max_tokens - first));
    STRATA_TRY(launch_chunk(driver, functions, stream, filled, cut, error));
  }
  return STRATA_OK;
}

}  // namespace strata::cuda
