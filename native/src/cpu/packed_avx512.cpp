// AVX-512 VNNI kernels on the packed layouts: lane r of a vector is row r of the group.
//
// Floors, measured on 2026-12-01 on one core of a 2-core Zen 4 VM at 3.69 GHz, by the thread's CPU time, other work running:
//   one token: weight bytes / memory bandwidth. A plain read loop gives 21 to 24 GB/s; the kernels give Q4_K 28.7,
//   Q6_K 25.6,
//     Q8_0 23.4, MXFP4 25.3 GB/s (from the cache 64, 71, 105, 45 GB/s: the arithmetic keeps ahead).
//   many tokens: vpdpbusd, 64 products a cycle = 236 G/s. It shares its unit with the multiplications that contract C1 asks
//     for: a scale product and an fma for every unit, and vpmulld for the sub-scales. That leaves at most
//     Q4_K 189, Q6_K 184, Q8_0 189, MXFP4 189 G products/s; reached are 178, 154, 177, 168.
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
STRATA_INLINE __m512 total(const __m512 a[4]) { return _mm512_add_ps(_mm512_add_ps(a[0], a[2]), _mm512_add_ps(a[1], a[3])); }
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

// Ends a stretch of a kernel: the compiler neither starts the next one's loads before nor leaves a sum for later, which
// would cost spilled vectors (a 512-bit store takes two cycles).
STRATA_INLINE void end_stretch(__m512i& sum) { asm volatile("" : "+v"(sum) : : "memory"); }

// Kernels work on tiles of T tokens and R neighbouring groups. Sharing a broadcast of activations between two groups
// matters: with one group, eight tokens need more loads than multiplications, and a 512-bit load is one a cycle.
template <int T, int R>
using Sums = __m512[R][T][4];  // float accumulators [group][token][unit mod 4]

template <int T, int R>
STRATA_INLINE void clear(Sums<T, R>& a) {
  for (int r = 0; r < R; r++) {
    for (int t = 0; t < T; t++) {
      for (int i = 0; i < 4; i++) a[r][t][i] = _mm512_setzero_ps();
    }
  }
}
template <int T, int R>
STRATA_INLINE void finish(const Sums<T, R>& a, __m512 (*out)[T]) {
  for (int r = 0; r < R; r++) {
    for (int t = 0; t < T; t++) out[r][t] = total(a[r][t]);
  }
}

struct Q4K {
  static int64_t group_bytes(int64_t n_cols) { return q4k_group_bytes(n_cols); }

  // isum of one block: 64 weights of every row at a time, low nibbles one sub-block, high nibbles the next.
  template <int T, int R>
  STRATA_INLINE void codes(const uint8_t* block, int64_t stride, const A256Row* x, int64_t u, __m512i (*isum)[T]) {
    const __m512i low6 = _mm512_set1_epi8(0x3f), low4 = _mm512_set1_epi8(0x0f), byte = _mm512_set1_epi32(255);
    __m512i scales[R];
    for (int g = 0; g < 4; g++) {
      __m512i low[R][T], high[R][T];
      STRATA_UNROLL
      for (int r = 0; r < R; r++) {
        STRATA_UNROLL
        for (int t = 0; t < T; t++) low[r][t] = high[r][t] = _mm512_setzero_si512();
      }
      STRATA_UNROLL
      for (int c = 0; c < 8; c++) {
        __m512i codes_low[R], codes_high[R];
        STRATA_UNROLL
        for (int r = 0; r < R; r++) {
          const __m512i w = load(block + r * stride + 64 * (4 + 8 * g + c));
          codes_low[r] = _mm512_and_si512(w, low4);
          codes_high[r] = _mm512_and_si512(_mm512_srli_epi32(w, 4), low4);
        }
        STRATA_UNROLL
        for (int t = 0; t < T; t++) {
          const int8_t* q = x[t].q + 256 * u + 64 * g + 4 * c;
          const __m512i q_low = spread(q), q_high = spread(q + 32);
          STRATA_UNROLL
          for (int r = 0; r < R; r++) {
            low[r][t] = _mm512_dpbusd_epi32(low[r][t], codes_low[r], q_low);
            high[r][t] = _mm512_dpbusd_epi32(high[r][t], codes_high[r], q_high);
          }
        }
      }
      STRATA_UNROLL
      for (int r = 0; r < R; r++) {
        if (g % 2 == 0) scales[r] = _mm512_and_si512(load(block + r * stride + 64 + 64 * (g / 2)), low6);
        const __m512i scale_low = _mm512_and_si512(scales[r], byte);
        const __m512i scale_high = _mm512_and_si512(_mm512_srli_epi32(scales[r], 8), byte);
        scales[r] = _mm512_srli_epi32(scales[r], 16);
        STRATA_UNROLL
        for (int t = 0; t < T; t++) {
          isum[r][t] = _mm512_add_epi32(isum[r][t], _mm512_mullo_epi32(low[r][t], scale_low));
          isum[r][t] = _mm512_add_epi32(isum[r][t], _mm512_mullo_epi32(high[r][t], scale_high));
        }
      }
    }
  }

