// The packed layouts: 16 weight rows interleaved, one 32-bit word of every 64-byte chunk for each row.
//
// A packed matrix is ceil(n_rows / 16) groups, one after the other; group g holds rows 16g .. 16g+15. A group starts at a
// multiple of 64 bytes. Rows past n_rows in the last group are all zero bytes: scale 0 (MXFP4: exponent 0 with codes 0),
// computed like the others and never written out. No type loses a weight bit: unpack_row gives the file's bytes back.
//
// Words: "chunk" = 64 bytes = 16 words of 32 bits, word r belongs to row r of the group, bytes little-endian.
// x[k] below is weight k of the block; a word of "four codes from k" holds those of x[k] .. x[k+3] in its bytes 0 .. 3.
// NB = n_cols / block. Each type has its arithmetic unit u (contract C1), noted with the argument that int32 suffices;
// q8 and dx are the activation's codes and scale.
//
// Q4_K (block 256, unit = block; x = d * sc[j] * q - dmin * m[j], j = k / 32)
//   block: 2,304 bytes = 36 chunks; group = NB blocks.
//     chunk 0       16 x f16 d, then 16 x f16 dmin
//     chunks 1..3   words W0, W1, W2 with the sub-scales, see "6-bit quartet":
//                   fields sc[0..3], sc[4..7], (m0, m2, m1, m3), top bits: (m4, m6, m5, m7)
//                   (the order of the minimums lets a mask of 0x00ff00ff give the int16 pairs m0 m1 and m2 m3)
//     chunks 4..35  chunk 4 + 8g + c (g = 0..3, c = 0..7): low nibbles = four codes from k = 64g + 4c,
//                   high nibbles = four codes from k = 64g + 32 + 4c
//   isum = sum_j sc[j] * sum q * q8: |.| <= 8 * 63 * 32 * 15 * 127 = 30,723,840.
//   msum = sum_j m[j] * sum q8: |.| <= 8 * 63 * 32 * 127 = 2,048,256.
//   a = fma(float(isum), d * dx, a), then a = fma(-float(msum), dmin * dx, a): the minimum is subtracted.
//
// Q6_K (block 256, unit = block; x = d * sc[j] * (q - 32), j = k / 16, sc is int8)
//   group: d section of NB x 32 bytes (16 x f16 for each block), padded to 64; then NB blocks of 3,328 bytes = 52 chunks.
//     chunks 0..3   words of int8 sub-scales: chunk i holds sc[4i], sc[4i+2], sc[4i+1], sc[4i+3] in bytes 0..3
//     chunks 4..51  chunk 4 + 24h + 3c + i (h = 0..1, c = 0..7, i = 0..2): 6-bit quartets with q as the file has it:
//                   fields of word i: four codes from k = 128h + 32i + 4c; top bits: four codes from k = 128h + 96 + 4c
//   isum = sum_j sc[j] * sum (q - 32) * q8: |.| <= 16 * 128 * 16 * 32 * 127 = 133,169,152. With unsigned codes the part
//   sum_j sc[j] * sum q * q8 is <= 16 * 128 * 16 * 63 * 127 = 262,176,768, and 32 * sum_j sc[j] * sum q8 <= 133,169,152.
//
// Q8_0 (block 32, unit = block; x = d * q)
//   group: bundles of two blocks: one chunk of scales (16 x f16 of the first block, 16 x f16 of the second; zero where the
//   last bundle has one block only), then for each block 8 chunks, chunk c = four int8 codes from k = 4c.
//   isum: |.| <= 32 * 128 * 127 = 520,192; with codes + 128: 32 * 255 * 127 = 1,036,320.
//
// MXFP4 (block 32, unit = block; x = 2^(e-128) * code, code in 0 1 2 3 4 6 8 12 and their negatives: doubled E2M1)
//   group: bundles of four blocks: one chunk of scales (word r: exponent bytes of the four blocks; zero where the last
//   bundle has fewer blocks), then for each block 4 chunks: low nibbles of chunk c = four codes from k = 4c, high nibbles =
//   four codes from k = 16 + 4c. Nibbles as in the file: sign bit 8, magnitude index 0..7.
//   isum: |.| <= 32 * 12 * 127 = 48,768; with codes + 12: 32 * 24 * 127 = 97,536.
//
// 6-bit quartet: three words hold twelve 6-bit fields, and the two top bits of every byte make four more:
//   field bytes of word i: W_i & 0x3f3f3f3f
//   top-bit bytes: (W0 >> 6 & 0x03030303) | (W1 >> 4 & 0x0c0c0c0c) | (W2 >> 2 & 0x30303030)
// so 16 values of 6 bits take 12 bytes, and each group of four comes out as one word of bytes.
#pragma once
#include <cstdint>

