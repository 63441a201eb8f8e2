// The loops around the packed kernels: groups of rows, chunks of tokens that
// stay in the cache, tiles of tokens.
//
// Internal linkage: every instruction-set tier compiles its own copy.
#pragma once
#include <cstdint>

#include "cpu/act.h"
#include "cpu/kernels.h"

namespace strata::cpu {

// Activation bytes of one pass over the weights: half of a 1 MB L2, so that
// tiles find their rows there again.
constexpr int64_t kTokenChunkBytes = 512 * 1024;

// Distance of the software prefetch within a packed matrix; reading past its
// end is harmless.
constexpr int64_t kPrefetchBytes = 4096;
template <int64_t n_bytes>
static __attribute__((always_inline)) inline void prefetch_block(const uint8_t* p) {
#pragma GCC unroll 64
  for (int64_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(p + kPrefetchBytes + i, 0, 3);
}

// Calls Tile::run<T>(args, group, row, token) for every group of rows and every
// token; T is kMaxTile or a smaller power of two at the end. Which tile a token
// falls into changes nothing in its bits.
template <class Tile, int kMaxTile>
static inline void for_each_tile(const MatmulArgs& args, int64_t group_bytes) {
  int64_t chunk = kTokenChunkBytes / args.act_stride / kMaxTile * kMaxTile;
  if (chunk < kMaxTile) chunk = kMaxTile;
  for (int64_t first = 0; first < args.n_tokens; first += chunk) {
    const int64_t end = first + chunk < args.n_tokens ? first + chunk : args.n_tokens;
    for (int64_t row = args.row_begin; row < args.row_end; row += kGroupRows) {
      const uint8_t* group = args.w.data + row / kGroupRows * group_bytes;
      int64_t token = first;
      if constexpr (kMaxTile >= 8) {
        for (; token + 8 <= end; token += 8) Tile::template run<8>(args, group, row, token);
      }
      for (; token + 4 <= end; token += 4) Tile::template run<4>(args, group, row, token);
      if (token + 2 <= end) {
        Tile::template run<2>(args, group, row, token);
        token += 2;
      }
      if (token < end) Tile::template run<1>(args, group, row, token);
    }
  }
}

}  // namespace strata::cpu
