// Blocks of 32 (NVFP4: 64 in four units of 16) to integers: value[i] = d * q[i] + m, activations in form A32.
//
// A decoder reads one file block. kValues and kBytes are the block's, kUnit the values that share one scale; d and m
// have kValues / kUnit entries. Ranges of q and the proof that sums fit: docs/numerics.md. Internal linkage: the sources
// of every tier include their own copy.
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

// n bytes of two codes: low nibbles go to q[0..n), high nibbles to q[n..2n). n is 8 or 16.
template <int n>
STRATA_LANE void look_up_nibbles(const int8_t (&codes)[16], const uint8_t* bytes, int8_t* q) {
#if defined(__AVX2__)
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)), low = _mm_set1_epi8(15);
  if (n == 16) {
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_shuffle_epi8(table, _mm_and_si128(b, low)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16),
                     _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(b, 4), low)));
    return;
  }
  const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  const __m128i both = _mm_unpacklo_epi64(_mm_and_si128(b, low), _mm_and_si128(_mm_srli_epi16(b, 4), low));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_shuffle_epi8(table, both));
#else
  for (int i = 0; i < n; ++i) {
    q[i] = codes[bytes[i] & 15];
    q[n + i] = codes[bytes[i] >> 4];
  }
#endif
}
// The same without a table: the code is the nibble plus `offset`.
STRATA_LANE void unpack_nibbles(const uint8_t* bytes, int offset, int8_t* q) {
  for (int i = 0; i < 16; ++i) q[i] = static_cast<int8_t>((bytes[i] & 15) + offset);
  for (int i = 0; i < 16; ++i) q[16 + i] = static_cast<int8_t>((bytes[i] >> 4) + offset);
}
// Nibbles and a fifth bit from the 32 bits of `high`.
STRATA_LANE void unpack_five_bits(const uint8_t* bytes, uint32_t high, int offset, int8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<int8_t>(((bytes[i] & 15) | static_cast<int>(high >> i & 1) << 4) + offset);
    q[16 + i] = static_cast<int8_t>(((bytes[i] >> 4) | static_cast<int>(high >> (i + 16) & 1) << 4) + offset);
  }
}

struct DecodeQ4_0 {
  static constexpr int32_t kType = 2;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 18;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int8_t* q, float* d, float*) {
    d[0] = load_half(block);
    unpack_nibbles(block + 2, -8, q);
  }
};
struct DecodeQ4_1 {
  static constexpr int32_t kType = 3;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 20;
  static constexpr bool kHasMin = true;
  STRATA_LANE void decode(const uint8_t* block, int8_t* q, float* d, float* m) {
    d[0] = load_half(block);
    m[0] = load_half(block + 2);
    unpack_nibbles(block + 4, 0, q);
  }
};
struct DecodeQ5_0 {
  static constexpr int32_t kType = 6;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 22;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int8_t* q, float* d, float*) {
    d[0] = load_half(block);
    unpack_five_bits(block + 6, load_as<uint32_t>(block + 2), -16, q);
  }
};
struct DecodeQ5_1 {
  static constexpr int32_t kType = 7;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 24;
  static constexpr bool kHasMin = true;
  STRATA_LANE void decode(const uint8_t* block, int8_t* q, float* d, float* m) {
    d[0] = load_half(block);
    m[0] = load_half(block + 2);
    unpack_five_bits(block + 8, load_as<uint32_t>(block + 4), 0, q);
  }
};
struct DecodeQ8_0 {
  static constexpr int32_t kType = 8;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 34;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int8_t* q, float* d, float*) {
    d[0] = load_half(block);
    memcpy(q, block + 2, 32);
  }
};
struct DecodeIq4Nl {
  static constexpr int32_t kType = 20;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 18;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int8_t* q, float* d, float*) {
    d[0] = load_half(block);
    look_up_nibbles<16>(kCodesNl, block + 2, q);
  }
};
struct DecodeMxfp4 {
  static constexpr int32_t kType = 39;
  static constexpr int kValues = 32, kUnit = 32, kBytes = 17;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int8_t* q, float* d, float*) {
    d[0] = m_e8m0_half_to_float(block[0]);
    look_up_nibbles<16>(kCodesFp4, block + 1, q);
  }
};
struct DecodeNvfp4 {
  static constexpr int32_t kType = 40;
  static constexpr int kValues = 64, kUnit = 16, kBytes = 36;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, int8_t* q, float* d, float*) {
    for (int s = 0; s < 4; ++s) {
      d[s] = m_ue4m3_half_to_float(block[s]);
      look_up_nibbles<8>(kCodesFp4, block + 4 + 8 * s, q + 16 * s);
    }
  }
};

}  // namespace
}  // namespace strata::cpu
