// Row kernels for 64-bit ARM.
#if defined(__aarch64__)
#include "cpu/rows_impl.h"

namespace strata::cpu {
MatmulFn rows_matmul_neon(int32_t type) { return find_rows_matmul(type); }
}  // namespace strata::cpu
#endif
