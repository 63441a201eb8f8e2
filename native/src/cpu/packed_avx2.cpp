// AVX2 kernels on the packed layouts: two vectors of 8 rows for a group of 16.
//
// vpmaddubsw saturates at int16, so each kernel says why its sums stay below
// 32,768 and the results are exact.
#if defined(__AVX2__)
#include <immintrin.h>

#include "cpu/act.h"
#include "cpu/pack.h"
#include "cpu/packed.h"
#include "cpu/tiles.h"

namespace strata::cpu {
namespace {

#define STRATA_UNROLL _Pragma("GCC unroll 8")
#define STRATA_INLINE static __attribute__((always_inline)) inline

STRATA_INLINE __m256i load(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
// Four activation bytes, or a pair of int16, in every lane.
STRATA_INLINE __m256i spread(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
STRATA_INLINE __m256 halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}
STRATA_INLINE __m256 total(const __m256 a[4]) { return _mm256_add_ps(_mm256_add_ps(a[0], a[2]), _mm256_add_ps(a[1], a[3])); }
STRATA_INLINE __m256i low_nibbles(__m256i w) { return _mm256_and_si256(w, _mm256_set1_epi8(0x0f)); }
STRATA_INLINE __m256i high_nibbles(__m256i w) { return low_nibbles(_mm256_srli_epi16(w, 4)); }
STRATA_INLINE __m256i quartet_top(__m256i w0, __m256i w1, __m256i w2) {
  const __m256i v0 = _mm256_and_si256(_mm256_srli_epi32(w0, 6), _mm256_set1_epi8(0x03));
  const __m256i v1 = _mm256_and_si256(_mm256_srli_epi32(w1, 4), _mm256_set1_epi8(0x0c));
  const __m256i v2 = _mm256_and_si256(_mm256_srli_epi32(w2, 2), _mm256_set1_epi8(0x30));
  return _mm256_or_si256(_mm256_or_si256(v0, v1), v2);
}
// Shuffle that takes byte j of each word: to the low (or high) byte of both
// int16 of the word, zeros elsewhere.
STRATA_INLINE __m256i pick_low(int j) {
  return _mm256_add_epi32(_mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x00040004, 0x00080008, 0x000c000c)),
                          _mm256_set1_epi32(static_cast<int32_t>(0x80008000u | static_cast<uint32_t>(j) * 0x00010001u)));
}
STRATA_INLINE __m256i pick_high(int j) { return _mm256_slli_epi16(pick_low(j), 8); }

template <int T>
using Sums = __m256[T][2][4];  // float accumulators [token][half of the group][unit mod 4]

template <int T>
STRATA_INLINE void clear(Sums<T>& a) {
  for (int t = 0; t < T; t++) {
    for (int h = 0; h < 2; h++) {
      for (int i = 0; i < 4; i++) a[t][h][i] = _mm256_setzero_ps();
    }
  }
}
template <int T>
STRATA_INLINE void finish(const Sums<T>& a, __m256 (*out)[2]) {
  for (int t = 0; t < T; t++) {
    for (int h = 0; h < 2; h++) out[t][h] = total(a[t][h]);
  }
}

struct Q4K {
  static int64_t group_bytes(int64_t n_cols) { return q4k_group_bytes(n_cols); }

