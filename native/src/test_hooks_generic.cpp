// Hooks of base/ieee_math.h, cpu/vecmath.h and row_dequantize as plain C.
#include "base/ieee_math.h"
#include "cpu/kernels.h"
#include "cpu/vecmath.h"
#include "strata_test_generic.h"

using namespace strata;
using namespace strata::cpu;

namespace {

using FloatFn = float (*)(float);
constexpr FloatFn kFloatFns[] = {
    [](float x) { return m_exp(x); },        [](float x) { return m_expm1(x); },      [](float x) { return m_sigmoid(x); },
    [](float x) { return m_silu(x); },       [](float x) { return m_tanh(x); },       [](float x) { return m_gelu(x); },
    [](float x) { return m_gelu_erf(x); },   [](float x) { return m_gelu_quick(x); }, [](float x) { return m_erf(x); },
    [](float x) { return m_log(x); },        [](float x) { return m_log1p(x); },      [](float x) { return m_softplus(x); },
    [](float x) { return m_round_even(x); }, [](float x) { return m_relu_sqr(x); },   [](float x) { return v_sqrt(x); },
};
constexpr int32_t kFloatFnCount = sizeof(kFloatFns) / sizeof(kFloatFns[0]);

const VecMath* table(int32_t tier) { return vec_math(static_cast<Tier>(tier)); }

}  // namespace

extern "C" {

STRATA_TEST_API int32_t strata_test_math(int32_t function, const float* x, float* out, int64_t n) {
  if (function < 0 || function >= kFloatFnCount) return -1;
  for (int64_t i = 0; i < n; ++i) out[i] = kFloatFns[function](x[i]);
  return 0;
}

STRATA_TEST_API int32_t strata_test_math_double(int32_t function, const double* x, double* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    double s, c;
    switch (function) {
      case STRATA_TEST_SIN:
        m_sincos(x[i], s, c);
        out[i] = s;
        break;
      case STRATA_TEST_COS:
        m_sincos(x[i], s, c);
        out[i] = c;
        break;
      case STRATA_TEST_EXP_DOUBLE:
        out[i] = m_exp_double(x[i]);
        break;
      case STRATA_TEST_LOG_DOUBLE:
        out[i] = m_log_double(x[i]);
        break;
      default:
        return -1;
    }
  }
  return 0;
}

STRATA_TEST_API double strata_test_rope_freq(double base, int32_t k, int32_t n_rot) { return m_rope_freq(base, k, n_rot); }

STRATA_TEST_API int32_t strata_test_to_16(int32_t format, const float* x, uint16_t* out, int64_t n) {
  if (format != 1 && format != 30) return -1;
  for (int64_t i = 0; i < n; ++i) out[i] = format == 1 ? m_float_to_half(x[i]) : m_float_to_bf16(x[i]);
  return 0;
}

STRATA_TEST_API int32_t strata_test_from_16(int32_t format, const uint16_t* x, float* out, int64_t n) {
  if (format != 1 && format != 30) return -1;
  for (int64_t i = 0; i < n; ++i) out[i] = format == 1 ? m_half_to_float(x[i]) : m_bf16_to_float(x[i]);
  return 0;
}

STRATA_TEST_API int32_t strata_test_from_8(int32_t format, const uint8_t* x, float* out, int64_t n) {
  if (format != 39 && format != 40) return -1;
  for (int64_t i = 0; i < n; ++i) out[i] = format == 39 ? m_e8m0_half_to_float(x[i]) : m_ue4m3_half_to_float(x[i]);
  return 0;
}

STRATA_TEST_API int32_t strata_test_glu(int32_t tier, int32_t kind, const float* gate, const float* up, float p0, float p1,
                                        float* out, int64_t n) {
  if (table(tier) == nullptr) return -1;
  table(tier)->glu(kind, gate, up, p0, p1, out, n);
  return 0;
}

STRATA_TEST_API int32_t strata_test_unary(int32_t tier, int32_t kind, const float* x, float* out, int64_t n) {
  if (table(tier) == nullptr) return -1;
  table(tier)->unary(static_cast<Unary>(kind), x, out, n);
  return 0;
}