  // Adds one block of one group to the accumulators, the minimums included.
  template <int T>
  STRATA_INLINE void add(const uint8_t* block, const A256Row* x, int64_t u, const __m512i* isum, __m512 (*a)[4]) {
    const __m512i even = _mm512_set1_epi32(0x00ff00ff);
    const __m512i w2 = load(block + 192);
    const __m512i m_low = _mm512_and_si512(w2, _mm512_set1_epi8(0x3f));
    const __m512i m_high = quartet_top(load(block + 64), load(block + 128), w2);
    const __m512i m01 = _mm512_and_si512(m_low, even), m23 = _mm512_and_si512(_mm512_srli_epi32(m_low, 8), even);
    const __m512i m45 = _mm512_and_si512(m_high, even), m67 = _mm512_and_si512(_mm512_srli_epi32(m_high, 8), even);
    const __m512 d = halves(block), d_min = halves(block + 32);
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

  template <int T, int R>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m512 (*out)[T]) {
    const int64_t stride = group_bytes(n_cols);
    Sums<T, R> a;
    A256Row x[T];
    clear<T, R>(a);
    STRATA_UNROLL
    for (int t = 0; t < T; t++) x[t] = a256_view(acts[t], n_cols);
    for (int64_t u = 0; u < n_cols / 256; u++, group += kQ4KBlockBytes) {
      __m512i isum[R][T];
      STRATA_UNROLL
      for (int r = 0; r < R; r++) {
        STRATA_UNROLL
        for (int t = 0; t < T; t++) isum[r][t] = _mm512_setzero_si512();
      }
      if (T * R == 1) prefetch(group);
      codes<T, R>(group, stride, x, u, isum);
      STRATA_UNROLL
      for (int r = 0; r < R; r++) add<T>(group + r * stride, x, u, isum[r], a[r]);
    }
    finish<T, R>(a, out);
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

  // Sub-scale of field i in quartets of part s: byte (i % 2) + 2s of word i / 2, since bytes hold sc 0, 2, 1, 3.
  template <int i>
  STRATA_INLINE __m512i scale_of(__m512i word, int s) {
    const __m512i up = _mm512_sll_epi32(word, _mm_cvtsi32_si128(24 - 8 * (i % 2 + 2 * s)));
    return _mm512_srai_epi32(up, 24);
  }

  // Field i of four quartets: sub-block j = 8h + s + 2i of the block.
  template <int T, int R, int i>
  STRATA_INLINE void field(const uint8_t* block, int64_t stride, int part, const A256Row* x, int64_t u,
                           const int32_t (*start)[16], __m512i (*isum)[T]) {
    const int j = part / 2 * 8 + part % 2 + 2 * i;
    const uint8_t* chunk = block + 64 * (4 + 12 * part);
    __m512i sum[R][T];
    STRATA_UNROLL
    for (int r = 0; r < R; r++) {
      STRATA_UNROLL
      for (int t = 0; t < T; t++) sum[r][t] = spread(&start[t][j]);
    }
    STRATA_UNROLL
    for (int c = 0; c < 4; c++) {
      __m512i codes[R];
      STRATA_UNROLL
      for (int r = 0; r < R; r++) {
        const uint8_t* w = chunk + r * stride + 192 * c;
        codes[r] = i < 3 ? _mm512_and_si512(load(w + 64 * (i % 3)), _mm512_set1_epi8(0x3f))
                         : quartet_top(load(w), load(w + 64), load(w + 128));
      }
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        const __m512i q = spread(x[t].q + 256 * u + 16 * j + 4 * c);
        STRATA_UNROLL
        for (int r = 0; r < R; r++) sum[r][t] = _mm512_dpbusd_epi32(sum[r][t], codes[r], q);
      }
    }
    STRATA_UNROLL
    for (int r = 0; r < R; r++) {
      const __m512i scale = scale_of<i>(load(block + r * stride + 128 * (part / 2) + 64 * (i / 2)), part % 2);
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        isum[r][t] = _mm512_add_epi32(isum[r][t], _mm512_mullo_epi32(sum[r][t], scale));
        end_stretch(isum[r][t]);
      }
    }
  }

  // One part of one token: all four fields at once, so that the chunks are read in their order; field() reads them three
  // times, which the caches bear where several tokens share the work. `words` are the sub-scales of this half.
  STRATA_INLINE __m512i all_fields(const uint8_t* block, int part, const __m512i* words, const int8_t* q,
                                   const int32_t* start, __m512i isum) {
    const __m512i low6 = _mm512_set1_epi8(0x3f);
    const int first = part / 2 * 8 + part % 2;
    __m512i sum[4];
    STRATA_UNROLL
    for (int i = 0; i < 4; i++) sum[i] = spread(start + first + 2 * i);
    STRATA_UNROLL
    for (int c = 0; c < 4; c++) {
      const uint8_t* w = block + 64 * (4 + 12 * part + 3 * c);
      const __m512i w0 = load(w), w1 = load(w + 64), w2 = load(w + 128);
      const __m512i codes[4] = {_mm512_and_si512(w0, low6), _mm512_and_si512(w1, low6), _mm512_and_si512(w2, low6),
                                quartet_top(w0, w1, w2)};
      STRATA_UNROLL
      for (int i = 0; i < 4; i++) sum[i] = _mm512_dpbusd_epi32(sum[i], codes[i], spread(q + 16 * (first + 2 * i) + 4 * c));
    }
    const __m512i scales[4] = {scale_of<0>(words[0], part % 2), scale_of<1>(words[0], part % 2),
                               scale_of<2>(words[1], part % 2), scale_of<3>(words[1], part % 2)};
    STRATA_UNROLL
    for (int i = 0; i < 4; i++) isum = _mm512_add_epi32(isum, _mm512_mullo_epi32(sum[i], scales[i]));
    return isum;
  }

  template <int T, int R>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m512 (*out)[T]) {
    const int64_t stride = group_bytes(n_cols);
    Sums<T, R> a;
    A256Row x[T];
    clear<T, R>(a);
    STRATA_UNROLL
    for (int t = 0; t < T; t++) x[t] = a256_view(acts[t], n_cols);
    const uint8_t* block = group + q6k_d_bytes(n_cols);
    for (int64_t u = 0; u < n_cols / 256; u++, block += kQ6KBlockBytes) {
      alignas(64) int32_t start[T][16];
      offsets<T>(x, u, start);
      __m512i isum[R][T];
      STRATA_UNROLL
      for (int r = 0; r < R; r++) {
        STRATA_UNROLL
        for (int t = 0; t < T; t++) isum[r][t] = _mm512_setzero_si512();
      }
      if constexpr (T * R == 1) {
        prefetch(block);
        // The sub-scales first: where the compiler left these loads behind the codes' the stream ran backwards, and the
        // core's prefetcher gave 15 GB/s instead of 26.
        __m512i words[4];
        STRATA_UNROLL
        for (int i = 0; i < 4; i++) {
          words[i] = load(block + 64 * i);
          end_stretch(words[i]);
        }
        const int8_t* q = x[0].q + 256 * u;
        STRATA_UNROLL
        for (int part = 0; part < 4; part++) {
          isum[0][0] = all_fields(block, part, words + part / 2 * 2, q, start[0], isum[0][0]);
        }
      } else {
        for (int part = 0; part < 4; part++) {  // h = part / 2: which 128 weights; s = part % 2: which 16 of each 32
          field<T, R, 0>(block, stride, part, x, u, start, isum);
          field<T, R, 1>(block, stride, part, x, u, start, isum);
          field<T, R, 2>(block, stride, part, x, u, start, isum);
          field<T, R, 3>(block, stride, part, x, u, start, isum);
        }
      }
      STRATA_UNROLL
      for (int r = 0; r < R; r++) {
        const __m512 d = halves(group + r * stride + 32 * u);
        STRATA_UNROLL
        for (int t = 0; t < T; t++) {
          const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(x[t].d[u]));
          a[r][t][u & 3] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum[r][t]), scale, a[r][t][u & 3]);
        }
      }
    }
    finish<T, R>(a, out);
  }
};

