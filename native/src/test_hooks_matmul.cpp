// Hooks of the matrix kernels: cpu/kernels.h and cpu/pack.h as plain C.
#include "cpu/kernels.h"
#include "cpu/pack.h"
#include "strata_test.h"

using namespace strata::cpu;

extern "C" {

STRATA_TEST_API int32_t strata_test_tier_supported(int32_t tier) { return tier_supported(static_cast<Tier>(tier)) ? 1 : 0; }

STRATA_TEST_API int32_t strata_test_tier_best(void) { return static_cast<int32_t>(tier_best()); }

STRATA_TEST_API int32_t strata_test_type_info_get(int32_t type, strata_test_type_info* out) {
  const TypeKernels* kernels = type_kernels(Tier::scalar, type);
  if (kernels == nullptr) return -1;
  *out = {static_cast<int32_t>(kernels->act), kernels->interleaved ? 1 : 0, kernels->block, kernels->block_bytes};
  return 0;
}

STRATA_TEST_API int64_t strata_test_act_row_bytes(int32_t form, int64_t n_cols) {
  return act_row_bytes(static_cast<ActForm>(form), n_cols);
}

STRATA_TEST_API int32_t strata_test_act_quantize(int32_t tier, int32_t form, const float* x, int64_t n_cols,
                                                 int64_t n_tokens, uint8_t* acts) {
  if (!tier_supported(static_cast<Tier>(tier))) return -1;
  act_quantize(static_cast<Tier>(tier), static_cast<ActForm>(form), x, n_cols, n_cols, n_tokens, acts);
  return 0;
}

STRATA_TEST_API int64_t strata_test_packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols) {
  return packed_bytes(type, n_rows, n_cols);
}

STRATA_TEST_API void strata_test_pack_rows(int32_t type, const uint8_t* file_rows, int64_t row_begin, int64_t row_end,
                                           int64_t n_rows, int64_t n_cols, uint8_t* packed) {
  pack_rows(type, file_rows, row_begin, row_end, n_rows, n_cols, packed);
}

STRATA_TEST_API void strata_test_unpack_row(int32_t type, const uint8_t* packed, int64_t row, int64_t n_cols,
                                            uint8_t* file_row) {
  unpack_row(type, packed, row, n_cols, file_row);
}

STRATA_TEST_API int32_t strata_test_matmul(const strata_test_matmul_args* args) {
  const TypeKernels* kernels = type_kernels(static_cast<Tier>(args->tier), args->type);
  if (kernels == nullptr) return -1;
  const auto layout = static_cast<Layout>(args->layout);
  const MatmulFn matmul = layout == Layout::packed ? kernels->matmul_packed : kernels->matmul_rows;
  if (matmul == nullptr) return -1;
  MatmulArgs call{};
  call.w = {args->type, layout, args->n_rows, args->n_cols, args->data};
  call.row_begin = args->row_begin;
  call.row_end = args->row_end;
  call.acts = args->acts;
  call.act_stride = act_row_bytes(kernels->act, args->n_cols);
  call.act_index = args->act_index;
  call.n_tokens = args->n_tokens;
  call.y = args->y;
  call.y_stride = args->y_stride;
  call.y_index = args->y_index;
  matmul(call);
  return 0;
}

}  // extern "C"
