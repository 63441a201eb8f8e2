// Elementary functions of the value path, written in explicit IEEE operations for the CPU and for NVRTC alike.
//
// Contract C1: the same source gives the same bits on every side, so nothing here calls libm or a fast intrinsic. Used
// are +, -, *, /, square root and fma, each rounded once to nearest even, comparisons and integer operations on the bits.
// Build with -ffp-contract=off, or --fmad=false --ftz=false --prec-div=true --prec-sqrt=true.
//
// The float functions are templates over the lane type V: `float` here, a vector of lanes in cpu/simd.h. A lane type
// offers + - * /, unary -, < ==, V(float), v_fma, v_sqrt, v_abs, v_select, and on its bits v_bits, v_from_bits, v_from_int,
// v_shl, v_sar, v_isub, & and |.
// Everything has internal linkage: sources built with different instruction sets must not share one copy.
//
// Errors, specials and the measured maxima: docs/numerics.md, "Elementary functions". A NaN argument gives a NaN.
#pragma once

#ifdef __CUDACC_RTC__
// The including source has defined the fixed-width types.
#define STRATA_HD __device__ __forceinline__
#else
#include <cstdint>
#include <cstring>
#ifdef __CUDACC__
#define STRATA_HD __host__ __device__ __forceinline__
#else
#define STRATA_HD __attribute__((always_inline, unused)) inline
#endif
#endif

namespace strata {

// ---- one lane of float ----------------------------------------------------------------------------------------------

static STRATA_HD float v_fma(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);  // an instruction under -mfma, else the C library's exact one
#endif
}
static STRATA_HD double v_fma(double a, double b, double c) {
#ifdef __CUDA_ARCH__
  return __fma_rn(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}
static STRATA_HD float v_sqrt(float x) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);  // an instruction: -fno-math-errno
#endif
}
static STRATA_HD int32_t v_bits(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_int(x);
#else
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}
static STRATA_HD float v_from_bits(int32_t bits) {
#ifdef __CUDA_ARCH__
  return __int_as_float(bits);
#else
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
#endif
}
static STRATA_HD double v_from_bits(int64_t bits) {
#ifdef __CUDA_ARCH__
  return __longlong_as_double(bits);
#else
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
#endif
}
static STRATA_HD int64_t v_bits(double x) {
#ifdef __CUDA_ARCH__
  return __double_as_longlong(x);
#else
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}
// Rounds to nearest even, as the conversion instructions do.
static STRATA_HD float v_from_int(int32_t i) { return static_cast<float>(i); }
static STRATA_HD float v_abs(float x) { return v_from_bits(v_bits(x) & 0x7fffffff); }
static STRATA_HD float v_select(bool condition, float if_true, float if_false) { return condition ? if_true : if_false; }
// Shifts that are the same for a signed lane type on every side.
static STRATA_HD int32_t v_shl(int32_t i, int n) { return static_cast<int32_t>(static_cast<uint32_t>(i) << n); }
static STRATA_HD int32_t v_sar(int32_t i, int n) { return i >> n; }
static STRATA_HD int32_t v_isub(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}

// ---- rounding and comparison ----------------------------------------------------------------------------------------

// Nearest integer, ties to even, the sign of x kept.
template <class V>
static STRATA_HD V m_round_even(V x) {
  const V two23 = V(8388608.0f);
  const V magnitude = v_abs(x);
  const V rounded = (magnitude + two23) - two23;
  const V with_sign = v_from_bits(v_bits(rounded) | (v_bits(x) & v_bits(V(-0.0f))));
  return v_select(magnitude < two23, with_sign, x);
}
// A NaN in x stays a NaN; the bound is a number.
template <class V>
static STRATA_HD V m_min(V x, V bound) {
  return v_select(bound < x, bound, x);
}
template <class V>
static STRATA_HD V m_max(V x, V bound) {
  return v_select(x < bound, bound, x);
}
template <class V>
static STRATA_HD V m_clamp(V x, V low, V high) {
  return m_max(m_min(x, high), low);
}

// ---- exponentials ---------------------------------------------------------------------------------------------------