#include "cpu/act.h"
#include "cpu/kernels.h"

namespace strata::cpu {

// GGML type numbers of the interleaved types.
constexpr int32_t kTypeQ8_0 = 8, kTypeQ4_K = 12, kTypeQ6_K = 14, kTypeMXFP4 = 39;

constexpr int64_t kQ4KBlockBytes = 16 * 144;
constexpr int64_t kQ6KBlockBytes = 16 * 208;  // without d
constexpr int64_t kQ8BlockBytes = 16 * 32;    // without scales
constexpr int64_t kMXBlockBytes = 16 * 16;    // without scales
constexpr int64_t kQ8Bundle = 2, kMXBundle = 4;

// Bytes of one group of 16 rows.
static constexpr int64_t q4k_group_bytes(int64_t n_cols) { return n_cols / 256 * kQ4KBlockBytes; }
static constexpr int64_t q6k_d_bytes(int64_t n_cols) { return align64(n_cols / 256 * 32); }
static constexpr int64_t q6k_group_bytes(int64_t n_cols) { return q6k_d_bytes(n_cols) + n_cols / 256 * kQ6KBlockBytes; }
static constexpr int64_t q8_group_bytes(int64_t n_cols) {
  return (n_cols / 32 + kQ8Bundle - 1) / kQ8Bundle * 64 + n_cols / 32 * kQ8BlockBytes;
}
static constexpr int64_t mx_group_bytes(int64_t n_cols) {
  return (n_cols / 32 + kMXBundle - 1) / kMXBundle * 64 + n_cols / 32 * kMXBlockBytes;
}

// True when the type has a packed layout of its own; group_bytes is 0 for the
// others.
bool type_interleaved(int32_t type);
int64_t group_bytes(int32_t type, int64_t n_cols);

// The inverse of pack_rows for one row: writes the file's bytes of `row`.
// `packed` is the start of the matrix.
void unpack_row(int32_t type, const uint8_t* packed, int64_t row, int64_t n_cols, uint8_t* file_row);

// One row of one group, in and out of the layout; `lane` is the row's place
// 0..15. For pack.cpp.
void pack_q4k_row(const uint8_t* row, int64_t n_cols, int64_t lane, uint8_t* group);
void pack_q6k_row(const uint8_t* row, int64_t n_cols, int64_t lane, uint8_t* group);
void pack_q8_row(const uint8_t* row, int64_t n_cols, int64_t lane, uint8_t* group);
void pack_mx_row(const uint8_t* row, int64_t n_cols, int64_t lane, uint8_t* group);
void unpack_q4k_row(const uint8_t* group, int64_t n_cols, int64_t lane, uint8_t* row);
void unpack_q6k_row(const uint8_t* group, int64_t n_cols, int64_t lane, uint8_t* row);
void unpack_q8_row(const uint8_t* group, int64_t n_cols, int64_t lane, uint8_t* row);
void unpack_mx_row(const uint8_t* group, int64_t n_cols, int64_t lane, uint8_t* row);

}  // namespace strata::cpu
