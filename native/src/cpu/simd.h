// Lanes of one instruction-set tier, behind one set of names: included only by the sources that are built once per tier
// (*_ref.cpp, *_avx2.cpp, *_avx512.cpp, *_neon.cpp), whose flags choose the branch; STRATA_SIMD_SCALAR asks for single
// lanes whatever the flags are. Everything is in an unnamed namespace, so that
// the linker never mixes code of two tiers.
//
// VF holds kLanes floats, VI as many int32, VM a mask. kLanes divides 16; a "lane row" of 16 strided lanes is an array
// of k16 = 16 / kLanes of them, lane i in element i / kLanes.
#pragma once
#include "base/ieee_math.h"

#if defined(__AVX2__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of its own _mm512_undefined_ps (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace strata::cpu {
namespace {

#define STRATA_LANE static __attribute__((always_inline, unused)) inline

// The one-lane functions stay visible beside the overloads below.
using strata::v_abs;
using strata::v_bits;
using strata::v_fma;
using strata::v_from_bits;
using strata::v_from_int;
using strata::v_isub;
using strata::v_sar;
using strata::v_select;
using strata::v_shl;
using strata::v_sqrt;

#if defined(__AVX512F__) && !defined(STRATA_SIMD_SCALAR)

constexpr int kLanes = 16;
struct VI {
  __m512i v;
};
struct VM {
  __mmask16 m;
};
struct VF {
  __m512 v;
  VF() = default;
  VF(__m512 x) : v(x) {}
  explicit VF(float x) : v(_mm512_set1_ps(x)) {}
};
STRATA_LANE VF operator+(VF a, VF b) { return _mm512_add_ps(a.v, b.v); }
STRATA_LANE VF operator-(VF a, VF b) { return _mm512_sub_ps(a.v, b.v); }
STRATA_LANE VF operator*(VF a, VF b) { return _mm512_mul_ps(a.v, b.v); }
STRATA_LANE VF operator/(VF a, VF b) { return _mm512_div_ps(a.v, b.v); }
STRATA_LANE VF operator-(VF a) { return _mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f)); }
STRATA_LANE VM operator<(VF a, VF b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
STRATA_LANE VM operator==(VF a, VF b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
STRATA_LANE VF v_select(VM m, VF a, VF b) { return _mm512_mask_blend_ps(m.m, b.v, a.v); }
STRATA_LANE VF v_fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a.v, b.v, c.v); }
STRATA_LANE VF v_sqrt(VF a) { return _mm512_sqrt_ps(a.v); }
STRATA_LANE VF v_abs(VF a) { return _mm512_abs_ps(a.v); }
STRATA_LANE VI v_bits(VF a) { return {_mm512_castps_si512(a.v)}; }
STRATA_LANE VF v_from_bits(VI a) { return _mm512_castsi512_ps(a.v); }
STRATA_LANE VF v_from_int(VI a) { return _mm512_cvtepi32_ps(a.v); }
STRATA_LANE VI v_shl(VI a, int n) { return {_mm512_slli_epi32(a.v, static_cast<unsigned>(n))}; }
STRATA_LANE VI v_sar(VI a, int n) { return {_mm512_srai_epi32(a.v, static_cast<unsigned>(n))}; }
STRATA_LANE VI v_isub(VI a, VI b) { return {_mm512_sub_epi32(a.v, b.v)}; }
STRATA_LANE VI operator&(VI a, VI b) { return {_mm512_and_si512(a.v, b.v)}; }
STRATA_LANE VI operator|(VI a, VI b) { return {_mm512_or_si512(a.v, b.v)}; }
STRATA_LANE VF v_load(const float* p) { return _mm512_loadu_ps(p); }
STRATA_LANE void v_store(float* p, VF a) { _mm512_storeu_ps(p, a.v); }
// 16 values of other formats.
STRATA_LANE VF v_load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
STRATA_LANE void v_store_half(uint16_t* p, VF a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
STRATA_LANE VF v_load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
STRATA_LANE VF v_load_int8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// v_tree16 of 16 lane rows at once, two shuffles and one addition for each: element 4 * l + g belongs to a[4 * g + l].
#define STRATA_TREE16X16 1
STRATA_LANE VF v_tree16x16(const VF* a) {
  __m512 by8[8], by4[4], by2[2];
  for (int i = 0; i < 8; ++i) {  // halves of two rows
    const __m512 x = a[2 * i].v, y = a[2 * i + 1].v;
    by8[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  }
  for (int i = 0; i < 4; ++i) {  // quarters of four rows
    const __m512 x = by8[2 * i], y = by8[2 * i + 1];
    by4[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
  }
  for (int i = 0; i < 2; ++i) {
    const __m512d x = _mm512_castps_pd(by4[2 * i]), y = _mm512_castps_pd(by4[2 * i + 1]);
    by2[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  return _mm512_add_ps(_mm512_shuffle_ps(by2[0], by2[1], 0x88), _mm512_shuffle_ps(by2[0], by2[1], 0xdd));
}
// The four elements of quarter k.
STRATA_LANE void v_store_quarter(float* p, VF a, int k) {
  const __m512i bits = _mm512_castps_si512(a.v);
  switch (k) {
    case 0:
      _mm_storeu_ps(p, _mm512_castps512_ps128(a.v));
      return;
    case 1:
      _mm_storeu_ps(p, _mm_castsi128_ps(_mm512_extracti32x4_epi32(bits, 1)));
      return;
    case 2:
      _mm_storeu_ps(p, _mm_castsi128_ps(_mm512_extracti32x4_epi32(bits, 2)));
      return;
    default:
      _mm_storeu_ps(p, _mm_castsi128_ps(_mm512_extracti32x4_epi32(bits, 3)));
  }
}
// (a[i] + a[i+8]), then + 4, + 2, + 1 apart.
STRATA_LANE float v_tree16(const VF* a) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a[0].v), 1));
  const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(a[0].v), high);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

#elif defined(__AVX2__) && !defined(STRATA_SIMD_SCALAR)

constexpr int kLanes = 8;
struct VI {
  __m256i v;
};
struct VM {
  __m256 m;
};
struct VF {
  __m256 v;
  VF() = default;
  VF(__m256 x) : v(x) {}
  explicit VF(float x) : v(_mm256_set1_ps(x)) {}
};
STRATA_LANE VF operator+(VF a, VF b) { return _mm256_add_ps(a.v, b.v); }
STRATA_LANE VF operator-(VF a, VF b) { return _mm256_sub_ps(a.v, b.v); }
STRATA_LANE VF operator*(VF a, VF b) { return _mm256_mul_ps(a.v, b.v); }
STRATA_LANE VF operator/(VF a, VF b) { return _mm256_div_ps(a.v, b.v); }
STRATA_LANE VF operator-(VF a) { return _mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f)); }
STRATA_LANE VM operator<(VF a, VF b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
STRATA_LANE VM operator==(VF a, VF b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
STRATA_LANE VF v_select(VM m, VF a, VF b) { return _mm256_blendv_ps(b.v, a.v, m.m); }
STRATA_LANE VF v_fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a.v, b.v, c.v); }
STRATA_LANE VF v_sqrt(VF a) { return _mm256_sqrt_ps(a.v); }
STRATA_LANE VF v_abs(VF a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v); }
STRATA_LANE VI v_bits(VF a) { return {_mm256_castps_si256(a.v)}; }
STRATA_LANE VF v_from_bits(VI a) { return _mm256_castsi256_ps(a.v); }
STRATA_LANE VF v_from_int(VI a) { return _mm256_cvtepi32_ps(a.v); }
STRATA_LANE VI v_shl(VI a, int n) { return {_mm256_slli_epi32(a.v, n)}; }
STRATA_LANE VI v_sar(VI a, int n) { return {_mm256_srai_epi32(a.v, n)}; }
STRATA_LANE VI v_isub(VI a, VI b) { return {_mm256_sub_epi32(a.v, b.v)}; }
STRATA_LANE VI operator&(VI a, VI b) { return {_mm256_and_si256(a.v, b.v)}; }
STRATA_LANE VI operator|(VI a, VI b) { return {_mm256_or_si256(a.v, b.v)}; }
STRATA_LANE VF v_load(const float* p) { return _mm256_loadu_ps(p); }
STRATA_LANE void v_store(float* p, VF a) { _mm256_storeu_ps(p, a.v); }
STRATA_LANE VF v_load_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
STRATA_LANE void v_store_half(uint16_t* p, VF a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
STRATA_LANE VF v_load_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
STRATA_LANE VF v_load_int8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
STRATA_LANE float v_tree16(const VF* a) {
  const __m256 by8 = _mm256_add_ps(a[0].v, a[1].v);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

#elif defined(__ARM_NEON) && defined(__aarch64__) && !defined(STRATA_SIMD_SCALAR)

constexpr int kLanes = 4;
struct VI {
  int32x4_t v;
};
struct VM {
  uint32x4_t m;
};
struct VF {
  float32x4_t v;
  VF() = default;
  VF(float32x4_t x) : v(x) {}
  explicit VF(float x) : v(vdupq_n_f32(x)) {}
};
STRATA_LANE VF operator+(VF a, VF b) { return vaddq_f32(a.v, b.v); }
STRATA_LANE VF operator-(VF a, VF b) { return vsubq_f32(a.v, b.v); }
STRATA_LANE VF operator*(VF a, VF b) { return vmulq_f32(a.v, b.v); }
STRATA_LANE VF operator/(VF a, VF b) { return vdivq_f32(a.v, b.v); }
STRATA_LANE VF operator-(VF a) { return vnegq_f32(a.v); }
STRATA_LANE VM operator<(VF a, VF b) { return {vcltq_f32(a.v, b.v)}; }
STRATA_LANE VM operator==(VF a, VF b) { return {vceqq_f32(a.v, b.v)}; }
STRATA_LANE VF v_select(VM m, VF a, VF b) { return vbslq_f32(m.m, a.v, b.v); }
STRATA_LANE VF v_fma(VF a, VF b, VF c) { return vfmaq_f32(c.v, a.v, b.v); }
STRATA_LANE VF v_sqrt(VF a) { return vsqrtq_f32(a.v); }
STRATA_LANE VF v_abs(VF a) { return vabsq_f32(a.v); }
STRATA_LANE VI v_bits(VF a) { return {vreinterpretq_s32_f32(a.v)}; }
STRATA_LANE VF v_from_bits(VI a) { return vreinterpretq_f32_s32(a.v); }
STRATA_LANE VF v_from_int(VI a) { return vcvtq_f32_s32(a.v); }
STRATA_LANE VI v_shl(VI a, int n) { return {vshlq_s32(a.v, vdupq_n_s32(n))}; }
STRATA_LANE VI v_sar(VI a, int n) { return {vshlq_s32(a.v, vdupq_n_s32(-n))}; }
STRATA_LANE VI v_isub(VI a, VI b) { return {vsubq_s32(a.v, b.v)}; }
STRATA_LANE VI operator&(VI a, VI b) { return {vandq_s32(a.v, b.v)}; }
STRATA_LANE VI operator|(VI a, VI b) { return {vorrq_s32(a.v, b.v)}; }
STRATA_LANE VF v_load(const float* p) { return vld1q_f32(p); }
STRATA_LANE void v_store(float* p, VF a) { vst1q_f32(p, a.v); }
STRATA_LANE VF v_load_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
STRATA_LANE void v_store_half(uint16_t* p, VF a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.v))); }
STRATA_LANE VF v_load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16)); }
STRATA_LANE VF v_load_int8(const int8_t* p) {
  float lanes[4];
  for (int i = 0; i < 4; ++i) lanes[i] = static_cast<float>(p[i]);
  return vld1q_f32(lanes);
}
STRATA_LANE float v_tree16(const VF* a) {
  const float32x4_t by8_low = vaddq_f32(a[0].v, a[2].v), by8_high = vaddq_f32(a[1].v, a[3].v);
  const float32x4_t by4 = vaddq_f32(by8_low, by8_high);
  const float32x2_t by2 = vadd_f32(vget_low_f32(by4), vget_high_f32(by4));
  return vget_lane_f32(by2, 0) + vget_lane_f32(by2, 1);
}

