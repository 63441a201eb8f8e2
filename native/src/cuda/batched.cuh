// A tile of 64 packed rows times up to 64 activation rows, by int8 matrix instructions: the core of the prompt kernels.
//
// A block of 256 threads walks the columns in chunks of 256 (8 units of 32 values, or a super-block). All threads bring the
// chunk into shared memory: the weights decoded to int8, the activations' codes, the scales of both. Then warp w multiplies
// the 16 rows of group w % 4 by the 32 tokens from 32 * (w / 4) on. A unit's products are exact int32 sums of the matrix
// instruction; they go to the four float accumulators of each output in the order of contract C1, unit u to accumulator
// u % 4, so that every bit is that of the kernels for few tokens and of the CPU's.
//
// Fragments (prelude.cuh, g = lane / 4, i = lane % 4): the sums of a 16 x 8 tile are rows g, g, g + 8, g + 8 and tokens
// 2i, 2i + 1, 2i, 2i + 1. Rows of shared memory are 272 bytes apart: the eight rows of a fragment stand in different banks.
#pragma once
#include "cuda/kernel_args.h"
#include "cuda/packed.cuh"

namespace strata::cuda {

constexpr int kChunk = 256, kChunkStride = kChunk + 16;  // columns; bytes of a row in shared memory

// As mma_16x8x32 with half the columns: a[0], a[1] columns 4i .. 4i+3 of rows g and g + 8, b those rows of column g.
STRATA_DEVICE void mma_16x8x16(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
#else
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+r"(d[0]), "+r"(d[1])
      : "r"(a0), "r"(b));
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+r"(d[2]), "+r"(d[3])
      : "r"(a1), "r"(b));
#endif
}
// Exact for |n| < 2^22, as are the sums of 32 products; two plain operations, where a conversion is slow.
STRATA_DEVICE float small_to_float(int32_t n) { return __int_as_float(0x4b400000 + n) - 12582912.0f; }

struct alignas(8) Pair {
  uint32_t x, y;
};

// ---- shared memory --------------------------------------------------------------------------------------------------

// Words at multiples of 4 of a row of bytes.
STRATA_DEVICE uint32_t& word_at(uint8_t* row, int byte) { return *reinterpret_cast<uint32_t*>(row + byte); }
STRATA_DEVICE uint32_t word_at(const uint8_t* row, int byte) { return *reinterpret_cast<const uint32_t*>(row + byte); }

struct Room32 {
  alignas(16) uint8_t w[kTileRows][kChunkStride], x[kTileTokens][kChunkStride];
  float d[8][kTileRows], dx[8][kTileTokens];  // by unit of the chunk
};
struct Room256 {
  alignas(16) uint8_t w[kTileRows][kChunkStride], x[kTileTokens][kChunkStride];
  float d[kTileRows], m[kTileRows], dx[kTileTokens];
  uint32_t scales[4][kTileRows], minimums[2][kTileRows];  // as the file's words have them
  alignas(16) int16_t sums[kTileTokens][8];               // of 32 codes each
};

// ---- weights to shared memory ---------------------------------------------------------------------------------------
//
// 64 threads have a group: thread (row, h), h = 0 .. 3; a half-warp reads a chunk of 64 bytes. `to` is the row in the tile;
// chunk counts from the matrix's first column; n_units: of the chunk, fewer at the matrix's end.

template <class Q>
struct Batch;

template <>
struct Batch<PackedMxfp4> {
  using Room = Room32;
  STRATA_DEVICE int64_t codes_offset(int64_t n_cols) { return a32_pairs_offset(n_cols); }  // the order that look-ups give
  STRATA_DEVICE void stage(const uint8_t* group, int64_t, int chunk, int n_units, int row, int h, int to, Room& room) {
    const uint8_t* bundles = group + static_cast<int64_t>(2 * chunk) * kMXBundleBytes + 4 * row;
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      if (u >= n_units) break;
      const uint8_t* bundle = bundles + u / 4 * kMXBundleBytes;
      Pair codes;
      PackedMxfp4::look_up(load_stream(bundle + 64 + u % 4 * kMXBlockBytes + 64 * h), codes.x, codes.y);
      *reinterpret_cast<Pair*>(&room.w[to][32 * u + 8 * h]) = codes;
    }
    const uint32_t exponents = 2 * h < n_units ? load_stream(bundles + h / 2 * kMXBundleBytes) : 0u;
#pragma unroll
    for (int k = 0; k < 2; ++k)
      room.d[2 * h + k][to] = m_e8m0_half_to_float(static_cast<uint8_t>(exponents >> (8 * (2 * (h % 2) + k))));
  }
};

