// Single lanes: the bit reference of the other tiers.
#define STRATA_SIMD_SCALAR 1
#include "cpu/attn_impl.h"

namespace strata::cpu {
const VecMath& vec_math_ref() { return kTable; }
}  // namespace strata::cpu
