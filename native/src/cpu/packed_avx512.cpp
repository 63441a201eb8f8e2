// AVX-512 VNNI kernels on the packed layouts: lane r of a vector is row r of
// the group.
#if defined(__AVX512VNNI__)
// GCC 12 takes the undefined pass-through operands of its own intrinsics for
// uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "cpu/act.h"
#include "cpu/pack.h"
#include "cpu/packed.h"
#include "cpu/tiles.h"

namespace strata::cpu {
namespace {

#define STRATA_UNROLL _Pragma("GCC unroll 8")
#define STRATA_INLINE static __attribute__((always_inline)) inline

STRATA_INLINE __m512i load(const uint8_t* p) { return _mm512_load_si512(p); }
// Four activation bytes, or a pair of int16, in every lane.
STRATA_INLINE __m512i spread(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}
STRATA_INLINE __m512 halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
STRATA_INLINE __m512 total(const __m512 a[4]) {
  return _mm512_add_ps(_mm512_add_ps(a[0], a[2]), _mm512_add_ps(a[1], a[3]));
}
// (a >> n) & mask | b
template <int n>
STRATA_INLINE __m512i shift_mask_or(__m512i a, __m512i mask, __m512i b) {
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(a, n), mask, b, 0xea);
}
STRATA_INLINE __m512i quartet_top(__m512i w0, __m512i w1, __m512i w2) {
  __m512i v = _mm512_and_si512(_mm512_srli_epi32(w0, 6), _mm512_set1_epi8(0x03));
  v = shift_mask_or<4>(w1, _mm512_set1_epi8(0x0c), v);
  return shift_mask_or<2>(w2, _mm512_set1_epi8(0x30), v);
}

struct Q4K {
  static int64_t group_bytes(int64_t n_cols) { return q4k_group_bytes(n_cols); }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m512* out) {
    const __m512i low6 = _mm512_set1_epi8(0x3f), low4 = _mm512_set1_epi8(0x0f), even = _mm512_set1_epi32(0x00ff00ff);
    __m512 a[T][4];
    A256Row x[T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      x[t] = a256_view(acts[t], n_cols);
      for (int i = 0; i < 4; i++) a[t][i] = _mm512_setzero_ps();
    }
    for (int64_t u = 0; u < n_cols / 256; u++, group += kQ4KBlockBytes) {
      prefetch_block<kQ4KBlockBytes>(group);
      const __m512i w0 = load(group + 64), w1 = load(group + 128), w2 = load(group + 192);
      __m512i isum[T];
      STRATA_UNROLL
      for (int t = 0; t < T; t++) isum[t] = _mm512_setzero_si512();
      __m512i scales = _mm512_and_si512(w0, low6);
      for (int g = 0; g < 4; g++) {
        if (g == 2) scales = _mm512_and_si512(w1, low6);
        const __m512i scale_low = _mm512_and_si512(scales, _mm512_set1_epi32(255));
        const __m512i scale_high = _mm512_and_si512(_mm512_srli_epi32(scales, 8), _mm512_set1_epi32(255));
        scales = _mm512_srli_epi32(scales, 16);
        const uint8_t* chunk = group + 64 * (4 + 8 * g);
        __m512i low[T], high[T];
        STRATA_UNROLL
        for (int t = 0; t < T; t++) low[t] = high[t] = _mm512_setzero_si512();
        STRATA_UNROLL
        for (int c = 0; c < 8; c++) {
          const __m512i codes = load(chunk + 64 * c);
          const __m512i codes_low = _mm512_and_si512(codes, low4);
          const __m512i codes_high = _mm512_and_si512(_mm512_srli_epi32(codes, 4), low4);
          STRATA_UNROLL
          for (int t = 0; t < T; t++) {
            const int8_t* q = x[t].q + 256 * u + 64 * g + 4 * c;
            low[t] = _mm512_dpbusd_epi32(low[t], codes_low, spread(q));
            high[t] = _mm512_dpbusd_epi32(high[t], codes_high, spread(q + 32));
          }
        }
        STRATA_UNROLL
        for (int t = 0; t < T; t++) {
          isum[t] = _mm512_add_epi32(isum[t], _mm512_mullo_epi32(low[t], scale_low));
          isum[t] = _mm512_add_epi32(isum[t], _mm512_mullo_epi32(high[t], scale_high));
        }
      }
      // The minimums come last: their sums then need no registers while the codes' sums do.
      const __m512i m_low = _mm512_and_si512(w2, low6), m_high = quartet_top(w0, w1, w2);
      const __m512i m01 = _mm512_and_si512(m_low, even), m23 = _mm512_and_si512(_mm512_srli_epi32(m_low, 8), even);
      const __m512i m45 = _mm512_and_si512(m_high, even), m67 = _mm512_and_si512(_mm512_srli_epi32(m_high, 8), even);
      const __m512 d = halves(group), d_min = halves(group + 32);
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        const int16_t* s = x[t].sum32 + 8 * u;
        __m512i msum = _mm512_dpwssd_epi32(_mm512_setzero_si512(), m01, spread(s));
        msum = _mm512_dpwssd_epi32(msum, m23, spread(s + 2));
        msum = _mm512_dpwssd_epi32(msum, m45, spread(s + 4));
        msum = _mm512_dpwssd_epi32(msum, m67, spread(s + 6));
        const __m512 dx = _mm512_set1_ps(x[t].d[u]);
        const __m512 acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum[t]), _mm512_mul_ps(d, dx), a[t][u & 3]);
        a[t][u & 3] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(msum), _mm512_mul_ps(d_min, dx), acc);
      }
    }
    STRATA_UNROLL
    for (int t = 0; t < T; t++) out[t] = total(a[t]);
  }
};

