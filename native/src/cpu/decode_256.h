// Super-blocks of 256 to integers: value[i] = (d * scale[i / 16]) * q[i] - dmin * minimum[i / 16], form A256.
//
// Ranges and the proof that sums fit: docs/numerics.md. Internal linkage: each tier's sources include their own copy.
#pragma once
#include "cpu/decode_32.h"
#include "cpu/iq_tables.h"

namespace strata::cpu {
namespace {

struct SuperBlock {
  alignas(64) int8_t q[256];
  alignas(32) int16_t scale[16];    // of each 16 values
  alignas(32) int16_t minimum[16];  // not set where the type has none
  float d, dmin;
};

// ---- K formats ------------------------------------------------------------------------------------------------------

struct DecodeQ2K {  // scales[16] qs[64] d dmin
  static constexpr int32_t kType = 10;
  static constexpr int kBytes = 84;
  static constexpr bool kHasMin = true;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block + 80);
    out.dmin = load_half(block + 82);
    for (int g = 0; g < 16; ++g) {
      out.scale[g] = block[g] & 15;
      out.minimum[g] = block[g] >> 4;
    }
    for (int part = 0; part < 8; ++part) {  // 128 values from 32 bytes, two bits each
      const uint8_t* bytes = block + 16 + part / 4 * 32;
      const int shift = part % 4 * 2;
      for (int i = 0; i < 32; ++i) out.q[32 * part + i] = static_cast<int8_t>(bytes[i] >> shift & 3);
    }
  }
};

struct DecodeQ3K {  // hmask[32] qs[64] scales[12] d
  static constexpr int32_t kType = 11;
  static constexpr int kBytes = 110;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block + 108);
    const uint8_t* s = block + 96;
    for (int g = 0; g < 16; ++g) {
      const int low = s[g % 8] >> (g / 8 * 4) & 15, high = s[8 + g % 4] >> (g / 4 * 2) & 3;
      out.scale[g] = static_cast<int16_t>((low | high << 4) - 32);
    }
    for (int part = 0; part < 8; ++part) {
      const uint8_t* bytes = block + 32 + part / 4 * 32;
      const int shift = part % 4 * 2;
      for (int i = 0; i < 32; ++i)  // a clear mask bit takes 4 away
        out.q[32 * part + i] = static_cast<int8_t>((bytes[i] >> shift & 3) + ((block[i] >> part & 1) << 2) - 4);
    }
  }
};

// Eight scales and eight minimums of six bits in 12 bytes; each serves 32 values.
STRATA_LANE void unpack_k_scales(const uint8_t* s, SuperBlock& out) {
  for (int j = 0; j < 4; ++j) {
    const int16_t scale_low = s[j] & 63, minimum_low = s[j + 4] & 63;
    const auto scale_high = static_cast<int16_t>((s[j + 8] & 15) | (s[j] >> 6) << 4);
    const auto minimum_high = static_cast<int16_t>((s[j + 8] >> 4) | (s[j + 4] >> 6) << 4);
    out.scale[2 * j] = out.scale[2 * j + 1] = scale_low;
    out.scale[2 * j + 8] = out.scale[2 * j + 9] = scale_high;
    out.minimum[2 * j] = out.minimum[2 * j + 1] = minimum_low;
    out.minimum[2 * j + 8] = out.minimum[2 * j + 9] = minimum_high;
  }
}
struct DecodeQ4K {  // d dmin scales[12] qs[128]
  static constexpr int32_t kType = 12;
  static constexpr int kBytes = 144;
  static constexpr bool kHasMin = true;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block);
    out.dmin = load_half(block + 2);
    unpack_k_scales(block + 4, out);
    for (int part = 0; part < 4; ++part) {
      const uint8_t* bytes = block + 16 + 32 * part;
      for (int i = 0; i < 32; ++i) out.q[64 * part + i] = static_cast<int8_t>(bytes[i] & 15);
      for (int i = 0; i < 32; ++i) out.q[64 * part + 32 + i] = static_cast<int8_t>(bytes[i] >> 4);
    }
  }
};
struct DecodeQ5K {  // d dmin scales[12] qh[32] qs[128]
  static constexpr int32_t kType = 13;
  static constexpr int kBytes = 176;
  static constexpr bool kHasMin = true;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block);
    out.dmin = load_half(block + 2);
    unpack_k_scales(block + 4, out);
    const uint8_t* high = block + 16;
    for (int part = 0; part < 4; ++part) {
      const uint8_t* bytes = block + 48 + 32 * part;
      const int bit = 2 * part;
      for (int i = 0; i < 32; ++i) out.q[64 * part + i] = static_cast<int8_t>((bytes[i] & 15) | (high[i] >> bit & 1) << 4);
      for (int i = 0; i < 32; ++i)
        out.q[64 * part + 32 + i] = static_cast<int8_t>((bytes[i] >> 4) | (high[i] >> (bit + 1) & 1) << 4);
    }
  }
};
struct DecodeQ6K {  // ql[128] qh[64] scales[16] d
  static constexpr int32_t kType = 14;
  static constexpr int kBytes = 210;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block + 208);
    for (int g = 0; g < 16; ++g) out.scale[g] = static_cast<int8_t>(block[192 + g]);
    for (int half = 0; half < 2; ++half) {
      const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
      int8_t* q = out.q + 128 * half;
      for (int i = 0; i < 32; ++i) q[i] = static_cast<int8_t>(((low[i] & 15) | (high[i] & 3) << 4) - 32);
      for (int i = 0; i < 32; ++i) q[32 + i] = static_cast<int8_t>(((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4) - 32);
      for (int i = 0; i < 32; ++i) q[64 + i] = static_cast<int8_t>(((low[i] >> 4) | (high[i] >> 4 & 3) << 4) - 32);
      for (int i = 0; i < 32; ++i) q[96 + i] = static_cast<int8_t>(((low[32 + i] >> 4) | high[i] >> 6 << 4) - 32);
    }
  }
};