  // Eight rows of one block. int16 sums: 8 words * 2 * 15 * 127 = 30,480.
  template <int T>
  STRATA_INLINE void half(const uint8_t* block, int h, const A256Row* x, int64_t u, Sums<T>& a) {
    const __m256i low6 = _mm256_set1_epi8(0x3f), even = _mm256_set1_epi32(0x00ff00ff);
    const uint8_t* words = block + 32 * h;
    const __m256i w0 = load(words + 64), w1 = load(words + 128), w2 = load(words + 192);
    const __m256i m_low = _mm256_and_si256(w2, low6), m_high = quartet_top(w0, w1, w2);
    const __m256i mins[4] = {_mm256_and_si256(m_low, even), _mm256_and_si256(_mm256_srli_epi32(m_low, 8), even),
                             _mm256_and_si256(m_high, even), _mm256_and_si256(_mm256_srli_epi32(m_high, 8), even)};
    __m256i isum[T], msum[T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      isum[t] = msum[t] = _mm256_setzero_si256();
      STRATA_UNROLL
      for (int i = 0; i < 4; i++) {
        msum[t] = _mm256_add_epi32(msum[t], _mm256_madd_epi16(mins[i], spread(x[t].sum32 + 8 * u + 2 * i)));
      }
    }
    for (int g = 0; g < 4; g++) {
      const __m256i scales = _mm256_and_si256(g < 2 ? w0 : w1, low6);
      const __m256i scale_low = _mm256_shuffle_epi8(scales, pick_low(g % 2 * 2));
      const __m256i scale_high = _mm256_shuffle_epi8(scales, pick_low(g % 2 * 2 + 1));
      __m256i low[T], high[T];
      STRATA_UNROLL
      for (int t = 0; t < T; t++) low[t] = high[t] = _mm256_setzero_si256();
      STRATA_UNROLL
      for (int c = 0; c < 8; c++) {
        const __m256i codes = load(words + 64 * (4 + 8 * g + c));
        const __m256i codes_low = low_nibbles(codes), codes_high = high_nibbles(codes);
        STRATA_UNROLL
        for (int t = 0; t < T; t++) {
          const int8_t* q = x[t].q + 256 * u + 64 * g + 4 * c;
          low[t] = _mm256_add_epi16(low[t], _mm256_maddubs_epi16(codes_low, spread(q)));
          high[t] = _mm256_add_epi16(high[t], _mm256_maddubs_epi16(codes_high, spread(q + 32)));
        }
      }
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        isum[t] = _mm256_add_epi32(isum[t], _mm256_madd_epi16(low[t], scale_low));
        isum[t] = _mm256_add_epi32(isum[t], _mm256_madd_epi16(high[t], scale_high));
      }
    }
    const __m256 d = halves(block + 16 * h), d_min = halves(block + 32 + 16 * h);
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      const __m256 dx = _mm256_set1_ps(x[t].d[u]);
      const __m256 acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[t]), _mm256_mul_ps(d, dx), a[t][h][u & 3]);
      a[t][h][u & 3] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(msum[t]), _mm256_mul_ps(d_min, dx), acc);
    }
  }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m256 (*out)[2]) {
    Sums<T> a;
    A256Row x[T];
    clear<T>(a);
    STRATA_UNROLL
    for (int t = 0; t < T; t++) x[t] = a256_view(acts[t], n_cols);
    for (int64_t u = 0; u < n_cols / 256; u++, group += kQ4KBlockBytes) {
      for (int h = 0; h < 2; h++) half<T>(group, h, x, u, a);
    }
    finish<T>(a, out);
  }
};

struct Q6K {
  static int64_t group_bytes(int64_t n_cols) { return q6k_group_bytes(n_cols); }

