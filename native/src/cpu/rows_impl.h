// Products of activation rows with file rows, built once per tier (rows_*.cpp).
//
// A quantised row is read in spans of units. A span is decoded once to 16-bit integers (code times sub-scale, |.| <= 4,096)
// and serves up to kTokens tokens; each unit gives an exact int32, which meets its accumulator by one fma. F32, F16 and
// BF16 rows use 16 strided fma lanes. docs/numerics.md states the order and proves that no sum overflows.
#pragma once
#include "cpu/act.h"
#include "cpu/decode_256.h"
#include "cpu/float_rows.h"
#include "cpu/rows.h"

namespace strata::cpu {
namespace {

constexpr int64_t kTokens = 32;  // tokens that share one decoding

// ---- exact integer sums ---------------------------------------------------------------------------------------------

#if defined(__AVX512F__) && !defined(STRATA_SIMD_SCALAR)
using Sums = __m256i;
STRATA_LANE __m512i products32(const int16_t* w, const int8_t* x) {
  const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  return _mm512_madd_epi16(_mm512_loadu_si512(w), wide);
}
STRATA_LANE Sums fold(__m512i v) { return _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1)); }
// Eight partial sums of n products.
template <int n>
STRATA_LANE Sums partial_sums(const int16_t* w, const int8_t* x) {
  if constexpr (n == 16) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    return _mm256_madd_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)), wide);
  } else {
    __m512i sum = products32(w, x);
    for (int i = 32; i < n; i += 32) sum = _mm512_add_epi32(sum, products32(w + i, x + i));
    return fold(sum);
  }
}
#elif defined(__AVX2__) && !defined(STRATA_SIMD_SCALAR)
using Sums = __m256i;
template <int n>
STRATA_LANE Sums partial_sums(const int16_t* w, const int8_t* x) {
  __m256i sum = _mm256_setzero_si256();
  for (int i = 0; i < n; i += 16) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)));
    const __m256i weights = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + i));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(weights, wide));
  }
  return sum;
}
#endif

#if defined(__AVX2__) && !defined(STRATA_SIMD_SCALAR)
STRATA_LANE __m128i add_across(Sums a, Sums b, Sums c, Sums d) {
  const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
  return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}
// Sums of four consecutive units of n products.
template <int n>
STRATA_LANE void unit_sums4(const int16_t* w, const int8_t* x, int32_t* out) {
  const __m128i sums = add_across(partial_sums<n>(w, x), partial_sums<n>(w + n, x + n),
                                  partial_sums<n>(w + 2 * n, x + 2 * n), partial_sums<n>(w + 3 * n, x + 3 * n));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), sums);
}
template <int n>
STRATA_LANE int32_t unit_sum(const int16_t* w, const int8_t* x) {
  const __m256i zero = _mm256_setzero_si256();
  return _mm_cvtsi128_si32(add_across(partial_sums<n>(w, x), zero, zero, zero));
}
// Minimums times sums of 16 activations, over one super-block.
STRATA_LANE int32_t minimum_sum(const int16_t* minimum, const int16_t* sum16) {
  const __m256i products = _mm256_madd_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(minimum)),
                                             _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum16)));
  const __m256i zero = _mm256_setzero_si256();
  return _mm_cvtsi128_si32(add_across(products, zero, zero, zero));
}
// w[i] = q[i] * scale for 16 values.
STRATA_LANE void scale16(const int8_t* q, int16_t scale, int16_t* w) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(w), _mm256_mullo_epi16(wide, _mm256_set1_epi16(scale)));
}
// acc[i] = fma(float(sum[i]), d[i] * dx[i], acc[i]) for the four accumulators.
STRATA_LANE void accumulate4(const int32_t* sum, const float* d, const float* dx, float* acc) {
  const __m128 s = _mm_cvtepi32_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sum)));
  const __m128 scale = _mm_mul_ps(_mm_loadu_ps(d), _mm_loadu_ps(dx));
  _mm_storeu_ps(acc, _mm_fmadd_ps(s, scale, _mm_loadu_ps(acc)));
}
#else
template <int n>
STRATA_LANE int32_t unit_sum(const int16_t* w, const int8_t* x) {
  int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<int32_t>(w[i]) * x[i];
  return sum;
}
template <int n>
STRATA_LANE void unit_sums4(const int16_t* w, const int8_t* x, int32_t* out) {
  for (int u = 0; u < 4; ++u) out[u] = unit_sum<n>(w + u * n, x + u * n);
}
STRATA_LANE int32_t minimum_sum(const int16_t* minimum, const int16_t* sum16) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += static_cast<int32_t>(minimum[i]) * sum16[i];
  return sum;
}
STRATA_LANE void scale16(const int8_t* q, int16_t scale, int16_t* w) {
  for (int i = 0; i < 16; ++i) w[i] = static_cast<int16_t>(q[i] * scale);
}
STRATA_LANE void accumulate4(const int32_t* sum, const float* d, const float* dx, float* acc) {
  for (int i = 0; i < 4; ++i) acc[i] = strata::v_fma(static_cast<float>(sum[i]), d[i] * dx[i], acc[i]);
}
#endif