// exp(r) - 1 for |r| <= 0.35, from a minimax polynomial of degree 6 (own fit, relative error 4e-9).
template <class V>
static STRATA_HD V m_expm1_kernel(V r) {
  V q = V(0x1.6dbc64p-10f);
  q = v_fma(q, r, V(0x1.124148p-7f));
  q = v_fma(q, r, V(0x1.555454p-5f));
  q = v_fma(q, r, V(0x1.555486p-3f));
  q = v_fma(q, r, V(0.5f));
  return v_fma(r * r, q, r);
}

// Splits x = n ln 2 + r; returns n as a float that is an integer, for |x| < 2^21.
template <class V>
static STRATA_HD V m_exp_split(V x, V& r) {
  const V magic = V(12582912.0f);  // 1.5 * 2^23: the sum's low bits are the integer
  const V n = v_fma(x, V(0x1.715476p+0f), magic) - magic;
  r = v_fma(n, V(-0x1.62e400p-1f), x);  // 16 bits of ln 2: n times it is exact for |n| < 256
  r = v_fma(n, V(-0x1.7f7d1cp-20f), r);
  return n;
}

// 2^n for an integer n in [-126, 127] held as a float.
template <class V>
static STRATA_HD V m_pow2(V n) {
  return v_from_bits(v_shl(v_bits(n + V(12582912.0f + 127.0f)), 23));
}

template <class V>
static STRATA_HD V m_exp(V x) {
  // Outside these bounds the result is infinite or zero already; n / 2 stays a valid exponent.
  const V bounded = m_clamp(x, V(-105.0f), V(90.0f));
  V r;
  const V n = m_exp_split(bounded, r);
  const V magic = V(12582912.0f);
  const V half = v_fma(n, V(0.5f), magic) - magic;
  const V mantissa = m_expm1_kernel(r) + V(1.0f);
  return (mantissa * m_pow2(half)) * m_pow2(n - half);
}

// exp(x) - 1 for |x| <= 80.
template <class V>
static STRATA_HD V m_expm1_bounded(V x) {
  V r;
  const V n = m_exp_split(x, r);
  const V scale = m_pow2(n);
  return v_fma(m_expm1_kernel(r), scale, scale - V(1.0f));
}
template <class V>
static STRATA_HD V m_expm1(V x) {
  const V low = m_expm1_bounded(m_clamp(x, V(-80.0f), V(80.0f)));
  const V tiny_or_low = v_select(v_abs(x) < V(0x1p-25f), x, low);  // keeps -0 and subnormals
  return v_select(V(80.0f) < x, m_exp(x), tiny_or_low);
}