STRATA_TEST_API int32_t strata_test_binary(int32_t tier, int32_t function, const float* x, const float* y, float a, float b,
                                           float* out, int64_t n) {
  const VecMath* m = table(tier);
  if (m == nullptr) return -1;
  switch (function) {
    case STRATA_TEST_ADD:
      m->add(x, y, out, n);
      return 0;
    case STRATA_TEST_MUL:
      m->mul(x, y, out, n);
      return 0;
    case STRATA_TEST_SCALE:
      m->scale(x, a, out, n);
      return 0;
    case STRATA_TEST_ADD_SCALED:
      m->add_scaled(a, x, b, y, out, n);
      return 0;
    case STRATA_TEST_CLAMP:
      m->clamp(x, a, out, n);
      return 0;
    case STRATA_TEST_AXPY:
      m->axpy(a, x, out, n);
      return 0;
    case STRATA_TEST_SOFTCAP:
      m->softcap(x, a, out, n);
      return 0;
    default:
      return -1;
  }
}

STRATA_TEST_API int32_t strata_test_reduce(int32_t tier, int32_t function, const float* x, const float* y, int64_t n,
                                           float* out) {
  const VecMath* m = table(tier);
  if (m == nullptr) return -1;
  switch (function) {
    case STRATA_TEST_SUM:
      *out = m->sum(x, n);
      return 0;
    case STRATA_TEST_SUM_SQUARES:
      *out = m->sum_squares(x, n);
      return 0;
    case STRATA_TEST_DOT:
      *out = m->dot(x, y, n);
      return 0;
    case STRATA_TEST_MAX:
      *out = m->max(x, n);
      return 0;
    default:
      return -1;
  }
}

STRATA_TEST_API int32_t strata_test_exp_sub(int32_t tier, const float* x, float max, float* out, int64_t n, float* sum) {
  if (table(tier) == nullptr) return -1;
  *sum = table(tier)->exp_sub(x, max, out, n);
  return 0;
}

STRATA_TEST_API int32_t strata_test_norm(int32_t tier, int32_t kind, const float* x, const float* gain, const float* bias,
                                         float eps, float* out, int64_t n) {
  const VecMath* m = table(tier);
  if (m == nullptr || kind < 0 || kind > 2) return -1;
  if (kind == 0) m->rms_norm(x, gain, eps, out, n);
  if (kind == 1) m->layer_norm(x, gain, bias, eps, out, n);
  if (kind == 2) m->l2_norm(x, eps, out, n);
  return 0;
}

STRATA_TEST_API int32_t strata_test_rope(int32_t tier, int32_t style, float* x, const float* cos_row, const float* sin_row,
                                         int64_t n_rot) {
  if (table(tier) == nullptr) return -1;
  table(tier)->rope(style, x, cos_row, sin_row, n_rot);
  return 0;
}

STRATA_TEST_API int64_t strata_test_kv_row_bytes(int32_t kv_type, int64_t n) { return kv_row_bytes(kv_type, n); }

STRATA_TEST_API int32_t strata_test_kv_store(int32_t tier, int32_t kv_type, const float* x, uint8_t* row, int64_t n) {
  if (table(tier) == nullptr) return -1;
  table(tier)->kv_store(kv_type, x, row, n);
  return 0;
}

STRATA_TEST_API int32_t strata_test_kv_load(int32_t tier, int32_t kv_type, const uint8_t* row, float* out, int64_t n) {
  if (table(tier) == nullptr) return -1;
  table(tier)->kv_load(kv_type, row, out, n);
  return 0;
}

STRATA_TEST_API int32_t strata_test_attn_scores(int32_t tier, int32_t kv_type, const float* q, int64_t n_q, const uint8_t* k,
                                                int64_t n_keys, int64_t n_dim, float scale, float* s) {
  if (table(tier) == nullptr) return -1;
  table(tier)->attn_scores(kv_type, q, n_dim, n_q, k, kv_row_bytes(kv_type, n_dim), n_keys, n_dim, scale, s, n_keys);
  return 0;
}

STRATA_TEST_API int32_t strata_test_attn_values(int32_t tier, int32_t kv_type, const float* p, int64_t n_q, const uint8_t* v,
                                                int64_t n_keys, int64_t n_dim, float* acc) {
  if (table(tier) == nullptr) return -1;
  table(tier)->attn_values(kv_type, p, n_keys, n_q, v, kv_row_bytes(kv_type, n_dim), n_keys, n_dim, acc, n_dim);
  return 0;
}

STRATA_TEST_API int32_t strata_test_dequantize(int32_t type, int32_t layout, const uint8_t* data, int64_t n_rows,
                                               int64_t n_cols, int64_t row, float* out) {
  if (type_kernels(Tier::scalar, type) == nullptr) return -1;
  row_dequantize({type, static_cast<Layout>(layout), n_rows, n_cols, data}, row, out);
  return 0;
}

}  // extern "C"
