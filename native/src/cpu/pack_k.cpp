// Q4_K and Q6_K rows in and out of the packed layout of pack.h.
#include "cpu/pack.h"
#include "cpu/pack_words.h"

namespace strata::cpu {
namespace {

constexpr int64_t kFileQ4K = 144;  // f16 d, f16 dmin, 12 bytes of sub-scales, 128 bytes of nibbles
constexpr int64_t kFileQ6K = 210;  // 128 bytes of low nibbles, 64 of high pairs,
                                   // 16 int8 sub-scales, f16 d

// The file's 12 bytes: sc 0..3 | top bits of sc 4..7; m 0..3 | top bits of
// m 4..7; low nibbles of sc 4..7 and m 4..7.
void q4k_scales_pack(const uint8_t* file, uint32_t w[3]) {
  const uint32_t f0 = load_u32(file), f1 = load_u32(file + 4), f2 = load_u32(file + 8);
  const uint32_t v[4] = {
      f0 & 0x3f3f3f3fu,
      (f2 & 0x0f0f0f0fu) | (f0 >> 2 & 0x30303030u),
      swap_middle(f1 & 0x3f3f3f3fu),
      swap_middle((f2 >> 4 & 0x0f0f0f0fu) | (f1 >> 2 & 0x30303030u)),
  };
  quartet_pack(v, w);
}

void q4k_scales_unpack(const uint32_t w[3], uint8_t* file) {
  uint32_t v[4];
  quartet_unpack(w, v);
  const uint32_t m_low = swap_middle(v[2]), m_high = swap_middle(v[3]);
  store_u32(file, v[0] | (v[1] & 0x30303030u) << 2);
  store_u32(file + 4, m_low | (m_high & 0x30303030u) << 2);
  store_u32(file + 8, (v[1] & 0x0f0f0f0fu) | (m_high & 0x0f0f0f0fu) << 4);
}

// The four 6-bit code words of position c in half h: k = 128h + 32i + 4c for i
// = 0..3.
void q6k_codes(const uint8_t* file, int64_t h, int64_t c, uint32_t v[4]) {
  const uint32_t a = load_u32(file + 64 * h + 4 * c), b = load_u32(file + 64 * h + 32 + 4 * c);
  const uint32_t t = load_u32(file + 128 + 32 * h + 4 * c);
  v[0] = (a & 0x0f0f0f0fu) | (t & 0x03030303u) << 4;
  v[1] = (b & 0x0f0f0f0fu) | (t >> 2 & 0x03030303u) << 4;
  v[2] = (a >> 4 & 0x0f0f0f0fu) | (t >> 4 & 0x03030303u) << 4;
  v[3] = (b >> 4 & 0x0f0f0f0fu) | (t >> 6 & 0x03030303u) << 4;
}

}  // namespace

void pack_q4k_row(const uint8_t* row, int64_t n_cols, int64_t lane, uint8_t* group) {
  for (int64_t u = 0; u < n_cols / 256; u++, row += kFileQ4K, group += kQ4KBlockBytes) {
    store_u16(group + 2 * lane, load_u16(row));
    store_u16(group + 32 + 2 * lane, load_u16(row + 2));
    uint32_t w[3];
    q4k_scales_pack(row + 4, w);
    uint8_t* words = group + 4 * lane;
    for (int64_t i = 0; i < 3; i++) store_u32(words + 64 * (1 + i), w[i]);
    // The file has 32 bytes for 64 weights, low nibbles first: word for word
    // the order of the chunks.
    for (int64_t i = 0; i < 32; i++) store_u32(words + 64 * (4 + i), load_u32(row + 16 + 4 * i));
  }
}

void unpack_q4k_row(const uint8_t* group, int64_t n_cols, int64_t lane, uint8_t* row) {
  for (int64_t u = 0; u < n_cols / 256; u++, row += kFileQ4K, group += kQ4KBlockBytes) {
    store_u16(row, load_u16(group + 2 * lane));
    store_u16(row + 2, load_u16(group + 32 + 2 * lane));
    const uint8_t* words = group + 4 * lane;
    const uint32_t w[3] = {load_u32(words + 64), load_u32(words + 128), load_u32(words + 192)};
    q4k_scales_unpack(w, row + 4);
    for (int64_t i = 0; i < 32; i++) store_u32(row + 16 + 4 * i, load_u32(words + 64 * (4 + i)));
  }
}

void pack_q6k_row(const uint8_t* row, int64_t n_cols, int64_t lane, uint8_t* group) {
  uint8_t* block = group + q6k_d_bytes(n_cols) + 4 * lane;
  for (int64_t u = 0; u < n_cols / 256; u++, row += kFileQ6K, block += kQ6KBlockBytes) {
    store_u16(group + 32 * u + 2 * lane, load_u16(row + 208));
    for (int64_t i = 0; i < 4; i++) store_u32(block + 64 * i, swap_middle(load_u32(row + 192 + 4 * i)));
    for (int64_t q = 0; q < 16; q++) {
      uint32_t v[4], w[3];
      q6k_codes(row, q / 8, q % 8, v);
      quartet_pack(v, w);
      for (int64_t i = 0; i < 3; i++) store_u32(block + 64 * (4 + 3 * q + i), w[i]);
    }
  }
}

void unpack_q6k_row(const uint8_t* group, int64_t n_cols, int64_t lane, uint8_t* row) {
  const uint8_t* block = group + q6k_d_bytes(n_cols) + 4 * lane;
  for (int64_t u = 0; u < n_cols / 256; u++, row += kFileQ6K, block += kQ6KBlockBytes) {
    store_u16(row + 208, load_u16(group + 32 * u + 2 * lane));
    for (int64_t i = 0; i < 4; i++) store_u32(row + 192 + 4 * i, swap_middle(load_u32(block + 64 * i)));
    for (int64_t q = 0; q < 16; q++) {
      const uint8_t* words = block + 64 * (4 + 3 * q);
      const uint32_t w[3] = {load_u32(words), load_u32(words + 64), load_u32(words + 128)};
      uint32_t v[4];
      quartet_unpack(w, v);
      const int64_t h = q / 8, c = q % 8;
      store_u32(row + 64 * h + 4 * c, (v[0] & 0x0f0f0f0fu) | (v[2] & 0x0f0f0f0fu) << 4);
      store_u32(row + 64 * h + 32 + 4 * c, (v[1] & 0x0f0f0f0fu) | (v[3] & 0x0f0f0f0fu) << 4);
      uint32_t top = 0;
      for (int i = 0; i < 4; i++) top |= (v[i] >> 4 & 0x03030303u) << 2 * i;
      store_u32(row + 128 + 32 * h + 4 * c, top);
    }
  }
}

}  // namespace strata::cpu
