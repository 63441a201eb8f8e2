// Eight lanes.
#if defined(__AVX2__)
#include "cpu/attn_impl.h"

namespace strata::cpu {
const VecMath& vec_math_avx2() { return kTable; }
}  // namespace strata::cpu
#endif
