// AVX-512 rounding of activation rows.
#if defined(__AVX512F__)
// GCC 12 takes the undefined pass-through operands of its own intrinsics for
// uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstring>

#include "cpu/act.h"

namespace strata::cpu {
namespace {

struct Unit {
  float d;
  bool zero;  // all codes are zero
};

Unit unit_of(__m512i amax_bits_lanes) {
  const int32_t amax_bits = _mm512_reduce_max_epi32(amax_bits_lanes);
  const bool finite = amax_bits < 0x7f800000;
  const int32_t nan_bits = 0x7fc00000;
  float amax, nan;
  memcpy(&amax, &amax_bits, 4);
  memcpy(&nan, &nan_bits, 4);
  const float d = finite ? amax / 127.0f : nan;
  return {d, !(d > 0.0f)};
}

__m512i abs_bits(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }

// 16 codes as int32, rounded to nearest even whatever the thread's mode is.
__m512i codes_of(const float* x, Unit unit) {
  if (unit.zero) return _mm512_setzero_si512();
  __m512 v = _mm512_div_ps(_mm512_loadu_ps(x), _mm512_set1_ps(unit.d));
  v = _mm512_max_ps(_mm512_min_ps(v, _mm512_set1_ps(127.0f)), _mm512_set1_ps(-127.0f));
  return _mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

void store_codes(int8_t* q, __m512i codes) { _mm_store_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(codes)); }

void quantize_a32(const float* x, int64_t n_cols, uint8_t* row) {
  auto* q = reinterpret_cast<int8_t*>(row);
  auto* d = reinterpret_cast<float*>(row + a32_d_offset(n_cols));
  auto* sum = reinterpret_cast<int32_t*>(row + a32_sum_offset(n_cols));
  for (int64_t u = 0; u < n_cols / 32; u++, x += 32, q += 32) {
    const __m512i low = abs_bits(_mm512_loadu_ps(x)), high = abs_bits(_mm512_loadu_ps(x + 16));
    const Unit unit = unit_of(_mm512_max_epi32(low, high));
    const __m512i codes_low = codes_of(x, unit), codes_high = codes_of(x + 16, unit);
    store_codes(q, codes_low);
    store_codes(q + 16, codes_high);
    d[u] = unit.d;
    sum[u] = _mm512_reduce_add_epi32(_mm512_add_epi32(codes_low, codes_high));
  }
}

void quantize_a256(const float* x, int64_t n_cols, uint8_t* row) {
  auto* q = reinterpret_cast<int8_t*>(row);
  auto* d = reinterpret_cast<float*>(row + a256_d_offset(n_cols));
  auto* sum16 = reinterpret_cast<int16_t*>(row + a256_sum16_offset(n_cols));
  auto* sum32 = reinterpret_cast<int16_t*>(row + a256_sum32_offset(n_cols));
  for (int64_t u = 0; u < n_cols / 256; u++, x += 256, q += 256, sum16 += 16, sum32 += 8) {
    __m512i amax = _mm512_setzero_si512();
    for (int i = 0; i < 16; i++) amax = _mm512_max_epi32(amax, abs_bits(_mm512_loadu_ps(x + 16 * i)));
    const Unit unit = unit_of(amax);
    for (int i = 0; i < 16; i++) {
      const __m512i codes = codes_of(x + 16 * i, unit);
      store_codes(q + 16 * i, codes);
      sum16[i] = static_cast<int16_t>(_mm512_reduce_add_epi32(codes));
    }
    for (int i = 0; i < 8; i++) sum32[i] = static_cast<int16_t>(sum16[2 * i] + sum16[2 * i + 1]);
    d[u] = unit.d;
  }
}

}  // namespace

void act_quantize_row_avx512(ActForm form, const float* x, int64_t n_cols, uint8_t* row) {
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
