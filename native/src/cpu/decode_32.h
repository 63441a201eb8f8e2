// Blocks of 32 (NVFP4: 64 in four units of 16) to integers: value[i] = d * q[i] + m, activations in form A32.
//
// A decoder reads one file block; q is written as int16, ready for the products. kValues and kBytes are the block's, kUnit
// the values that share one scale; d and m have kValues / kUnit entries. Ranges of q and the proof that sums fit:
// docs/numerics.md. Internal linkage: the sources of every tier include their own copy.
#pragma once
#include "cpu/simd.h"

namespace strata::cpu {
namespace {

STRATA_LANE float load_half(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, sizeof h);
#if defined(__F16C__)
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
#else
  return m_half_to_float(h);
#endif
}
template <class T>
STRATA_LANE T load_as(const uint8_t* p) {
  T value;
  memcpy(&value, p, sizeof value);
  return value;
}

constexpr int8_t kCodesFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // E2M1, doubled
constexpr int8_t kCodesNl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

#if defined(__AVX2__)
STRATA_LANE __m128i load_16_bytes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
STRATA_LANE __m128i low_nibbles(__m128i b) { return _mm_and_si128(b, _mm_set1_epi8(15)); }
STRATA_LANE __m128i high_nibbles(__m128i b) { return _mm_and_si128(_mm_srli_epi16(b, 4), _mm_set1_epi8(15)); }
STRATA_LANE void store_wide(int16_t* q, __m128i bytes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_cvtepi8_epi16(bytes));
}
// 0x10 in each byte whose bit of the 16 is set.
STRATA_LANE __m128i fifth_bits(uint32_t bits) {
  const __m128i select = _mm_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  const __m128i spread = _mm_shuffle_epi8(_mm_cvtsi32_si128(static_cast<int>(bits)),
                                          _mm_set_epi8(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0));
  return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(spread, select), select), _mm_set1_epi8(16));
}
#endif

// 16 bytes of two codes: low nibbles go to q[0..16), high nibbles to q[16..32).
STRATA_LANE void look_up_nibbles(const int8_t (&codes)[16], const uint8_t* bytes, int16_t* q) {
#if defined(__AVX2__)
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)), b = load_16_bytes(bytes);
  store_wide(q, _mm_shuffle_epi8(table, low_nibbles(b)));
  store_wide(q + 16, _mm_shuffle_epi8(table, high_nibbles(b)));
#else
  for (int i = 0; i < 16; ++i) {
    q[i] = codes[bytes[i] & 15];
    q[16 + i] = codes[bytes[i] >> 4];
  }
#endif
}
// The same without a table: the code is the nibble plus `offset`.
STRATA_LANE void unpack_nibbles(const uint8_t* bytes, int offset, int16_t* q) {
#if defined(__AVX2__)
  const __m128i b = load_16_bytes(bytes), shift = _mm_set1_epi8(static_cast<char>(offset));
  store_wide(q, _mm_add_epi8(low_nibbles(b), shift));
  store_wide(q + 16, _mm_add_epi8(high_nibbles(b), shift));
#else
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<int16_t>((bytes[i] & 15) + offset);
    q[16 + i] = static_cast<int16_t>((bytes[i] >> 4) + offset);
  }
#endif
}
// Nibbles and a fifth bit from the 32 bits of `high`.
STRATA_LANE void unpack_five_bits(const uint8_t* bytes, uint32_t high, int offset, int16_t* q) {
#if defined(__AVX2__)
  const __m128i b = load_16_bytes(bytes), shift = _mm_set1_epi8(static_cast<char>(offset));
  store_wide(q, _mm_add_epi8(_mm_or_si128(low_nibbles(b), fifth_bits(high & 0xffff)), shift));
  store_wide(q + 16, _mm_add_epi8(_mm_or_si128(high_nibbles(b), fifth_bits(high >> 16)), shift));
#else
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<int16_t>(((bytes[i] & 15) | static_cast<int>(high >> i & 1) << 4) + offset);
    q[16 + i] = static_cast<int16_t>(((bytes[i] >> 4) | static_cast<int>(high >> (i + 16) & 1) << 4) + offset);
  }
#endif
}

struct DecodeQ4_0 {
  static constexpr int32_t kType = 2;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 18;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int16_t* q, float* d, float*) {
    d[0] = load_half(block);
    unpack_nibbles(block + 2, -8, q);
  }
};
struct DecodeQ4_1 {
  static constexpr int32_t kType = 3;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 20;
  static constexpr bool kHasMin = true;
  STRATA_LANE void decode(const uint8_t* block, int16_t* q, float* d, float* m) {
    d[0] = load_half(block);
    m[0] = load_half(block + 2);
    unpack_nibbles(block + 4, 0, q);
  }
};
struct DecodeQ5_0 {
  static constexpr int32_t kType = 6;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 22;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int16_t* q, float* d, float*) {
    d[0] = load_half(block);
    unpack_five_bits(block + 6, load_as<uint32_t>(block + 2), -16, q);
  }
};
struct DecodeQ5_1 {
  static constexpr int32_t kType = 7;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 24;
  static constexpr bool kHasMin = true;
  STRATA_LANE void decode(const uint8_t* block, int16_t* q, float* d, float* m) {
    d[0] = load_half(block);
    m[0] = load_half(block + 2);
    unpack_five_bits(block + 8, load_as<uint32_t>(block + 4), 0, q);
  }
};
struct DecodeQ8_0 {
  static constexpr int32_t kType = 8;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 34;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int16_t* q, float* d, float*) {
    d[0] = load_half(block);
    for (int i = 0; i < 32; ++i) q[i] = static_cast<int8_t>(block[2 + i]);
  }
};
struct DecodeIq4Nl {
  static constexpr int32_t kType = 20;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 18;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int16_t* q, float* d, float*) {
    d[0] = load_half(block);
    look_up_nibbles(kCodesNl, block + 2, q);
  }
};
struct DecodeMxfp4 {
  static constexpr int32_t kType = 39;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 17;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int16_t* q, float* d, float*) {
    d[0] = m_e8m0_half_to_float(block[0]);
    look_up_nibbles(kCodesFp4, block + 1, q);
  }
};
struct DecodeNvfp4 {
  static constexpr int32_t kType = 40;
  static constexpr int kValues = 64, kUnit = 16, kBytes = 36;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int16_t* q, float* d, float*) {
    for (int s = 0; s < 4; ++s) d[s] = m_ue4m3_half_to_float(block[s]);
    for (int pair = 0; pair < 2; ++pair) {  // eight bytes a unit: its low nibbles, then its high ones
      const uint8_t* bytes = block + 4 + 16 * pair;
      int16_t* out = q + 32 * pair;
#if defined(__AVX2__)
      const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kCodesFp4)), b = load_16_bytes(bytes);
      const __m128i low = _mm_shuffle_epi8(table, low_nibbles(b)), high = _mm_shuffle_epi8(table, high_nibbles(b));
      store_wide(out, _mm_unpacklo_epi64(low, high));
      store_wide(out + 16, _mm_unpackhi_epi64(low, high));
#else
      for (int i = 0; i < 16; ++i) {
        out[i / 8 * 16 + i % 8] = kCodesFp4[bytes[i] & 15];
        out[i / 8 * 16 + 8 + i % 8] = kCodesFp4[bytes[i] >> 4];
      }
#endif
    }
  }
};

}  // namespace
}  // namespace strata::cpu
