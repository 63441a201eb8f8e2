// Q8_0 and MXFP4 rows in and out of the packed layout of pack.h.
#include "cpu/pack.h"
#include "cpu/pack_words.h"

namespace strata::cpu {
namespace {

constexpr int64_t kFileQ8 = 34;  // f16 d, 32 int8
constexpr int64_t kFileMX = 17;  // exponent byte, 16 bytes of nibbles (low: weights 0..15, high: 16..31)

// Where block u of a group has its scales (chunk of its bundle) and its codes.
struct BlockPlace {
  int64_t scales, codes;
};
BlockPlace block_place(int64_t u, int64_t bundle, int64_t block_bytes) {
  const int64_t first = u / bundle * bundle;
  const int64_t start = first / bundle * 64 + first * block_bytes;
  return {start, start + 64 + (u - first) * block_bytes};
}

}  // namespace

void pack_q8_row(const uint8_t* row, int64_t n_cols, int64_t lane, uint8_t* group) {
  for (int64_t u = 0; u < n_cols / 32; u++, row += kFileQ8) {
    const BlockPlace at = block_place(u, kQ8Bundle, kQ8BlockBytes);
    store_u16(group + at.scales + 32 * (u % kQ8Bundle) + 2 * lane, load_u16(row));
    for (int64_t c = 0; c < 8; c++) store_u32(group + at.codes + 64 * c + 4 * lane, load_u32(row + 2 + 4 * c));
  }
}

void unpack_q8_row(const uint8_t* group, int64_t n_cols, int64_t lane, uint8_t* row) {
  for (int64_t u = 0; u < n_cols / 32; u++, row += kFileQ8) {
    const BlockPlace at = block_place(u, kQ8Bundle, kQ8BlockBytes);
    store_u16(row, load_u16(group + at.scales + 32 * (u % kQ8Bundle) + 2 * lane));
    for (int64_t c = 0; c < 8; c++) store_u32(row + 2 + 4 * c, load_u32(group + at.codes + 64 * c + 4 * lane));
  }
}

void pack_mx_row(const uint8_t* row, int64_t n_cols, int64_t lane, uint8_t* group) {
  for (int64_t u = 0; u < n_cols / 32; u++, row += kFileMX) {
    const BlockPlace at = block_place(u, kMXBundle, kMXBlockBytes);
    group[at.scales + 4 * lane + u % kMXBundle] = row[0];
    for (int64_t c = 0; c < 4; c++) store_u32(group + at.codes + 64 * c + 4 * lane, load_u32(row + 1 + 4 * c));
  }
}

void unpack_mx_row(const uint8_t* group, int64_t n_cols, int64_t lane, uint8_t* row) {
  for (int64_t u = 0; u < n_cols / 32; u++, row += kFileMX) {
    const BlockPlace at = block_place(u, kMXBundle, kMXBlockBytes);
    row[0] = group[at.scales + 4 * lane + u % kMXBundle];
    for (int64_t c = 0; c < 4; c++) store_u32(row + 1 + 4 * c, load_u32(group + at.codes + 64 * c + 4 * lane));
  }
}

}  // namespace strata::cpu
