// Matrix kernels on the packed layouts (pack.h), one table for each
// instruction-set tier.
#pragma once
#include "cpu/kernels.h"

namespace strata::cpu {

// Null for a type without a packed layout of its own. A tier that the build's
// target lacks has no kernels at all.
MatmulFn packed_matmul_ref(int32_t type);
MatmulFn packed_matmul_avx2(int32_t type);
MatmulFn packed_matmul_avx512(int32_t type);
MatmulFn packed_matmul_neon(int32_t type);

}  // namespace strata::cpu