// ---- ternary formats and IQ4_XS -------------------------------------------------------------------------------------

STRATA_LANE void set_scales(int16_t scale, SuperBlock& out) {
  for (int g = 0; g < 16; ++g) out.scale[g] = scale;
}
// n bytes, `digits` base-3 digits each, most significant first: digit k of byte i goes to q[k * n + i].
template <int n, int digits>
STRATA_LANE void unpack_ternary(const uint8_t* bytes, int8_t* q) {
  constexpr int kPower[5] = {1, 3, 9, 27, 81};
  for (int k = 0; k < digits; ++k)
    for (int i = 0; i < n; ++i) {
      const auto digit = static_cast<uint16_t>(static_cast<uint8_t>(bytes[i] * kPower[k]) * 3);
      q[k * n + i] = static_cast<int8_t>((digit >> 8) - 1);
    }
}
struct DecodeTq1 {  // qs[48] qh[4] d
  static constexpr int32_t kType = 34;
  static constexpr int kBytes = 54;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block + 52);
    set_scales(1, out);
    unpack_ternary<32, 5>(block, out.q);
    unpack_ternary<16, 5>(block + 32, out.q + 160);
    unpack_ternary<4, 4>(block + 48, out.q + 240);
  }
};
struct DecodeTq2 {  // qs[64] d
  static constexpr int32_t kType = 35;
  static constexpr int kBytes = 66;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block + 64);
    set_scales(1, out);
    for (int part = 0; part < 8; ++part) {
      const uint8_t* bytes = block + part / 4 * 32;
      const int shift = part % 4 * 2;
      for (int i = 0; i < 32; ++i) out.q[32 * part + i] = static_cast<int8_t>((bytes[i] >> shift & 3) - 1);
    }
  }
};
// look_up_nibbles to bytes.
STRATA_LANE void look_up_bytes(const int8_t (&codes)[16], const uint8_t* bytes, int8_t* q) {
#if defined(__AVX2__)
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)), b = load_16_bytes(bytes);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_shuffle_epi8(table, low_nibbles(b)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm_shuffle_epi8(table, high_nibbles(b)));
#else
  for (int i = 0; i < 16; ++i) {
    q[i] = codes[bytes[i] & 15];
    q[16 + i] = codes[bytes[i] >> 4];
  }
#endif
}
struct DecodeIq4Xs {  // d scales_h[2] scales_l[4] qs[128]
  static constexpr int32_t kType = 23;
  static constexpr int kBytes = 136;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block);
    const auto high = load_as<uint16_t>(block + 2);
    for (int j = 0; j < 8; ++j) {
      const int low = block[4 + j / 2] >> (j % 2 * 4) & 15;
      const auto scale = static_cast<int16_t>((low | (high >> (2 * j) & 3) << 4) - 32);
      out.scale[2 * j] = out.scale[2 * j + 1] = scale;
      look_up_bytes(kCodesNl, block + 8 + 16 * j, out.q + 32 * j);
    }
  }
};

