// Row kernels for AVX2.
#if defined(__AVX2__)
#include "cpu/rows_impl.h"

namespace strata::cpu {
MatmulFn rows_matmul_avx2(int32_t type) { return find_rows_matmul(type); }
}  // namespace strata::cpu
#endif