template <>
struct Batch<PackedQ8> {
  using Room = Room32;
  STRATA_DEVICE int64_t codes_offset(int64_t) { return 0; }
  STRATA_DEVICE void stage(const uint8_t* group, int64_t, int chunk, int n_units, int row, int h, int to, Room& room) {
    const uint8_t* bundles = group + static_cast<int64_t>(4 * chunk) * kQ8BundleBytes;
    uint32_t codes[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const int u = k / 2;
      if (u < n_units)
        codes[k] = load_stream(bundles + u / 2 * kQ8BundleBytes + 64 + u % 2 * kQ8BlockBytes + 256 * (k % 2) + 64 * h + 4 * row);
    }
#pragma unroll
    for (int k = 0; k < 16; ++k)
      if (k / 2 < n_units) word_at(room.w[to], 16 * k + 4 * h) = codes[k];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (2 * h + k < n_units)
        room.d[2 * h + k][to] = half_to_float(load_stream_half(bundles + h * kQ8BundleBytes + 32 * k + 2 * row));
    }
  }
};

template <>
struct Batch<PackedQ4K> {
  using Room = Room256;
  STRATA_DEVICE int64_t codes_offset(int64_t) { return 0; }
  STRATA_DEVICE void stage(const uint8_t* group, int64_t, int chunk, int, int row, int h, int to, Room& room) {
    const uint8_t* block = group + static_cast<int64_t>(chunk) * kQ4KBlockBytes;
    const uint8_t* words = block + 4 * row;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const uint32_t pair = load_stream(words + 64 * (4 + 8 * h + c));
      word_at(room.w[to], 64 * h + 4 * c) = pair & 0x0f0f0f0fu;
      word_at(room.w[to], 64 * h + 32 + 4 * c) = pair >> 4 & 0x0f0f0f0fu;
    }
    if (h == 0) {
      uint32_t v[4];
      unpack_quartet(load_stream(words + 64), load_stream(words + 128), load_stream(words + 192), v);
      room.scales[0][to] = v[0], room.scales[1][to] = v[1];
      room.minimums[0][to] = v[2], room.minimums[1][to] = v[3];
    }
    if (h == 1) room.d[to] = half_to_float(load_stream_half(block + 2 * row));
    if (h == 2) room.m[to] = half_to_float(load_stream_half(block + 32 + 2 * row));
  }
  // isum of the four outputs of a fragment: 8 sub-blocks of 32 columns.
  STRATA_DEVICE void sums(const Room& room, int row, int token, int lane, int32_t (&isum)[4][4], int n_tiles) {
    const int g = lane / 4, i = lane % 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint8_t *low = room.w[row + g] + 32 * j + 4 * i, *high = room.w[row + g + 8] + 32 * j + 4 * i;
      const uint32_t a[4] = {word_at(low, 0), word_at(high, 0), word_at(low, 16), word_at(high, 16)};
      const int32_t scale = byte_of(room.scales[j / 4][row + g], j % 4);
      const int32_t scale_high = byte_of(room.scales[j / 4][row + g + 8], j % 4);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (n >= n_tiles) break;
        const uint8_t* x = room.x[token + 8 * n + g] + 32 * j + 4 * i;
        const uint32_t b[2] = {word_at(x, 0), word_at(x, 16)};
        int32_t d[4] = {};
        mma_16x8x32(d, a, b);
        isum[n][0] += scale * d[0], isum[n][1] += scale * d[1];
        isum[n][2] += scale_high * d[2], isum[n][3] += scale_high * d[3];
      }
    }
  }
  // msum of one output.
  STRATA_DEVICE int32_t minimum(const Room& room, int row, int token) {
    const Quad packed = *reinterpret_cast<const Quad*>(room.sums[token]);
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
    int32_t sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto of_token = static_cast<int32_t>(static_cast<int16_t>(words[j / 2] >> (16 * (j % 2))));
      sum += byte_of(room.minimums[j / 4][row], middle_swapped(j % 4)) * of_token;
    }
    return sum;
  }
};

