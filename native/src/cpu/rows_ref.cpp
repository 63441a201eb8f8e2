// Row kernels in single lanes: the bit reference of the other tiers.
#define STRATA_SIMD_SCALAR 1
#include "cpu/rows_impl.h"

namespace strata::cpu {
MatmulFn rows_matmul_ref(int32_t type) { return find_rows_matmul(type); }
}  // namespace strata::cpu