// ---- grid formats ---------------------------------------------------------------------------------------------------

// Two words of eight bytes side by side, in one store: the products read 16 bytes at a time.
STRATA_LANE void store_pair(uint64_t first, uint64_t second, int8_t* q) {
#if defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_set_epi64x(static_cast<int64_t>(second), static_cast<int64_t>(first)));
#else
  memcpy(q, &first, sizeof first);
  memcpy(q + 8, &second, sizeof second);
#endif
}
// The same with values negated where their bit of `signs` is set, bit 0 for the first byte. No byte may be -128.
STRATA_LANE void store_signed_pair(uint64_t first, uint64_t second, uint32_t signs, int8_t* q) {
#if defined(__AVX2__)
  const __m128i value = _mm_set_epi64x(static_cast<int64_t>(second), static_cast<int64_t>(first));
  const __m128i mask = _mm_cmpeq_epi8(fifth_bits(signs), _mm_set1_epi8(16));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_sub_epi8(_mm_xor_si128(value, mask), mask));
#else
  store_pair(first, second, q);
  for (int i = 0; i < 16; ++i) q[i] = static_cast<int8_t>(signs >> i & 1 ? -q[i] : q[i]);
#endif
}
// Seven stored sign bits; the eighth makes their number even.
STRATA_LANE uint32_t with_parity(uint32_t signs7) {
  return signs7 | static_cast<uint32_t>(__builtin_popcount(signs7) & 1) << 7;
}

// Signs of 16 values from 14 stored bits.
STRATA_LANE uint32_t parity_pair(uint32_t bits) { return with_parity(bits & 127) | with_parity(bits >> 7 & 127) << 8; }

struct DecodeIq2Xxs {  // d, then for each 32 values four grid bytes and a word: scale 4 bits, signs 4 x 7 bits
  static constexpr int32_t kType = 16;
  static constexpr int kBytes = 66;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block) * 0.125f;
    for (int j = 0; j < 8; ++j) {
      const uint8_t* part = block + 2 + 8 * j;
      const auto word = load_as<uint32_t>(part + 4);
      out.scale[2 * j] = out.scale[2 * j + 1] = static_cast<int16_t>(2 * (word >> 28) + 1);
      for (int k = 0; k < 4; k += 2)
        store_signed_pair(iq::kTables.iq2xxs[part[k]], iq::kTables.iq2xxs[part[k + 1]], parity_pair(word >> (7 * k)),
                          out.q + 32 * j + 8 * k);
    }
  }
};
STRATA_LANE void odd_scales(const uint8_t* nibbles, SuperBlock& out) {
  for (int g = 0; g < 16; ++g) out.scale[g] = static_cast<int16_t>(2 * (nibbles[g / 2] >> (g % 2 * 4) & 15) + 1);
}
struct DecodeIq2Xs {  // d, 32 words of 9 grid bits and 7 sign bits, scales[8]
  static constexpr int32_t kType = 17;
  static constexpr int kBytes = 74;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block) * 0.125f;
    odd_scales(block + 66, out);
    for (int k = 0; k < 32; k += 2) {
      const auto words = load_as<uint32_t>(block + 2 + 2 * k);
      const uint32_t signs = with_parity(words >> 9 & 127) | with_parity(words >> 25) << 8;
      store_signed_pair(iq::kTables.iq2xs[words & 511], iq::kTables.iq2xs[words >> 16 & 511], signs, out.q + 8 * k);
    }
  }
};
struct DecodeIq2S {  // d qs[32] signs[32] qh[8] scales[8]
  static constexpr int32_t kType = 22;
  static constexpr int kBytes = 82;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block) * 0.125f;
    odd_scales(block + 74, out);
    const auto point = [&](int k) { return iq::kTables.iq2s[block[2 + k] | (block[66 + k / 4] >> (k % 4 * 2) & 3) << 8]; };
    for (int k = 0; k < 32; k += 2)
      store_signed_pair(point(k), point(k + 1), load_as<uint16_t>(block + 34 + k), out.q + 8 * k);
  }
};
struct DecodeIq3Xxs {  // d qs[64], then eight words: scale 4 bits, signs 4 x 7 bits
  static constexpr int32_t kType = 18;
  static constexpr int kBytes = 98;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block) * 0.25f;
    for (int j = 0; j < 8; ++j) {
      const auto word = load_as<uint32_t>(block + 66 + 4 * j);
      out.scale[2 * j] = out.scale[2 * j + 1] = static_cast<int16_t>(2 * (word >> 28) + 1);
      const auto points = [&](int k) {
        const uint8_t* index = block + 2 + 8 * j + 2 * k;
        return iq::kTables.iq3xxs[index[0]] | static_cast<uint64_t>(iq::kTables.iq3xxs[index[1]]) << 32;
      };
      for (int k = 0; k < 4; k += 2)
        store_signed_pair(points(k), points(k + 1), parity_pair(word >> (7 * k)), out.q + 32 * j + 8 * k);
    }
  }
};
struct DecodeIq3S {  // d qs[64] qh[8] signs[32] scales[4]
  static constexpr int32_t kType = 21;
  static constexpr int kBytes = 110;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block);
    for (int j = 0; j < 8; ++j) {
      const int scale = block[106 + j / 2] >> (j % 2 * 4) & 15;
      out.scale[2 * j] = out.scale[2 * j + 1] = static_cast<int16_t>(2 * scale + 1);
    }
    const auto points = [&](int k) {
      const uint8_t* low = block + 2 + 2 * k;
      const uint32_t high = block[66 + k / 4] >> (k % 4 * 2);
      const uint32_t first = low[0] | (high & 1) << 8, second = low[1] | (high >> 1 & 1) << 8;
      return iq::kTables.iq3s[first] | static_cast<uint64_t>(iq::kTables.iq3s[second]) << 32;
    };
    for (int k = 0; k < 32; k += 2)
      store_signed_pair(points(k), points(k + 1), load_as<uint16_t>(block + 74 + k), out.q + 8 * k);
  }
};