  // -32 * sum over j of sc[j] * sum16[j]: where the codes' offset goes.
  template <int T>
  STRATA_INLINE void offsets(const uint8_t* words, const A256Row* x, int64_t u, __m256i* isum) {
    STRATA_UNROLL
    for (int t = 0; t < T; t++) isum[t] = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
      const __m256i w = load(words + 64 * i);
      const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), odd = _mm256_srai_epi16(w, 8);
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        const int16_t* s = x[t].sum16 + 16 * u + 4 * i;
        isum[t] = _mm256_add_epi32(isum[t], _mm256_madd_epi16(even, spread(s)));
        isum[t] = _mm256_add_epi32(isum[t], _mm256_madd_epi16(odd, spread(s + 2)));
      }
    }
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      isum[t] = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(isum[t], 5));
    }
  }

  // Two quartets, half of the sub-blocks with these scales. int16 sums: 2 words
  // * 2 * 63 * 127 = 32,004.
  template <int T>
  STRATA_INLINE void quartet_pair(const uint8_t* words, const int8_t* const* q, const __m256i* scales, __m256i* isum) {
    const __m256i low6 = _mm256_set1_epi8(0x3f);
    __m256i codes[2][4];
    STRATA_UNROLL
    for (int c = 0; c < 2; c++) {
      const __m256i w0 = load(words + 192 * c), w1 = load(words + 192 * c + 64), w2 = load(words + 192 * c + 128);
      codes[c][0] = _mm256_and_si256(w0, low6);
      codes[c][1] = _mm256_and_si256(w1, low6);
      codes[c][2] = _mm256_and_si256(w2, low6);
      codes[c][3] = quartet_top(w0, w1, w2);
    }
    STRATA_UNROLL
    for (int i = 0; i < 4; i++) {
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        const __m256i first = _mm256_maddubs_epi16(codes[0][i], spread(q[t] + 32 * i));
        const __m256i second = _mm256_maddubs_epi16(codes[1][i], spread(q[t] + 32 * i + 4));
        isum[t] = _mm256_add_epi32(isum[t], _mm256_madd_epi16(_mm256_add_epi16(first, second), scales[i]));
      }
    }
  }

  template <int T>
  STRATA_INLINE void half(const uint8_t* block, int h, __m256 d, const A256Row* x, int64_t u, Sums<T>& a) {
    const uint8_t* words = block + 32 * h;
    __m256i isum[T];
    offsets<T>(words, x, u, isum);
    for (int part = 0; part < 4; part++) {  // half of the block, then which 16 of each 32
      const __m256i w0 = load(words + 128 * (part / 2)), w1 = load(words + 128 * (part / 2) + 64);
      // Sub-scale 2i + s is byte (i % 2) + 2s of word i / 2: bytes hold sc 0,
      // 2, 1, 3.
      const __m256i pick0 = pick_high(part % 2 * 2), pick1 = pick_high(part % 2 * 2 + 1);
      const __m256i scales[4] = {
          _mm256_srai_epi16(_mm256_shuffle_epi8(w0, pick0), 8), _mm256_srai_epi16(_mm256_shuffle_epi8(w0, pick1), 8),
          _mm256_srai_epi16(_mm256_shuffle_epi8(w1, pick0), 8), _mm256_srai_epi16(_mm256_shuffle_epi8(w1, pick1), 8)};
      for (int pair = 0; pair < 2; pair++) {
        const int8_t* q[T];
        STRATA_UNROLL
        for (int t = 0; t < T; t++) {
          q[t] = x[t].q + 256 * u + 128 * (part / 2) + 16 * (part % 2) + 8 * pair;
        }
        quartet_pair<T>(words + 64 * (4 + 12 * part + 6 * pair), q, scales, isum);
      }
    }
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(x[t].d[u]));
      a[t][h][u & 3] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[t]), scale, a[t][h][u & 3]);
    }
  }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m256 (*out)[2]) {
    Sums<T> a;
    A256Row x[T];
    clear<T>(a);
    STRATA_UNROLL
    for (int t = 0; t < T; t++) x[t] = a256_view(acts[t], n_cols);
    const uint8_t* block = group + q6k_d_bytes(n_cols);
    for (int64_t u = 0; u < n_cols / 256; u++, block += kQ6KBlockBytes) {
      for (int h = 0; h < 2; h++) half<T>(block, h, halves(group + 32 * u + 16 * h), x, u, a);
    }
    finish<T>(a, out);
  }
};

struct MXFP4 {
  static int64_t group_bytes(int64_t n_cols) { return mx_group_bytes(n_cols); }

  // 2^(e - 128) for exponent bytes in 32-bit lanes; e = 0 and 1 are subnormal.
  STRATA_INLINE __m256 scale_of(__m256i e) {
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal));
  }

  // int16 sums: 4 words * 2 * 24 * 127 = 24,384.
  template <int T>
  STRATA_INLINE void unit(const uint8_t* codes, int h, __m256 dw, const A32Row* x, int64_t u, int slot, Sums<T>& a) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i low[T], high[T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) low[t] = high[t] = _mm256_setzero_si256();
    STRATA_UNROLL
    for (int c = 0; c < 4; c++) {
      const __m256i pairs = load(codes + 64 * c + 32 * h);
      const __m256i codes_low = _mm256_shuffle_epi8(table, low_nibbles(pairs));
      const __m256i codes_high = _mm256_shuffle_epi8(table, high_nibbles(pairs));
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        const int8_t* q = x[t].q + 32 * u + 4 * c;
        low[t] = _mm256_add_epi16(low[t], _mm256_maddubs_epi16(codes_low, spread(q)));
        high[t] = _mm256_add_epi16(high[t], _mm256_maddubs_epi16(codes_high, spread(q + 16)));
      }
    }
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(low[t], ones), _mm256_madd_epi16(high[t], ones));
      const __m256i isum = _mm256_add_epi32(both, _mm256_set1_epi32(-12 * x[t].sum[u]));
      const __m256 scale = _mm256_mul_ps(dw, _mm256_set1_ps(x[t].d[u]));
      a[t][h][slot] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), scale, a[t][h][slot]);
    }
  }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m256 (*out)[2]) {
    Sums<T> a;
    A32Row x[T];
    clear<T>(a);
    STRATA_UNROLL
    for (int t = 0; t < T; t++) x[t] = a32_view(acts[t], n_cols);
    const int64_t n_blocks = n_cols / 32;
    for (int64_t first = 0; first < n_blocks; first += kMXBundle, group += 64 + kMXBundle * kMXBlockBytes) {
      const auto n_units = static_cast<int>(n_blocks - first < kMXBundle ? n_blocks - first : kMXBundle);
      for (int i = 0; i < n_units; i++) {
        const uint8_t* codes = group + 64 + i * kMXBlockBytes;
        for (int h = 0; h < 2; h++) {
          const __m256i e = _mm256_srl_epi32(load(group + 32 * h), _mm_cvtsi32_si128(8 * i));
          unit<T>(codes, h, scale_of(_mm256_and_si256(e, _mm256_set1_epi32(255))), x, first + i, i, a);
        }
      }
    }
    finish<T>(a, out);
  }
};