struct MXFP4 {
  static int64_t group_bytes(int64_t n_cols) { return mx_group_bytes(n_cols); }

  // 2^(e - 128) for exponent bytes in 32-bit lanes; e = 0 and 1 are subnormal.
  STRATA_INLINE __m512 scale_of(__m512i e) {
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(
        _mm512_mask_mov_epi32(normal, _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), subnormal));
  }

  template <int T>
  STRATA_INLINE void unit(const uint8_t* codes, __m512 dw, const A32Row* x, int64_t u, __m512 (*a)[4], int slot) {
    // Codes + 12, so that the unsigned side of vpdpbusd can hold them; the sum
    // starts at -12 * sum(x).
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i low4 = _mm512_set1_epi8(0x0f);
    __m512i sum[T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) sum[t] = _mm512_set1_epi32(-12 * x[t].sum[u]);
    STRATA_UNROLL
    for (int c = 0; c < 4; c++) {
      const __m512i pairs = load(codes + 64 * c);
      const __m512i low = _mm512_shuffle_epi8(table, _mm512_and_si512(pairs, low4));
      const __m512i high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi32(pairs, 4), low4));
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        const int8_t* q = x[t].q + 32 * u + 4 * c;
        sum[t] = _mm512_dpbusd_epi32(sum[t], low, spread(q));
        sum[t] = _mm512_dpbusd_epi32(sum[t], high, spread(q + 16));
      }
    }
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      const __m512 scale = _mm512_mul_ps(dw, _mm512_set1_ps(x[t].d[u]));
      a[t][slot] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t]), scale, a[t][slot]);
    }
  }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m512* out) {
    __m512 a[T][4];
    A32Row x[T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      x[t] = a32_view(acts[t], n_cols);
      for (int i = 0; i < 4; i++) a[t][i] = _mm512_setzero_ps();
    }
    const __m512i byte = _mm512_set1_epi32(255);
    const int64_t n_blocks = n_cols / 32;
    int64_t u = 0;
    for (; u + 4 <= n_blocks; u += 4, group += 64 + 4 * kMXBlockBytes) {
      prefetch_block<64 + 4 * kMXBlockBytes>(group);
      const __m512i e = load(group);
      const uint8_t* codes = group + 64;
      unit<T>(codes, scale_of(_mm512_and_si512(e, byte)), x, u, a, 0);
      unit<T>(codes + kMXBlockBytes, scale_of(_mm512_and_si512(_mm512_srli_epi32(e, 8), byte)), x, u + 1, a, 1);
      unit<T>(codes + 2 * kMXBlockBytes, scale_of(_mm512_and_si512(_mm512_srli_epi32(e, 16), byte)), x, u + 2, a, 2);
      unit<T>(codes + 3 * kMXBlockBytes, scale_of(_mm512_srli_epi32(e, 24)), x, u + 3, a, 3);
    }
    if (u < n_blocks) {
      const __m512i e = load(group);
      for (int i = 0; u < n_blocks; u++, i++) {
        const __m512i shifted = _mm512_srl_epi32(e, _mm_cvtsi32_si128(8 * i));
        unit<T>(group + 64 + i * kMXBlockBytes, scale_of(_mm512_and_si512(shifted, byte)), x, u, a, i);
      }
    }
    STRATA_UNROLL
    for (int t = 0; t < T; t++) out[t] = total(a[t]);
  }
};

