// The loops around the packed kernels: groups of rows, chunks of tokens that
// stay in the cache, tiles of tokens.
//
// Internal linkage: every instruction-set tier compiles its own copy.
#pragma once
#include <cstdint>

#include "cpu/act.h"
#include "cpu/kernels.h"

namespace strata::cpu {

// Activation bytes of one pass over the weights: a quarter of a 1 MB L2, so that tiles find their rows there again beside
// the weights and the results.
constexpr int64_t kTokenChunkBytes = 256 * 1024;

// One line for every block or bundle, two pages and a bit ahead: enough to have the next page's translation and to start
// the hardware's own prefetching there. A prefetch for every line was slower than none (the miss buffers fill up), this
// one gave 8 % (Q4_K, Q8_0) to 24 % (Q6_K, MXFP4) on a Zen 4 core (2026-12-01). Reading past the end is harmless.
constexpr int64_t kPrefetchBytes = 8192 + 256;
static __attribute__((always_inline)) inline void prefetch(const uint8_t* p) {
  __builtin_prefetch(p + kPrefetchBytes, 0, 3);
}

// All tokens of [token, end) on R groups, in tiles of 4, 2 and 1.
template <class Tile, int R>
static inline void run_tokens(const MatmulArgs& args, const uint8_t* group, int64_t row, int64_t token, int64_t end) {
  for (; token + 4 <= end; token += 4) Tile::template run<4, R>(args, group, row, token);
  if (token + 2 <= end) {
    Tile::template run<2, R>(args, group, row, token);
    token += 2;
  }
  if (token < end) Tile::template run<1, R>(args, group, row, token);
}

// Calls Tile::run<T, R>(args, group, row, token) until every group of rows has met every token. R is kMaxGroups when
// there are tokens enough, else 1: one token reads the weights as one stream. Which tile a row and a token fall into
// changes nothing in their bits.
template <class Tile, int kMaxGroups>
static inline void for_each_tile(const MatmulArgs& args, int64_t group_bytes) {
  int64_t chunk = kTokenChunkBytes / args.act_stride / 4 * 4;
  if (chunk < 4) chunk = 4;
  for (int64_t first = 0; first < args.n_tokens; first += chunk) {
    const int64_t end = first + chunk < args.n_tokens ? first + chunk : args.n_tokens;
    int64_t row = args.row_begin;
    if (kMaxGroups > 1 && end - first >= 2) {
      for (; row + (kMaxGroups - 1) * kGroupRows < args.row_end; row += kMaxGroups * kGroupRows) {
        const uint8_t* group = args.w.data + row / kGroupRows * group_bytes;
        run_tokens<Tile, kMaxGroups>(args, group, row, first, end);
      }
    }
    for (; row < args.row_end; row += kGroupRows) {
      run_tokens<Tile, 1>(args, args.w.data + row / kGroupRows * group_bytes, row, first, end);
    }
  }
}

}  // namespace strata::cpu
