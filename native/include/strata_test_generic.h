/* strata_test_generic.h: hooks of libstrata_test for base/ieee_math.h, cpu/vecmath.h and dequantisation. No part of the
 * public ABI. Conventions are those of strata_test.h; functions that can refuse return 0, or -1 when the tier, type or
 * function number is absent.
 */
#ifndef STRATA_TEST_GENERIC_H
#define STRATA_TEST_GENERIC_H
#include "strata_test.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin (plain C declarations only; tests/native/conftest.py reads this region) */

/* ---- one value at a time: base/ieee_math.h ---- */

#define STRATA_TEST_EXP 0
#define STRATA_TEST_EXPM1 1
#define STRATA_TEST_SIGMOID 2
#define STRATA_TEST_SILU 3
#define STRATA_TEST_TANH 4
#define STRATA_TEST_GELU 5
#define STRATA_TEST_GELU_ERF 6
#define STRATA_TEST_GELU_QUICK 7
#define STRATA_TEST_ERF 8
#define STRATA_TEST_LOG 9
#define STRATA_TEST_LOG1P 10
#define STRATA_TEST_SOFTPLUS 11
#define STRATA_TEST_ROUND_EVEN 12
#define STRATA_TEST_RELU_SQR 13
#define STRATA_TEST_SQRT 14
int32_t strata_test_math(int32_t function, const float* x, float* out, int64_t n);

#define STRATA_TEST_SIN 0
#define STRATA_TEST_COS 1
#define STRATA_TEST_EXP_DOUBLE 2
#define STRATA_TEST_LOG_DOUBLE 3
int32_t strata_test_math_double(int32_t function, const double* x, double* out, int64_t n);
double strata_test_rope_freq(double base, int32_t k, int32_t n_rot);

/* format: 1 half, 30 bfloat16. */
int32_t strata_test_to_16(int32_t format, const float* x, uint16_t* out, int64_t n);
int32_t strata_test_from_16(int32_t format, const uint16_t* x, float* out, int64_t n);
/* format: 39 half of an E8M0 scale, 40 half of an unsigned E4M3 scale. */
int32_t strata_test_from_8(int32_t format, const uint8_t* x, float* out, int64_t n);

/* ---- rows: cpu/vecmath.h ---- */

int32_t strata_test_glu(int32_t tier, int32_t kind, const float* gate, const float* up, float p0, float p1, float* out,
                        int64_t n);
int32_t strata_test_unary(int32_t tier, int32_t kind, const float* x, float* out, int64_t n);

#define STRATA_TEST_ADD 0
#define STRATA_TEST_MUL 1
#define STRATA_TEST_SCALE 2      /* a * x */
#define STRATA_TEST_ADD_SCALED 3 /* a * x + b * y */
#define STRATA_TEST_CLAMP 4      /* limit a */
#define STRATA_TEST_AXPY 5       /* out = fma(a, x, out) */
#define STRATA_TEST_SOFTCAP 6    /* cap a */
int32_t strata_test_binary(int32_t tier, int32_t function, const float* x, const float* y, float a, float b, float* out,
                           int64_t n);

#define STRATA_TEST_SUM 0
#define STRATA_TEST_SUM_SQUARES 1
#define STRATA_TEST_DOT 2
#define STRATA_TEST_MAX 3
int32_t strata_test_reduce(int32_t tier, int32_t function, const float* x, const float* y, int64_t n, float* out);
/* out: exp(x - max); sum: of out. */
int32_t strata_test_exp_sub(int32_t tier, const float* x, float max, float* out, int64_t n, float* sum);
/* kind: 0 RMS, 1 layer, 2 L2; gain and bias may be null. */
int32_t strata_test_norm(int32_t tier, int32_t kind, const float* x, const float* gain, const float* bias, float eps,
                         float* out, int64_t n);
int32_t strata_test_rope(int32_t tier, int32_t style, float* x, const float* cos_row, const float* sin_row, int64_t n_rot);

int64_t strata_test_kv_row_bytes(int32_t kv_type, int64_t n);
int32_t strata_test_kv_store(int32_t tier, int32_t kv_type, const float* x, uint8_t* row, int64_t n);
int32_t strata_test_kv_load(int32_t tier, int32_t kv_type, const uint8_t* row, float* out, int64_t n);
/* q [n_q, n_dim], k [n_keys, row bytes] -> s [n_q, n_keys]. */
int32_t strata_test_attn_scores(int32_t tier, int32_t kv_type, const float* q, int64_t n_q, const uint8_t* k, int64_t n_keys,
                                int64_t n_dim, float scale, float* s);
/* p [n_q, n_keys], v [n_keys, row bytes]; adds one tile to acc [n_q, n_dim]. */
int32_t strata_test_attn_values(int32_t tier, int32_t kv_type, const float* p, int64_t n_q, const uint8_t* v, int64_t n_keys,
                                int64_t n_dim, float* acc);

/* ---- weights as floats ---- */

/* One row as float32 [n_cols]; layout 0 packed, 1 the file's rows. */
int32_t strata_test_dequantize(int32_t type, int32_t layout, const uint8_t* data, int64_t n_rows, int64_t n_cols,
                               int64_t row, float* out);

/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