// Adds the sums of one unit of an A32 type to accumulator `slot`.
template <int T, int R>
STRATA_INLINE void add_unit(__m512i (*sum)[T], const __m512* dw, const A32Row* x, int64_t u, int slot, Sums<T, R>& a) {
  STRATA_UNROLL
  for (int t = 0; t < T; t++) {
    const __m512 dx = _mm512_set1_ps(x[t].d[u]);
    STRATA_UNROLL
    for (int r = 0; r < R; r++) {
      end_stretch(sum[r][t]);
      const __m512 scale = _mm512_mul_ps(dw[r], dx);
      a[r][t][slot] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][t]), scale, a[r][t][slot]);
    }
  }
}

struct MXFP4 {
  static int64_t group_bytes(int64_t n_cols) { return mx_group_bytes(n_cols); }

  // 2^(e - 128) of unit i from a bundle's chunk of exponents; e = 0 and 1 are subnormal.
  STRATA_INLINE __m512 scale_of(__m512i chunk, int i) {
    const __m512i e = _mm512_and_si512(_mm512_srl_epi32(chunk, _mm_cvtsi32_si128(8 * i)), _mm512_set1_epi32(255));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), subnormal));
  }
  // The same where no exponent of the chunk is below 2: e - 1 of all bytes at once, then shifted into place.
  STRATA_INLINE __m512 normal_scale_of(__m512i chunk, int i) {
    const __m512i less = _mm512_sub_epi8(chunk, _mm512_set1_epi8(1));
    const __m512i placed = i == 3 ? _mm512_srli_epi32(less, 1) : _mm512_slli_epi32(less, static_cast<unsigned>(23 - 8 * i));
    return _mm512_castsi512_ps(_mm512_and_si512(placed, _mm512_set1_epi32(0x7f800000)));
  }

  // Unit i of a bundle, with the scales of its rows.
  template <int T, int R>
  STRATA_INLINE void unit(const uint8_t* bundle, int64_t stride, const __m512* dw, const A32Row* x, int64_t u, int i,
                          Sums<T, R>& a) {
    // Codes + 12, so that the unsigned side of vpdpbusd can hold them; the sum starts at -12 * sum(x).
    const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i low4 = _mm512_set1_epi8(0x0f);
    __m512i sum[R][T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      const __m512i start = _mm512_set1_epi32(-12 * x[t].sum[u]);
      STRATA_UNROLL
      for (int r = 0; r < R; r++) sum[r][t] = start;
    }
    STRATA_UNROLL
    for (int c = 0; c < 4; c++) {
      __m512i low[R], high[R];
      STRATA_UNROLL
      for (int r = 0; r < R; r++) {
        const __m512i pairs = load(bundle + r * stride + 64 + i * kMXBlockBytes + 64 * c);
        low[r] = _mm512_shuffle_epi8(table, _mm512_and_si512(pairs, low4));
        high[r] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi32(pairs, 4), low4));
      }
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        const int8_t* q = x[t].q + 32 * u + 4 * c;
        const __m512i q_low = spread(q), q_high = spread(q + 16);
        STRATA_UNROLL
        for (int r = 0; r < R; r++) {
          sum[r][t] = _mm512_dpbusd_epi32(sum[r][t], low[r], q_low);
          sum[r][t] = _mm512_dpbusd_epi32(sum[r][t], high[r], q_high);
        }
      }
    }
    add_unit<T, R>(sum, dw, x, u, i, a);
  }

  template <int T, int R>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m512 (*out)[T]) {
    const int64_t stride = group_bytes(n_cols), n_blocks = n_cols / 32;
    Sums<T, R> a;
    A32Row x[T];
    clear<T, R>(a);
    STRATA_UNROLL
    for (int t = 0; t < T; t++) x[t] = a32_view(acts[t], n_cols);
    for (int64_t u = 0; u < n_blocks; u += 4, group += 64 + 4 * kMXBlockBytes) {
      if (T * R == 1) prefetch(group);
      __mmask64 tiny = 0;
      STRATA_UNROLL
      for (int r = 0; r < R; r++) tiny |= _mm512_cmplt_epu8_mask(load(group + r * stride), _mm512_set1_epi8(2));
      __m512 dw[R];
      if (tiny == 0) {  // and so a whole bundle: the unused exponents of a last one are zero
        STRATA_UNROLL
        for (int i = 0; i < 4; i++) {
          STRATA_UNROLL
          for (int r = 0; r < R; r++) dw[r] = normal_scale_of(load(group + r * stride), i);
          unit<T, R>(group, stride, dw, x, u + i, i, a);
        }
        continue;
      }
      for (int i = 0; i < 4 && u + i < n_blocks; i++) {
        STRATA_UNROLL
        for (int r = 0; r < R; r++) dw[r] = scale_of(load(group + r * stride), i);
        unit<T, R>(group, stride, dw, x, u + i, i, a);
      }
    }
    finish<T, R>(a, out);
  }
};