struct Q80 {
  static int64_t group_bytes(int64_t n_cols) { return q8_group_bytes(n_cols); }

  template <int T>
  STRATA_INLINE void unit(const uint8_t* codes, __m512 dw, const A32Row* x, int64_t u, __m512 (*a)[4], int slot) {
    const __m512i flip = _mm512_set1_epi8(-128);  // code + 128 as an unsigned byte
    __m512i sum[T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) sum[t] = _mm512_set1_epi32(-128 * x[t].sum[u]);
    STRATA_UNROLL
    for (int c = 0; c < 8; c++) {
      const __m512i unsigned_codes = _mm512_xor_si512(load(codes + 64 * c), flip);
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        sum[t] = _mm512_dpbusd_epi32(sum[t], unsigned_codes, spread(x[t].q + 32 * u + 4 * c));
      }
    }
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      const __m512 scale = _mm512_mul_ps(dw, _mm512_set1_ps(x[t].d[u]));
      a[t][slot] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t]), scale, a[t][slot]);
    }
  }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m512* out) {
    __m512 a[T][4];
    A32Row x[T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      x[t] = a32_view(acts[t], n_cols);
      for (int i = 0; i < 4; i++) a[t][i] = _mm512_setzero_ps();
    }
    constexpr int64_t bundle_bytes = 64 + 2 * kQ8BlockBytes;
    const int64_t n_blocks = n_cols / 32;
    int64_t u = 0;
    for (; u + 4 <= n_blocks; u += 4, group += 2 * bundle_bytes) {
      prefetch_block<2 * bundle_bytes>(group);
      const uint8_t* second = group + bundle_bytes;
      unit<T>(group + 64, halves(group), x, u, a, 0);
      unit<T>(group + 64 + kQ8BlockBytes, halves(group + 32), x, u + 1, a, 1);
      unit<T>(second + 64, halves(second), x, u + 2, a, 2);
      unit<T>(second + 64 + kQ8BlockBytes, halves(second + 32), x, u + 3, a, 3);
    }
    for (int i = 0; u < n_blocks; u++, i++) {
      const uint8_t* bundle = group + i / 2 * bundle_bytes;
      unit<T>(bundle + 64 + i % 2 * kQ8BlockBytes, halves(bundle + i % 2 * 32), x, u, a, i);
    }
    STRATA_UNROLL
    for (int t = 0; t < T; t++) out[t] = total(a[t]);
  }
};

struct Q6K {
  static int64_t group_bytes(int64_t n_cols) { return q6k_group_bytes(n_cols); }