// The same for the first n accumulators.
STRATA_LANE void accumulate(const int32_t* sum, const float* d, const float* dx, int64_t n, float* acc) {
  for (int64_t i = 0; i < n; ++i) acc[i] = strata::v_fma(static_cast<float>(sum[i]), d[i] * dx[i], acc[i]);
}
STRATA_LANE float add_accumulators(const float* acc) { return (acc[0] + acc[2]) + (acc[1] + acc[3]); }

// ---- blocks of 32 ---------------------------------------------------------------------------------------------------

constexpr int kSpan32 = 512;  // values of one span

template <class D>
struct Span32 {
  static constexpr int kUnits = kSpan32 / D::kUnit;
  alignas(64) int16_t w[kSpan32];
  float d[kUnits], m[kUnits];
  int64_t n_units;

  STRATA_LANE void decode(const uint8_t* blocks, int64_t n_blocks, Span32& out) {
    constexpr int kPerBlock = D::kValues / D::kUnit;
    for (int64_t b = 0; b < n_blocks; ++b) {
      D::decode(blocks + b * D::kBytes, out.w + b * D::kValues, out.d + b * kPerBlock, out.m + b * kPerBlock);
    }
    out.n_units = n_blocks * kPerBlock;
  }
  // Scales of n <= 4 units from `unit` on; two units of 16 share an activation scale.
  STRATA_LANE const float* act_scales(const A32Row& x, int64_t unit, int64_t n, float* copy) {
    if (D::kUnit == 32) return x.d + unit;
    for (int64_t i = 0; i < n; ++i) copy[i] = x.d[(unit + i) / 2];
    return copy;
  }
  // Adds the span, whose first unit is first_unit (a multiple of 4), to the accumulators.
  STRATA_LANE void add(const Span32& s, const A32Row& x, int64_t first_unit, float* acc) {
    float copy[4];
    int64_t u = 0;
    const int8_t* q = x.q + first_unit * D::kUnit;
    for (; u + 4 <= s.n_units; u += 4) {
      int32_t sums[4];
      unit_sums4<D::kUnit>(s.w + u * D::kUnit, q + u * D::kUnit, sums);
      const float* dx = act_scales(x, first_unit + u, 4, copy);
      accumulate4(sums, s.d + u, dx, acc);
      if constexpr (D::kHasMin) accumulate4(x.sum + first_unit + u, s.m + u, dx, acc);
    }
    if (u == s.n_units) return;
    int32_t sums[4];
    const int64_t left = s.n_units - u;
    for (int64_t i = 0; i < left; ++i) sums[i] = unit_sum<D::kUnit>(s.w + (u + i) * D::kUnit, q + (u + i) * D::kUnit);
    const float* dx = act_scales(x, first_unit + u, left, copy);
    accumulate(sums, s.d + u, dx, left, acc);
    if constexpr (D::kHasMin) accumulate(x.sum + first_unit + u, s.m + u, dx, left, acc);
  }
};

template <class D>
void matmul_32(const MatmulArgs& args) {
  constexpr int64_t kBlocks = kSpan32 / D::kValues;
  const int64_t n_cols = args.w.n_cols, n_blocks = n_cols / D::kValues;
  for (int64_t first = 0; first < args.n_tokens; first += kTokens) {
    const int64_t n = args.n_tokens - first < kTokens ? args.n_tokens - first : kTokens;
    A32Row x[kTokens];
    for (int64_t t = 0; t < n; ++t) x[t] = a32_view(act_row(args, first + t), n_cols);
    for (int64_t row = args.row_begin; row < args.row_end; ++row) {
      const uint8_t* bytes = args.w.data + row * n_blocks * D::kBytes;
      float acc[kTokens][4];
      memset(acc, 0, static_cast<size_t>(n) * sizeof acc[0]);
      for (int64_t b = 0; b < n_blocks; b += kBlocks) {
        Span32<D> span;
        Span32<D>::decode(bytes + b * D::kBytes, n_blocks - b < kBlocks ? n_blocks - b : kBlocks, span);
        for (int64_t t = 0; t < n; ++t) Span32<D>::add(span, x[t], b * (D::kValues / D::kUnit), acc[t]);
      }
      for (int64_t t = 0; t < n; ++t) y_row(args, first + t)[row] = add_accumulators(acc[t]);
    }
  }
}