struct Q80 {
  static int64_t group_bytes(int64_t n_cols) { return q8_group_bytes(n_cols); }

  // |code| times the activation with the code's sign. int16 sums: 2 * 128 * 127
  // = 32,512.
  template <int T>
  STRATA_INLINE void unit(const uint8_t* codes, int h, __m256 dw, const A32Row* x, int64_t u, Sums<T>& a) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i isum[T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) isum[t] = _mm256_setzero_si256();
    STRATA_UNROLL
    for (int c = 0; c < 8; c++) {
      const __m256i w = load(codes + 64 * c + 32 * h);
      const __m256i magnitude = _mm256_abs_epi8(w);
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        const __m256i q = _mm256_sign_epi8(spread(x[t].q + 32 * u + 4 * c), w);
        isum[t] = _mm256_add_epi32(isum[t], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, q), ones));
      }
    }
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      const __m256 scale = _mm256_mul_ps(dw, _mm256_set1_ps(x[t].d[u]));
      a[t][h][u & 3] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[t]), scale, a[t][h][u & 3]);
    }
  }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m256 (*out)[2]) {
    Sums<T> a;
    A32Row x[T];
    clear<T>(a);
    STRATA_UNROLL
    for (int t = 0; t < T; t++) x[t] = a32_view(acts[t], n_cols);
    const int64_t n_blocks = n_cols / 32;
    for (int64_t first = 0; first < n_blocks; first += kQ8Bundle, group += 64 + kQ8Bundle * kQ8BlockBytes) {
      for (int64_t i = 0; i < kQ8Bundle && first + i < n_blocks; i++) {
        const uint8_t* codes = group + 64 + i * kQ8BlockBytes;
        for (int h = 0; h < 2; h++) unit<T>(codes, h, halves(group + 32 * i + 16 * h), x, first + i, a);
      }
    }
    finish<T>(a, out);
  }
};

// Runs one tile of T tokens on one group and writes the rows that exist.
template <class Type>
struct Tile {
  template <int T, int R>
  static void run(const MatmulArgs& args, const uint8_t* group, int64_t row, int64_t token) {
    const uint8_t* acts[T];
    for (int t = 0; t < T; t++) acts[t] = act_row(args, token + t);
    __m256 out[T][2];
    Type::template run<T>(group, args.w.n_cols, acts, out);
    const auto n_rows = static_cast<int>(args.row_end - row < 16 ? args.row_end - row : 16);
    for (int h = 0; h < 2; h++) {
      const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(8 * h));
      const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n_rows), lane);
      for (int t = 0; t < T; t++) _mm256_maskstore_ps(y_row(args, token + t) + row + 8 * h, mask, out[t][h]);
    }
  }
};

template <class Type>
void matmul(const MatmulArgs& args) {
  for_each_tile<Tile<Type>, 1>(args, Type::group_bytes(args.w.n_cols));
}

}  // namespace

MatmulFn packed_matmul_avx2(int32_t type) {
  switch (type) {
    case kTypeQ4_K:
      return matmul<Q4K>;
    case kTypeQ6_K:
      return matmul<Q6K>;
    case kTypeQ8_0:
      return matmul<Q80>;
    case kTypeMXFP4:
      return matmul<MXFP4>;
    default:
      return nullptr;
  }
}

}  // namespace strata::cpu
#endif