  // -32 * sum16 of the block's 16 runs as int32: the sums start there, for codes that are 32 too large.
  template <int T>
  STRATA_INLINE void offsets(const A256Row* x, int64_t u, int32_t (*start)[16]) {
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      const __m256i s = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x[t].sum16 + 16 * u));
      const __m512i times32 = _mm512_slli_epi32(_mm512_cvtepi16_epi32(s), 5);
      _mm512_store_si512(start[t], _mm512_sub_epi32(_mm512_setzero_si512(), times32));
    }
  }

  // Field i of four quartets: sub-block j with its scale.
  template <int T, int i>
  STRATA_INLINE void field(const uint8_t* chunk, const int8_t* const* q, __m512i scale, const int32_t (*start)[16], int j,
                           __m512i* isum) {
    __m512i sum[T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) sum[t] = spread(&start[t][j]);
    STRATA_UNROLL
    for (int c = 0; c < 4; c++) {
      const uint8_t* w = chunk + 192 * c;
      const __m512i codes = i < 3 ? _mm512_and_si512(load(w + 64 * (i % 3)), _mm512_set1_epi8(0x3f))
                                  : quartet_top(load(w), load(w + 64), load(w + 128));
      STRATA_UNROLL
      for (int t = 0; t < T; t++) sum[t] = _mm512_dpbusd_epi32(sum[t], codes, spread(q[t] + 4 * c));
    }
    STRATA_UNROLL
    for (int t = 0; t < T; t++) isum[t] = _mm512_add_epi32(isum[t], _mm512_mullo_epi32(sum[t], scale));
  }

  // Sub-scale of field i in quartets of part s: byte (i % 2) + 2s of word i / 2, since bytes hold sc 0, 2, 1, 3.
  template <int i>
  STRATA_INLINE __m512i scale_of(const uint8_t* words, int s) {
    const __m512i up = _mm512_sll_epi32(load(words + 64 * (i / 2)), _mm_cvtsi32_si128(24 - 8 * (i % 2 + 2 * s)));
    return _mm512_srai_epi32(up, 24);
  }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m512* out) {
    __m512 a[T][4];
    A256Row x[T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      x[t] = a256_view(acts[t], n_cols);
      for (int i = 0; i < 4; i++) a[t][i] = _mm512_setzero_ps();
    }
    const uint8_t* block = group + q6k_d_bytes(n_cols);
    for (int64_t u = 0; u < n_cols / 256; u++, block += kQ6KBlockBytes) {
      prefetch_block<kQ6KBlockBytes>(block);
      alignas(64) int32_t start[T][16];
      offsets<T>(x, u, start);
      __m512i isum[T];
      STRATA_UNROLL
      for (int t = 0; t < T; t++) isum[t] = _mm512_setzero_si512();
      for (int part = 0; part < 4; part++) {  // h = part / 2: which 128 weights; s = part % 2: which 16 of each 32
        const uint8_t* scales = block + 128 * (part / 2);
        const uint8_t* chunk = block + 64 * (4 + 12 * part);
        const int j = part / 2 * 8 + part % 2;
        const int8_t* q[T];
        STRATA_UNROLL
        for (int t = 0; t < T; t++) q[t] = x[t].q + 256 * u + 16 * j;
        field<T, 0>(chunk, q, scale_of<0>(scales, part % 2), start, j, isum);
        STRATA_UNROLL
        for (int t = 0; t < T; t++) q[t] += 32;
        field<T, 1>(chunk, q, scale_of<1>(scales, part % 2), start, j + 2, isum);
        STRATA_UNROLL
        for (int t = 0; t < T; t++) q[t] += 32;
        field<T, 2>(chunk, q, scale_of<2>(scales, part % 2), start, j + 4, isum);
        STRATA_UNROLL
        for (int t = 0; t < T; t++) q[t] += 32;
        field<T, 3>(chunk, q, scale_of<3>(scales, part % 2), start, j + 6, isum);
      }
      const __m512 d = halves(group + 32 * u);
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(x[t].d[u]));
        a[t][u & 3] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum[t]), scale, a[t][u & 3]);
      }
    }
    STRATA_UNROLL
    for (int t = 0; t < T; t++) out[t] = total(a[t]);
  }
};

// Runs one tile of T tokens on one group and writes the rows that exist.
template <class Type>
struct Tile {
  template <int T>
  static void run(const MatmulArgs& args, const uint8_t* group, int64_t row, int64_t token) {
    const uint8_t* acts[T];
    for (int t = 0; t < T; t++) acts[t] = act_row(args, token + t);
    __m512 out[T];
    Type::template run<T>(group, args.w.n_cols, acts, out);
    const int64_t n_rows = args.row_end - row;
    const auto mask = static_cast<__mmask16>(n_rows >= 16 ? 0xffff : (1 << n_rows) - 1);
    for (int t = 0; t < T; t++) _mm512_mask_storeu_ps(y_row(args, token + t) + row, mask, out[t]);
  }
};

template <class Type>
void matmul(const MatmulArgs& args) {
  for_each_tile<Tile<Type>, 8>(args, Type::group_bytes(args.w.n_cols));
}

}  // namespace

MatmulFn packed_matmul_avx512(int32_t type) {
  switch (type) {
    case kTypeQ4_K: return matmul<Q4K>;
    case kTypeQ6_K: return matmul<Q6K>;
    case kTypeQ8_0: return matmul<Q80>;
    case kTypeMXFP4: return matmul<MXFP4>;
    default: return nullptr;
  }
}

}  // namespace strata::cpu
#endif