template <>
struct Batch<PackedQ6K> {
  using Room = Room256;
  STRATA_DEVICE int64_t codes_offset(int64_t) { return 0; }
  STRATA_DEVICE void stage(const uint8_t* group, int64_t n_cols, int chunk, int, int row, int h, int to, Room& room) {
    const uint8_t* words = group + q6k_d_bytes(n_cols) + static_cast<int64_t>(chunk) * kQ6KBlockBytes + 4 * row;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int half = h / 2, c = 4 * (h % 2) + k;
      const uint8_t* codes = words + 64 * (4 + 24 * half + 3 * c);
      uint32_t v[4];
      unpack_quartet(load_stream(codes), load_stream(codes + 64), load_stream(codes + 128), v);
#pragma unroll
      for (int i = 0; i < 4; ++i)  // less 32, each byte alone: no borrow can reach a neighbour
        word_at(room.w[to], 128 * half + 32 * i + 4 * c) = ((v[i] | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
    }
    room.scales[h][to] = load_stream(words + 64 * h);
    if (h == 0) room.d[to] = half_to_float(load_stream_half(group + 32 * chunk + 2 * row));
  }
  // 16 sub-blocks of 16 columns.
  STRATA_DEVICE void sums(const Room& room, int row, int token, int lane, int32_t (&isum)[4][4], int n_tiles) {
    const int g = lane / 4, i = lane % 4;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const uint32_t a0 = word_at(room.w[row + g], 16 * j + 4 * i), a1 = word_at(room.w[row + g + 8], 16 * j + 4 * i);
      const int32_t scale = signed_byte_of(room.scales[j / 4][row + g], middle_swapped(j % 4));
      const int32_t scale_high = signed_byte_of(room.scales[j / 4][row + g + 8], middle_swapped(j % 4));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (n >= n_tiles) break;
        int32_t d[4] = {};
        mma_16x8x16(d, a0, a1, word_at(room.x[token + 8 * n + g], 16 * j + 4 * i));
        isum[n][0] += scale * d[0], isum[n][1] += scale * d[1];
        isum[n][2] += scale_high * d[2], isum[n][3] += scale_high * d[3];
      }
    }
  }
  STRATA_DEVICE int32_t minimum(const Room&, int, int) { return 0; }
};

// ---- activations to shared memory -----------------------------------------------------------------------------------

// The codes of columns [256 * chunk, + 256) from `codes_offset` on; columns past the end are left as they are.
template <class Room>
STRATA_DEVICE void stage_codes(const uint8_t* const (&acts)[kTileTokens], int64_t codes_offset, int64_t n_cols, int chunk,
                               Room& room) {
  const int64_t left = n_cols - static_cast<int64_t>(chunk) * kChunk;
#pragma unroll
  for (int k = 0; k < kTileTokens * kChunk / 16 / kBatchThreads; ++k) {
    const int at = k * kBatchThreads + threadIdx.x, token = at / 16, byte = at % 16 * 16;
    if (byte < left)
      *reinterpret_cast<Quad*>(&room.x[token][byte]) =
          load_quad(acts[token] + codes_offset + static_cast<int64_t>(chunk) * kChunk + byte);
  }
}
STRATA_DEVICE void stage_scales(const uint8_t* const (&acts)[kTileTokens], int64_t n_cols, int chunk, int n_units,
                                Room32& room) {
  for (int at = threadIdx.x; at < 8 * kTileTokens; at += kBatchThreads) {
    const int token = at / 8, u = at % 8;
    if (u < n_units)
      room.dx[u][token] = reinterpret_cast<const float*>(acts[token] + a32_d_offset(n_cols))[8 * chunk + u];
  }
}
STRATA_DEVICE void stage_scales(const uint8_t* const (&acts)[kTileTokens], int64_t n_cols, int chunk, int, Room256& room) {
  const int token = threadIdx.x % kTileTokens;
  if (threadIdx.x < kTileTokens)
    room.dx[token] = reinterpret_cast<const float*>(acts[token] + a256_d_offset(n_cols))[chunk];
  else if (threadIdx.x < 2 * kTileTokens)
    *reinterpret_cast<Quad*>(room.sums[token]) = load_quad(acts[token] + a256_sum32_offset(n_cols) + 16 * chunk);
}

// ---- products of one chunk ------------------------------------------------------------------------------------------

// Accumulators of a warp's 16 x 32 outputs: acc[j][n] are those of 16 x 8 tile n.
using TileSums = float[4][4][4];