template <class V>
static STRATA_HD V m_sigmoid(V x) {
  return V(1.0f) / (m_exp(-x) + V(1.0f));
}
// x * sigmoid(x). Silu(-inf) is NaN, as x * sigmoid(x) says.
template <class V>
static STRATA_HD V m_silu(V x) {
  return x / (m_exp(-x) + V(1.0f));
}
// x * sigmoid(alpha x).
template <class V>
static STRATA_HD V m_silu_alpha(V x, V alpha) {
  return x / (m_exp(-(x * alpha)) + V(1.0f));
}
template <class V>
static STRATA_HD V m_tanh(V x) {
  const V magnitude = v_abs(x);
  const V e = m_expm1_bounded(m_min(magnitude + magnitude, V(40.0f)));  // tanh is 1 from 9.02 on
  const V t = e / (e + V(2.0f));
  return v_from_bits(v_bits(t) | (v_bits(x) & v_bits(V(-0.0f))));
}
// cap * tanh(x / cap).
template <class V>
static STRATA_HD V m_softcap(V x, V cap) {
  return cap * m_tanh(x / cap);
}
// 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), as x / (1 + exp(-2u)): the same function without the
// cancellation on the negative side.
template <class V>
static STRATA_HD V m_gelu(V x) {
  const V u2 = x * v_fma(x * x, V(0x1.2444f2p-4f), V(0x1.988454p+0f));
  return x / (m_exp(-u2) + V(1.0f));
}
// x * sigmoid(1.702 x).
template <class V>
static STRATA_HD V m_gelu_quick(V x) {
  return m_silu_alpha(x, V(1.702f));
}
// Two polynomials of our own fit: erf(x) / x - 1 in x^2 below 1, -log(erfc(x)) above.
template <class V>
static STRATA_HD V m_erf(V x) {
  const V a = v_abs(x);
  const V t = a * a;
  V p = V(0x1.496a28p-14f);
  p = v_fma(p, t, V(-0x1.a3f6fcp-11f));
  p = v_fma(p, t, V(0x1.5405b2p-8f));
  p = v_fma(p, t, V(-0x1.b7f90cp-6f));
  p = v_fma(p, t, V(0x1.ce2cf8p-4f));
  p = v_fma(p, t, V(-0x1.81273ep-2f));
  p = v_fma(p, t, V(0x1.06eba8p-3f));
  const V small = v_fma(p, a, a);
  const V b = m_min(a, V(4.2f));  // erf is 1 from 3.92 on
  V q = V(0x1.68a51ep-16f);
  q = v_fma(q, b, V(-0x1.cc6fbap-12f));
  q = v_fma(q, b, V(0x1.12d520p-8f));
  q = v_fma(q, b, V(-0x1.9c8840p-6f));
  q = v_fma(q, b, V(0x1.bbe4c8p-4f));
  q = v_fma(q, b, V(0x1.443b00p-1f));
  q = v_fma(q, b, V(0x1.212aa2p+0f));
  q = v_fma(q, b, V(-0x1.80b5dcp-13f));
  const V big = V(1.0f) - m_exp(-q);
  const V result = v_select(a < V(1.0f), small, big);
  return v_from_bits(v_bits(result) | (v_bits(x) & v_bits(V(-0.0f))));
}
// 0.5 x (1 + erf(x / sqrt 2)).
template <class V>
static STRATA_HD V m_gelu_erf(V x) {
  return (x * V(0.5f)) * (m_erf(x * V(0x1.6a09e6p-1f)) + V(1.0f));
}
template <class V>
static STRATA_HD V m_relu(V x) {
  return m_max(x, V(0.0f));
}
template <class V>
static STRATA_HD V m_relu_sqr(V x) {
  const V r = m_relu(x);
  return r * r;
}

// ---- logarithms -----------------------------------------------------------------------------------------------------

template <class V>
static STRATA_HD V m_log(V x) {
  const V is_small_scaled = x * V(8388608.0f);
  const V scaled = v_select(x < V(0x1p-126f), is_small_scaled, x);
  const V e_bias = v_select(x < V(0x1p-126f), V(-23.0f), V(0.0f));
  const auto bits = v_bits(scaled);
  const auto e = v_sar(v_isub(bits, v_bits(V(0x1.6a09e6p-1f))), 23);
  const V f = v_from_bits(v_isub(bits, v_shl(e, 23))) - V(1.0f);  // mantissa in [sqrt(1/2), sqrt(2)), minus 1
  const V n = v_from_int(e) + e_bias;
  V p = V(0x1.153d08p-4f);
  p = v_fma(p, f, V(-0x1.dfc4cap-4f));
  p = v_fma(p, f, V(0x1.e760e2p-4f));
  p = v_fma(p, f, V(-0x1.fbed20p-4f));
  p = v_fma(p, f, V(0x1.232ce0p-3f));
  p = v_fma(p, f, V(-0x1.555d4ep-3f));
  p = v_fma(p, f, V(0x1.99a538p-3f));
  p = v_fma(p, f, V(-0x1.000006p-2f));
  p = v_fma(p, f, V(0x1.555546p-2f));
  V t = (f * f) * v_fma(p, f, V(-0.5f));
  t = v_fma(n, V(0x1.7f7d1cp-20f), t);
  const V result = v_fma(n, V(0x1.62e400p-1f), f + t);
  const V inf = V(v_from_bits(static_cast<int32_t>(0x7f800000)));
  const V at_zero = v_select(x == V(0.0f), -inf, result);
  const V at_inf = v_select(x == inf, inf, at_zero);
  const V not_nan = v_select(x < V(0.0f), inf - inf, at_inf);
  return v_select(x == x, not_nan, x);
}
// log(1 + x), with the rounding error of 1 + x put back.
template <class V>
static STRATA_HD V m_log1p(V x) {
  const V u = x + V(1.0f);
  const V lost = v_select(V(0x1p+24f) < x, V(0.0f), x - (u - V(1.0f)));
  const V result = m_log(u) + lost / u;
  const V bounded = v_select(V(-1.0f) < x, result, m_log(u));
  return v_select(v_abs(x) < V(0x1p-25f), x, bounded);
}
// log(1 + exp(x)); x itself above 20, as the peers cut it.
template <class V>
static STRATA_HD V m_softplus(V x) {
  return v_select(V(20.0f) < x, x, m_log1p(m_exp(m_min(x, V(20.0f)))));
}