struct Q80 {
  static int64_t group_bytes(int64_t n_cols) { return q8_group_bytes(n_cols); }

  // Unit i of two bundles.
  template <int T, int R>
  STRATA_INLINE void unit(const uint8_t* bundles, int64_t stride, const A32Row* x, int64_t u, int i, Sums<T, R>& a) {
    const __m512i flip = _mm512_set1_epi8(-128);  // code + 128 as an unsigned byte
    const uint8_t* bundle = bundles + i / 2 * (64 + 2 * kQ8BlockBytes);
    const uint8_t* chunk = bundle + 64 + i % 2 * kQ8BlockBytes;
    __m512i sum[R][T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      const __m512i start = _mm512_set1_epi32(-128 * x[t].sum[u]);
      STRATA_UNROLL
      for (int r = 0; r < R; r++) sum[r][t] = start;
    }
    STRATA_UNROLL
    for (int c = 0; c < 8; c++) {
      __m512i codes[R];
      STRATA_UNROLL
      for (int r = 0; r < R; r++) codes[r] = _mm512_xor_si512(load(chunk + r * stride + 64 * c), flip);
      STRATA_UNROLL
      for (int t = 0; t < T; t++) {
        const __m512i q = spread(x[t].q + 32 * u + 4 * c);
        STRATA_UNROLL
        for (int r = 0; r < R; r++) sum[r][t] = _mm512_dpbusd_epi32(sum[r][t], codes[r], q);
      }
    }
    __m512 dw[R];
    STRATA_UNROLL
    for (int r = 0; r < R; r++) dw[r] = halves(bundle + r * stride + 32 * (i % 2));
    add_unit<T, R>(sum, dw, x, u, i, a);
  }

