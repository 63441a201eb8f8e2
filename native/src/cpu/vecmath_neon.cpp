// Four lanes.
#if defined(__aarch64__)
#include "cpu/attn_impl.h"

namespace strata::cpu {
const VecMath& vec_math_neon() { return kTable; }
}  // namespace strata::cpu
#endif