// ---- double: angles of rotary embeddings ----------------------------------------------------------------------------

// Taylor series on [-pi/4, pi/4]; the first omitted terms are below 1e-19.
static STRATA_HD double m_sin_kernel(double r) {
  const double z = r * r;
  double p = 1.0 / 355687428096000.0;  // 1/17!
  p = v_fma(p, z, -1.0 / 1307674368000.0);
  p = v_fma(p, z, 1.0 / 6227020800.0);
  p = v_fma(p, z, -1.0 / 39916800.0);
  p = v_fma(p, z, 1.0 / 362880.0);
  p = v_fma(p, z, -1.0 / 5040.0);
  p = v_fma(p, z, 1.0 / 120.0);
  p = v_fma(p, z, -1.0 / 6.0);
  return v_fma(p * z, r, r);
}
static STRATA_HD double m_cos_kernel(double r) {
  const double z = r * r;
  double p = -1.0 / 6402373705728000.0;  // 1/18!
  p = v_fma(p, z, 1.0 / 20922789888000.0);
  p = v_fma(p, z, -1.0 / 87178291200.0);
  p = v_fma(p, z, 1.0 / 479001600.0);
  p = v_fma(p, z, -1.0 / 3628800.0);
  p = v_fma(p, z, 1.0 / 40320.0);
  p = v_fma(p, z, -1.0 / 720.0);
  p = v_fma(p, z, 1.0 / 24.0);
  p = v_fma(p, z, -0.5);
  return v_fma(p, z, 1.0);
}
// sin and cos of an angle in radians, |x| <= 2^24: Cody-Waite reduction by pi/2 in three parts.
static STRATA_HD void m_sincos(double x, double& sin_out, double& cos_out) {
  const double magic = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = v_fma(x, 0x1.45f306dc9c883p-1, magic);
  const double n = shifted - magic;
  const int32_t quadrant = static_cast<int32_t>(v_bits(shifted) & 3);
  double r = v_fma(n, -0x1.921fb54442d18p+0, x);
  r = v_fma(n, -0x1.1a62633145c07p-54, r);
  r = v_fma(n, 0x1.f1976b7ed8fbcp-110, r);
  const double s = m_sin_kernel(r), c = m_cos_kernel(r);
  const double s_swapped = (quadrant & 1) ? c : s, c_swapped = (quadrant & 1) ? s : c;
  sin_out = (quadrant & 2) ? -s_swapped : s_swapped;
  cos_out = ((quadrant + 1) & 2) ? -c_swapped : c_swapped;
}
// exp(x) in double for |x| <= 700.
static STRATA_HD double m_exp_double(double x) {
  const double magic = 6755399441055744.0;
  const double shifted = v_fma(x, 0x1.71547652b82fep+0, magic);
  const double n = shifted - magic;
  double r = v_fma(n, -0x1.62e42fefa39efp-1, x);
  r = v_fma(n, -0x1.abc9e3b39803fp-56, r);
  double p = 1.0 / 6227020800.0;  // 1/13!
  p = v_fma(p, r, 1.0 / 479001600.0);
  p = v_fma(p, r, 1.0 / 39916800.0);
  p = v_fma(p, r, 1.0 / 3628800.0);
  p = v_fma(p, r, 1.0 / 362880.0);
  p = v_fma(p, r, 1.0 / 40320.0);
  p = v_fma(p, r, 1.0 / 5040.0);
  p = v_fma(p, r, 1.0 / 720.0);
  p = v_fma(p, r, 1.0 / 120.0);
  p = v_fma(p, r, 1.0 / 24.0);
  p = v_fma(p, r, 1.0 / 6.0);
  p = v_fma(p, r, 0.5);
  const double e = v_fma(r * r, p, r) + 1.0;
  return e * v_from_bits(static_cast<int64_t>(static_cast<uint64_t>(v_bits(n + (magic + 1023.0))) << 52));
}
// log(x) in double for a finite normal x > 0: the series of 2 atanh(f / (2 + f)).
static STRATA_HD double m_log_double(double x) {
  const int64_t bits = v_bits(x);
  const int64_t e = (bits - v_bits(0x1.6a09e667f3bcdp-1)) >> 52;
  const double m = v_from_bits(static_cast<int64_t>(static_cast<uint64_t>(bits) - (static_cast<uint64_t>(e) << 52)));
  const double f = m - 1.0;
  const double s = f / (f + 2.0), z = s * s;
  double p = 2.0 / 21.0;
  p = v_fma(p, z, 2.0 / 19.0);
  p = v_fma(p, z, 2.0 / 17.0);
  p = v_fma(p, z, 2.0 / 15.0);
  p = v_fma(p, z, 2.0 / 13.0);
  p = v_fma(p, z, 2.0 / 11.0);
  p = v_fma(p, z, 2.0 / 9.0);
  p = v_fma(p, z, 2.0 / 7.0);
  p = v_fma(p, z, 2.0 / 5.0);
  p = v_fma(p, z, 2.0 / 3.0);
  const double half_square = 0.5 * f * f;
  const double n = static_cast<double>(e);
  // log(1+f) = f - f^2/2 + s (f^2/2 + z p): the leading terms carry no rounding error of s.
  const double t = v_fma(s, half_square + z * p, -half_square);
  return v_fma(n, 0x1.62e42fefa39efp-1, f + v_fma(n, 0x1.abc9e3b39803fp-56, t));
}
// base^(-2 k / n_rot): the inverse wavelength of rotary pair k.
static STRATA_HD double m_rope_freq(double base, int32_t k, int32_t n_rot) {
  return m_exp_double(m_log_double(base) * (-2.0 * static_cast<double>(k) / static_cast<double>(n_rot)));
}