  template <int T, int R>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, __m512 (*out)[T]) {
    const int64_t stride = group_bytes(n_cols), n_blocks = n_cols / 32;
    constexpr int64_t two_bundles = 2 * (64 + 2 * kQ8BlockBytes);
    Sums<T, R> a;
    A32Row x[T];
    clear<T, R>(a);
    STRATA_UNROLL
    for (int t = 0; t < T; t++) x[t] = a32_view(acts[t], n_cols);
    int64_t u = 0;
    for (; u + 4 <= n_blocks; u += 4, group += two_bundles) {
      if (T * R == 1) prefetch(group);
      STRATA_UNROLL
      for (int i = 0; i < 4; i++) unit<T, R>(group, stride, x, u + i, i, a);
    }
    for (int i = 0; u + i < n_blocks; i++) unit<T, R>(group, stride, x, u + i, i, a);
    finish<T, R>(a, out);
  }
};

// Runs one tile of T tokens and R groups, and writes the rows that exist.
template <class Type>
struct Tile {
  template <int T, int R>
  static void run(const MatmulArgs& args, const uint8_t* group, int64_t row, int64_t token) {
    const uint8_t* acts[T];
    for (int t = 0; t < T; t++) acts[t] = act_row(args, token + t);
    __m512 out[R][T];
    Type::template run<T, R>(group, args.w.n_cols, acts, out);
    for (int r = 0; r < R; r++) {
      const int64_t first = row + r * kGroupRows, n_rows = args.row_end - first;
      const auto mask = static_cast<__mmask16>(n_rows >= 16 ? 0xffff : (1 << n_rows) - 1);
      for (int t = 0; t < T; t++) _mm512_mask_storeu_ps(y_row(args, token + t) + first, mask, out[r][t]);
    }
  }
};

template <class Type>
void matmul(const MatmulArgs& args) {
  for_each_tile<Tile<Type>, 2>(args, Type::group_bytes(args.w.n_cols));
}

}  // namespace

MatmulFn packed_matmul_avx512(int32_t type) {
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
