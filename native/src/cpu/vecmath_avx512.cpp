// Sixteen lanes.
#if defined(__AVX512F__)
#include "cpu/attn_impl.h"

namespace strata::cpu {
const VecMath& vec_math_avx512() { return kTable; }
}  // namespace strata::cpu
#endif
