/* strata_test.h: hooks of libstrata_test, through which tests reach single
 * kernels. No part of the public ABI.
 *
 * Buffers are the caller's; pointers to packed matrices and activation rows are
 * 64-byte aligned. Tiers, forms and layouts are the numbers of
 * native/src/cpu/kernels.h. Functions that can refuse return 0, or -1 when the
 * tier or type is absent.
 */
#ifndef STRATA_TEST_H
#define STRATA_TEST_H
#include <stdint.h>

#if defined(__GNUC__)
#define STRATA_TEST_API __attribute__((visibility("default")))
#else
#define STRATA_TEST_API
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin (plain C declarations only; tests/native/conftest.py reads this region) */

/* ---- matrix kernels (test_hooks_matmul.cpp) ---- */

typedef struct strata_test_type_info {
  int32_t act_form;    /* 0 floats, 1 A32, 2 A256 */
  int32_t interleaved; /* 1 when the packed layout is not the file's */
  int64_t block;       /* values per file block */
  int64_t block_bytes;
} strata_test_type_info;

typedef struct strata_test_matmul_args {
  int32_t tier;
  int32_t type;
  int32_t layout; /* 0 packed, 1 the file's rows */
  int32_t reserved;
  int64_t n_rows;
  int64_t n_cols;
  const uint8_t* data;
  int64_t row_begin;
  int64_t row_end;
  const uint8_t* acts;
  const int32_t* act_index; /* or null */
  int64_t n_tokens;
  float* y;
  int64_t y_stride;       /* floats */
  const int32_t* y_index; /* or null */
} strata_test_matmul_args;

int32_t strata_test_tier_supported(int32_t tier);
int32_t strata_test_tier_best(void);
int32_t strata_test_type_info_get(int32_t type, strata_test_type_info* out);
int64_t strata_test_act_row_bytes(int32_t form, int64_t n_cols);
/* x: float32 [n_tokens, n_cols]. */
int32_t strata_test_act_quantize(int32_t tier, int32_t form, const float* x, int64_t n_cols, int64_t n_tokens,
                                 uint8_t* acts);
int64_t strata_test_packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols);
/* file_rows points at row_begin. */
void strata_test_pack_rows(int32_t type, const uint8_t* file_rows, int64_t row_begin, int64_t row_end, int64_t n_rows,
                           int64_t n_cols, uint8_t* packed);
/* One packed row back to the file's bytes. */
void strata_test_unpack_row(int32_t type, const uint8_t* packed, int64_t row, int64_t n_cols, uint8_t* file_row);
int32_t strata_test_matmul(const strata_test_matmul_args* args);

/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
