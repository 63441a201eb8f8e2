// AVX2 rounding of activation rows.
#if defined(__AVX2__)
#include <immintrin.h>

#include <cstring>

#include "cpu/act.h"

namespace strata::cpu {
namespace {

struct Unit {
  float d;
  bool zero;  // all codes are zero
};

__m256i abs_bits(const float* x) {
  return _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x)), _mm256_set1_epi32(0x7fffffff));
}

Unit unit_of(const float* x, int64_t n) {
  __m256i lanes = abs_bits(x);
  for (int64_t i = 8; i < n; i += 8) lanes = _mm256_max_epi32(lanes, abs_bits(x + i));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  const int32_t amax_bits = _mm_cvtsi128_si32(m);
  const bool finite = amax_bits < 0x7f800000;
  const int32_t nan_bits = 0x7fc00000;
  float amax, nan;
  memcpy(&amax, &amax_bits, 4);
  memcpy(&nan, &nan_bits, 4);
  const float d = finite ? amax / 127.0f : nan;
  return {d, !(d > 0.0f)};
}

// 8 codes as int32. The rounding is the explicit one of vroundps, not the
// thread's mode.
__m256i codes8(const float* x, __m256 d) {
  __m256 v = _mm256_div_ps(_mm256_loadu_ps(x), d);
  v = _mm256_max_ps(_mm256_min_ps(v, _mm256_set1_ps(127.0f)), _mm256_set1_ps(-127.0f));
  return _mm256_cvtps_epi32(_mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Writes 16 codes and returns their sum.
int32_t codes16(const float* x, Unit unit, int8_t* q) {
  if (unit.zero) {
    _mm_store_si128(reinterpret_cast<__m128i*>(q), _mm_setzero_si128());
    return 0;
  }
  const __m256 d = _mm256_set1_ps(unit.d);
  const __m256i low = codes8(x, d), high = codes8(x + 8, d);
  // packs works within 128-bit halves: the permute puts the four runs of four
  // back in order.
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
  const __m128i a = _mm256_castsi256_si128(words), b = _mm256_extracti128_si256(words, 1);
  _mm_store_si128(reinterpret_cast<__m128i*>(q), _mm_packs_epi16(a, b));
  __m128i sum = _mm_madd_epi16(_mm_add_epi16(a, b), _mm_set1_epi16(1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  return _mm_cvtsi128_si32(sum);
}

void quantize_a32(const float* x, int64_t n_cols, uint8_t* row) {
  auto* q = reinterpret_cast<int8_t*>(row);
  auto* d = reinterpret_cast<float*>(row + a32_d_offset(n_cols));
  auto* sum = reinterpret_cast<int32_t*>(row + a32_sum_offset(n_cols));
  for (int64_t u = 0; u < n_cols / 32; u++, x += 32, q += 32) {
    const Unit unit = unit_of(x, 32);
    d[u] = unit.d;
    sum[u] = codes16(x, unit, q);
    sum[u] += codes16(x + 16, unit, q + 16);
  }
}

void quantize_a256(const float* x, int64_t n_cols, uint8_t* row) {
  auto* q = reinterpret_cast<int8_t*>(row);
  auto* d = reinterpret_cast<float*>(row + a256_d_offset(n_cols));
  auto* sum16 = reinterpret_cast<int16_t*>(row + a256_sum16_offset(n_cols));
  auto* sum32 = reinterpret_cast<int16_t*>(row + a256_sum32_offset(n_cols));
  for (int64_t u = 0; u < n_cols / 256; u++, x += 256, q += 256, sum16 += 16, sum32 += 8) {
    const Unit unit = unit_of(x, 256);
    d[u] = unit.d;
    for (int i = 0; i < 16; i++) sum16[i] = static_cast<int16_t>(codes16(x + 16 * i, unit, q + 16 * i));
    for (int i = 0; i < 8; i++) sum32[i] = static_cast<int16_t>(sum16[2 * i] + sum16[2 * i + 1]);
  }
}

}  // namespace

void act_quantize_row_avx2(ActForm form, const float* x, int64_t n_cols, uint8_t* row) {
  switch (form) {
    case ActForm::f32:
      memcpy(row, x, static_cast<size_t>(n_cols) * 4);
      break;
    case ActForm::a32:
      quantize_a32(x, n_cols, row);
      break;
    case ActForm::a256:
      quantize_a256(x, n_cols, row);
      break;
  }
}

}  // namespace strata::cpu
#endif