// Eight coordinates in eighths, plus or minus one eighth.
STRATA_LANE uint64_t with_delta(uint64_t eighths, bool minus) {
  constexpr uint64_t kOnes = 0x0101010101010101ull, kTop = 0x8080808080808080ull;
  // Adds bytewise: the top bits are added apart, so that no carry crosses bytes.
  const uint64_t step = minus ? kOnes * 0xff : kOnes;
  return ((eighths & ~kTop) + (step & ~kTop)) ^ ((eighths ^ step) & kTop);
}
struct DecodeIq1S {  // d qs[32], then eight words: 4 x 3 grid bits, scale 3 bits, sign of the delta
  static constexpr int32_t kType = 19;
  static constexpr int kBytes = 50;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    out.d = load_half(block) * 0.125f;
    for (int j = 0; j < 8; ++j) {
      const uint32_t word = load_as<uint16_t>(block + 34 + 2 * j);
      out.scale[2 * j] = out.scale[2 * j + 1] = static_cast<int16_t>(2 * (word >> 12 & 7) + 1);
      uint64_t q[4];
      for (int k = 0; k < 4; ++k) {
        const uint32_t index = block[2 + 4 * j + k] | (word >> (3 * k) & 7) << 8;
        q[k] = with_delta(iq::kTables.iq1s_eighths[index], word >> 15 & 1);
      }
      store_pair(q[0], q[1], out.q + 32 * j);
      store_pair(q[2], q[3], out.q + 32 * j + 16);
    }
  }
};
struct DecodeIq1M {  // qs[32] qh[16] scales[8]: 4 x (4 x 3 bits of scale, 4 bits of d)
  static constexpr int32_t kType = 29;
  static constexpr int kBytes = 56;
  static constexpr bool kHasMin = false;
  STRATA_LANE void decode(const uint8_t* block, SuperBlock& out) {
    uint32_t words[4], d_bits = 0;
    for (int w = 0; w < 4; ++w) {
      words[w] = load_as<uint16_t>(block + 48 + 2 * w);
      d_bits |= words[w] >> 12 << (4 * w);
    }
    const auto d_half = static_cast<uint16_t>(d_bits);
    uint8_t d_bytes[2];
    memcpy(d_bytes, &d_half, sizeof d_bytes);
    out.d = load_half(d_bytes) * 0.125f;
    for (int g = 0; g < 16; ++g) out.scale[g] = static_cast<int16_t>(2 * (words[g / 4] >> (3 * (g % 4)) & 7) + 1);
    const auto point = [&](int k) {
      const uint32_t high = block[32 + k / 2] >> (k % 2 * 4);
      const uint32_t index = block[k] | (high & 7) << 8;
      return with_delta(iq::kTables.iq1s_eighths[index], high >> 3 & 1);
    };
    for (int k = 0; k < 32; k += 2) store_pair(point(k), point(k + 1), out.q + 8 * k);
  }
};

}  // namespace
}  // namespace strata::cpu