// ---- super-blocks of 256 --------------------------------------------------------------------------------------------

struct Span256 {
  static constexpr int kUnits = 4;
  alignas(64) int16_t w[kUnits][256];
  alignas(64) int16_t minimum[kUnits][16];
  float d[kUnits], minus_dmin[kUnits];
};

template <class D>
STRATA_LANE void decode_span(const uint8_t* blocks, int64_t n_units, Span256& out) {
  for (int64_t u = 0; u < n_units; ++u) {
    SuperBlock block;
    D::decode(blocks + u * D::kBytes, block);
    for (int g = 0; g < 16; ++g) scale16(block.q + 16 * g, block.scale[g], out.w[u] + 16 * g);
    out.d[u] = block.d;
    if constexpr (D::kHasMin) {
      memcpy(out.minimum[u], block.minimum, sizeof block.minimum);
      out.minus_dmin[u] = -block.dmin;
    }
  }
}
// Adds n_units <= 4 units, the first one being a multiple of 4.
template <bool kHasMin>
STRATA_LANE void add_span(const Span256& s, int64_t n_units, const A256Row& x, int64_t first_unit, float* acc) {
  int32_t sums[4], minimums[4];
  const int8_t* q = x.q + first_unit * 256;
  if (n_units == 4)
    unit_sums4<256>(s.w[0], q, sums);
  else
    for (int64_t u = 0; u < n_units; ++u) sums[u] = unit_sum<256>(s.w[u], q + u * 256);
  if constexpr (kHasMin)
    for (int64_t u = 0; u < n_units; ++u) minimums[u] = minimum_sum(s.minimum[u], x.sum16 + (first_unit + u) * 16);
  const float* dx = x.d + first_unit;
  if (n_units == 4) {
    accumulate4(sums, s.d, dx, acc);
    if constexpr (kHasMin) accumulate4(minimums, s.minus_dmin, dx, acc);
  } else {
    accumulate(sums, s.d, dx, n_units, acc);
    if constexpr (kHasMin) accumulate(minimums, s.minus_dmin, dx, n_units, acc);
  }
}

template <class D>
void matmul_256(const MatmulArgs& args) {
  const int64_t n_cols = args.w.n_cols, n_blocks = n_cols / 256;
  for (int64_t first = 0; first < args.n_tokens; first += kTokens) {
    const int64_t n = args.n_tokens - first < kTokens ? args.n_tokens - first : kTokens;
    A256Row x[kTokens];
    for (int64_t t = 0; t < n; ++t) x[t] = a256_view(act_row(args, first + t), n_cols);
    for (int64_t row = args.row_begin; row < args.row_end; ++row) {
      const uint8_t* bytes = args.w.data + row * n_blocks * D::kBytes;
      float acc[kTokens][4];
      memset(acc, 0, static_cast<size_t>(n) * sizeof acc[0]);
      for (int64_t b = 0; b < n_blocks; b += Span256::kUnits) {
        const int64_t n_units = n_blocks - b < Span256::kUnits ? n_blocks - b : Span256::kUnits;
        Span256 span;
        decode_span<D>(bytes + b * D::kBytes, n_units, span);
        for (int64_t t = 0; t < n; ++t) add_span<D::kHasMin>(span, n_units, x[t], b, acc[t]);
      }
      for (int64_t t = 0; t < n; ++t) y_row(args, first + t)[row] = add_accumulators(acc[t]);
    }
  }
}

// ---- float weights --------------------------------------------------------------------------------------------------

