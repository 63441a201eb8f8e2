// Row kernels for AVX-512.
#if defined(__AVX512F__)
#include "cpu/rows_impl.h"

namespace strata::cpu {
MatmulFn rows_matmul_avx512(int32_t type) { return find_rows_matmul(type); }
}  // namespace strata::cpu
#endif