#else

constexpr int kLanes = 1;
struct VI {
  int32_t v;
};
using VM = bool;
struct VF {
  float v;
  VF() = default;
  explicit VF(float x) : v(x) {}
};
STRATA_LANE VF operator+(VF a, VF b) { return VF(a.v + b.v); }
STRATA_LANE VF operator-(VF a, VF b) { return VF(a.v - b.v); }
STRATA_LANE VF operator*(VF a, VF b) { return VF(a.v * b.v); }
STRATA_LANE VF operator/(VF a, VF b) { return VF(a.v / b.v); }
STRATA_LANE VF operator-(VF a) { return VF(-a.v); }
STRATA_LANE VM operator<(VF a, VF b) { return a.v < b.v; }
STRATA_LANE VM operator==(VF a, VF b) { return a.v == b.v; }
STRATA_LANE VF v_select(VM m, VF a, VF b) { return m ? a : b; }
STRATA_LANE VF v_fma(VF a, VF b, VF c) { return VF(strata::v_fma(a.v, b.v, c.v)); }
STRATA_LANE VF v_sqrt(VF a) { return VF(strata::v_sqrt(a.v)); }
STRATA_LANE VF v_abs(VF a) { return VF(strata::v_abs(a.v)); }
STRATA_LANE VI v_bits(VF a) { return {strata::v_bits(a.v)}; }
STRATA_LANE VF v_from_bits(VI a) { return VF(strata::v_from_bits(a.v)); }
STRATA_LANE VF v_from_int(VI a) { return VF(strata::v_from_int(a.v)); }
STRATA_LANE VI v_shl(VI a, int n) { return {strata::v_shl(a.v, n)}; }
STRATA_LANE VI v_sar(VI a, int n) { return {strata::v_sar(a.v, n)}; }
STRATA_LANE VI v_isub(VI a, VI b) { return {strata::v_isub(a.v, b.v)}; }
STRATA_LANE VI operator&(VI a, VI b) { return {a.v & b.v}; }
STRATA_LANE VI operator|(VI a, VI b) { return {a.v | b.v}; }
STRATA_LANE VF v_load(const float* p) { return VF(*p); }
STRATA_LANE void v_store(float* p, VF a) { *p = a.v; }
STRATA_LANE VF v_load_half(const uint16_t* p) { return VF(m_half_to_float(*p)); }
STRATA_LANE void v_store_half(uint16_t* p, VF a) { *p = m_float_to_half(a.v); }
STRATA_LANE VF v_load_bf16(const uint16_t* p) { return VF(m_bf16_to_float(*p)); }
STRATA_LANE VF v_load_int8(const int8_t* p) { return VF(static_cast<float>(*p)); }
STRATA_LANE float v_tree16(const VF* a) {
  float by8[8], by4[4];
  for (int i = 0; i < 8; ++i) by8[i] = a[i].v + a[i + 8].v;
  for (int i = 0; i < 4; ++i) by4[i] = by8[i] + by8[i + 4];
  return (by4[0] + by4[2]) + (by4[1] + by4[3]);
}

#endif

constexpr int k16 = 16 / kLanes;

// The first n lanes from p (1 <= n < kLanes), zero behind: a padded lane takes part in an fma as 0 * 0.
STRATA_LANE VF v_load_first(const float* p, int64_t n) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return v_load(lanes);
}
STRATA_LANE void v_store_first(float* p, VF a, int64_t n) {
  float lanes[kLanes];
  v_store(lanes, a);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

}  // namespace
}  // namespace strata::cpu