// kR rows against kT tokens; the 16 lanes of each pair are its own.
template <class Row, int kR, int kT>
STRATA_LANE void float_block(const MatmulArgs& args, int64_t row, int64_t token) {
  const int64_t n_cols = args.w.n_cols, stride = n_cols * Row::kBytes;
  const uint8_t* w = args.w.data + row * stride;
  const uint8_t* x[kT];
  for (int t = 0; t < kT; ++t) x[t] = act_row(args, token + t);
  VF lanes[kR][kT][k16];
  for (int r = 0; r < kR; ++r)
    for (int t = 0; t < kT; ++t)
      for (int k = 0; k < k16; ++k) lanes[r][t][k] = VF(0.0f);
  int64_t c = 0;
  for (; c + 16 <= n_cols; c += 16)
    for (int k = 0; k < k16; ++k)
      for (int r = 0; r < kR; ++r) {
        const VF weights = Row::load(w + r * stride, c + k * kLanes);
        for (int t = 0; t < kT; ++t) lanes[r][t][k] = v_fma(weights, RowF32::load(x[t], c + k * kLanes), lanes[r][t][k]);
      }
  for (int k = 0; k < k16 && c < n_cols; ++k) {  // lanes behind the end take fma(0, 0, lane)
    const int64_t left = n_cols - c - k * kLanes, n = left < 0 ? 0 : left < kLanes ? left : kLanes;
    for (int r = 0; r < kR; ++r) {
      const VF weights = load_first<Row>(w + r * stride, c + k * kLanes, n);
      for (int t = 0; t < kT; ++t)
        lanes[r][t][k] = v_fma(weights, load_first<RowF32>(x[t], c + k * kLanes, n), lanes[r][t][k]);
    }
  }
  for (int r = 0; r < kR; ++r)
    for (int t = 0; t < kT; ++t) y_row(args, token + t)[row + r] = v_tree16(lanes[r][t]);
}

template <class Row>
void matmul_float(const MatmulArgs& args) {
  constexpr int kT = kLanes == 16 ? 4 : 2, kR = kT, kROne = 8 / (k16 < 8 ? k16 : 8);
  int64_t row = args.row_begin;
  for (; row + kR <= args.row_end; row += kR) {
    int64_t token = 0;
    for (; token + kT <= args.n_tokens; token += kT) float_block<Row, kR, kT>(args, row, token);
    if (args.n_tokens >= kT)
      for (; token < args.n_tokens; ++token) float_block<Row, kR, 1>(args, row, token);
    else
      break;  // too few tokens for a tile: more rows at once below
  }
  for (; row + kROne <= args.row_end; row += kROne)
    for (int64_t token = 0; token < args.n_tokens; ++token) float_block<Row, kROne, 1>(args, row, token);
  for (; row < args.row_end; ++row)
    for (int64_t token = 0; token < args.n_tokens; ++token) float_block<Row, 1, 1>(args, row, token);
}

// ---- choice ---------------------------------------------------------------------------------------------------------

struct RowEntry {
  int32_t type;
  MatmulFn matmul;
};
template <class... D>
struct List {};
using All32 = List<DecodeQ4_0, DecodeQ4_1, DecodeQ5_0, DecodeQ5_1, DecodeQ8_0, DecodeIq4Nl, DecodeMxfp4, DecodeNvfp4>;
using All256 = List<DecodeQ2K, DecodeQ3K, DecodeQ4K, DecodeQ5K, DecodeQ6K, DecodeTq1, DecodeTq2, DecodeIq4Xs, DecodeIq2Xxs,
                    DecodeIq2Xs, DecodeIq2S, DecodeIq3Xxs, DecodeIq3S, DecodeIq1S, DecodeIq1M>;

template <class... D>
STRATA_LANE MatmulFn find_32(int32_t type, List<D...>) {
  const RowEntry entries[] = {{D::kType, matmul_32<D>}...};
  for (const RowEntry& entry : entries)
    if (entry.type == type) return entry.matmul;
  return nullptr;
}
template <class... D>
STRATA_LANE MatmulFn find_256(int32_t type, List<D...>) {
  const RowEntry entries[] = {{D::kType, matmul_256<D>}...};
  for (const RowEntry& entry : entries)
    if (entry.type == type) return entry.matmul;
  return nullptr;
}
STRATA_LANE MatmulFn find_rows_matmul(int32_t type) {
  if (type == 0) return matmul_float<RowF32>;
  if (type == 1) return matmul_float<RowF16>;
  if (type == 30) return matmul_float<RowBf16>;
  const MatmulFn found = find_32(type, All32{});
  return found != nullptr ? found : find_256(type, All256{});
}

}  // namespace
}  // namespace strata::cpu