// ---- number formats -------------------------------------------------------------------------------------------------

// IEEE half to float, exact; a signalling NaN becomes quiet, as the conversion instruction does it.
static STRATA_HD float m_half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(static_cast<int32_t>(mantissa)) * 0x1p-24f;
    return v_from_bits(static_cast<int32_t>(sign | static_cast<uint32_t>(v_bits(magnitude))));
  }
  if (exponent == 31) {
    const uint32_t quiet = mantissa ? 0x400000u : 0u;
    return v_from_bits(static_cast<int32_t>(sign | 0x7f800000u | quiet | (mantissa << 13)));
  }
  return v_from_bits(static_cast<int32_t>(sign | ((exponent + 112u) << 23) | (mantissa << 13)));
}
// Float to IEEE half, nearest even, overflow to infinity, NaN quiet with the upper payload bits.
static STRATA_HD uint16_t m_float_to_half(float x) {
  const uint32_t bits = static_cast<uint32_t>(v_bits(x));
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);    // from 65536 on, and infinity
  if (magnitude < 0x38800000u) {                                                 // below 2^-14: units of 2^-24
    const float units = v_from_bits(static_cast<int32_t>(magnitude)) * 0x1p24f;  // exact
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(m_round_even(units)));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}
static STRATA_HD float m_bf16_to_float(uint16_t b) {
  return v_from_bits(static_cast<int32_t>(static_cast<uint32_t>(b) << 16));
}
// Float to bfloat16, nearest even; a NaN stays a quiet NaN.
static STRATA_HD uint16_t m_float_to_bf16(float x) {
  const uint32_t bits = static_cast<uint32_t>(v_bits(x));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
// Half of the E8M0 scale 2^(e-127): MXFP4 codes are held doubled. e = 0 and 1 are subnormal floats.
static STRATA_HD float m_e8m0_half_to_float(uint8_t e) {
  const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
  return v_from_bits(static_cast<int32_t>(bits));
}
// Half of the unsigned E4M3 scale of NVFP4 (bias 7, the top bit ignored): the codes are held doubled. 0x7f is NaN in the
// format and 0 in the files' reference decoder, which we follow.
static STRATA_HD float m_ue4m3_half_to_float(uint8_t x) {
  const int32_t exponent = (x >> 3) & 15, mantissa = x & 7;
  if (x == 0x7f) return 0.0f;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
  return v_from_bits(((exponent + 119) << 23) | (mantissa << 20));
}

}  // namespace strata