template <class Q>
STRATA_DEVICE void chunk_products(const Room32& room, int row, int token, int n_units, int n_tiles, TileSums& acc) {
  const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    if (u >= n_units) break;
    const uint8_t *low = room.w[row + g] + 32 * u + 4 * i, *high = room.w[row + g + 8] + 32 * u + 4 * i;
    const uint32_t a[4] = {word_at(low, 0), word_at(high, 0), word_at(low, 16), word_at(high, 16)};
    const float d = room.d[u][row + g], d_high = room.d[u][row + g + 8];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n >= n_tiles) break;
      const uint8_t* x = room.x[token + 8 * n + g] + 32 * u + 4 * i;
      const uint32_t b[2] = {word_at(x, 0), word_at(x, 16)};
      int32_t sum[4] = {};
      mma_16x8x32(sum, a, b);
      const float dx = room.dx[u][token + 8 * n + 2 * i], next_dx = room.dx[u][token + 8 * n + 2 * i + 1];
      float(&to)[4] = acc[u % 4][n];
      to[0] = v_fma(small_to_float(sum[0]), d * dx, to[0]);
      to[1] = v_fma(small_to_float(sum[1]), d * next_dx, to[1]);
      to[2] = v_fma(small_to_float(sum[2]), d_high * dx, to[2]);
      to[3] = v_fma(small_to_float(sum[3]), d_high * next_dx, to[3]);
    }
  }
}
// acc: of the accumulator that the super-block belongs to.
template <class Q>
STRATA_DEVICE void block_products(const Room256& room, int row, int token, int n_tiles, float (&acc)[4][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
  int32_t isum[4][4] = {};
  Batch<Q>::sums(room, row, token, lane, isum, n_tiles);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    if (n >= n_tiles) break;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int r = row + g + k / 2 * 8, t = token + 8 * n + 2 * i + k % 2;
      const float dx = room.dx[t];
      acc[n][k] = v_fma(static_cast<float>(isum[n][k]), room.d[r] * dx, acc[n][k]);
      if (Q::kHasMin) acc[n][k] = v_fma(-static_cast<float>(Batch<Q>::minimum(room, r, t)), room.m[r] * dx, acc[n][k]);
    }
  }
}

// ---- the tile -------------------------------------------------------------------------------------------------------

// y[n][k]: outputs of this thread, k = 0 .. 3 as in a fragment. Every thread of the block calls it; acts: rows of the tile's
// tokens, all of them valid, the first n_tokens different.
template <class Q>
STRATA_DEVICE void multiply_tile(const uint8_t* w, int64_t n_cols, int first_row, int n_rows,
                                 const uint8_t* const (&acts)[kTileTokens], int n_tokens, typename Batch<Q>::Room& room,
                                 float (&y)[4][4]) {
  const int thread = threadIdx.x, warp = thread / 32, row = 16 * (warp % 4), token = 32 * (warp / 4);
  const int n_tiles = (n_tokens - token + 7) / 8, last_group = (n_rows - 1) / kGroupRows;
  const int own_group = first_row / kGroupRows + thread / 64;
  const uint8_t* group = w + static_cast<int64_t>(own_group < last_group ? own_group : last_group) * Q::group_bytes(n_cols);
  const int n_chunks = static_cast<int>((n_cols + kChunk - 1) / kChunk), units = static_cast<int>(n_cols / Q::kUnit);
  TileSums acc = {};
  for (int first = 0; first < n_chunks; first += 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int chunk = first + j;
      if (chunk >= n_chunks) break;
      constexpr int kUnits = kChunk / Q::kUnit;
      const int n_units = units - chunk * kUnits < kUnits ? units - chunk * kUnits : kUnits;
      __syncthreads();  // the last chunk has been used
      Batch<Q>::stage(group, n_cols, chunk, n_units, thread % 16, thread / 16 % 4, thread / 64 * 16 + thread % 16, room);
      stage_codes(acts, Batch<Q>::codes_offset(n_cols), n_cols, chunk, room);
      stage_scales(acts, n_cols, chunk, n_units, room);
      __syncthreads();
      if constexpr (Q::kUnit == 32)
        chunk_products<Q>(room, row, token, n_units, n_tiles, acc);
      else
        block_products<Q>(room, row, token, n_tiles, acc[j]);
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int k = 0; k < 4; ++k) y[n][k] = (acc[0][n][k] + acc[2][n][k]) + (acc[1][n][k] + acc[3][n][k]);
}
// Row and token, inside the tile, of output k of 16 x 8 tile n.
STRATA_DEVICE int tile_row(int k) { return 16 * (static_cast<int>(threadIdx.x) / 32 % 4) + threadIdx.x % 32 / 4 + k / 2 * 8; }
STRATA_DEVICE int tile_token(int n, int k) {
  return 32 * (static_cast<int>(threadIdx.x) / 128) + 8 * n + threadIdx.x % 4 * 2 + k % 2;
}

}  // namespace strata::cuda
