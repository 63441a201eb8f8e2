// Chooses the row functions of a tier.
#include "cpu/vecmath.h"

#include "strata.h"

namespace strata::cpu {

const VecMath& vec_math_ref();
const VecMath& vec_math_avx2();
const VecMath& vec_math_avx512();
const VecMath& vec_math_neon();

const VecMath* vec_math(Tier tier) {
  if (!tier_supported(tier)) return nullptr;
  switch (tier) {
    case Tier::scalar:
      return &vec_math_ref();
#if defined(__x86_64__)
    case Tier::avx2:
      return &vec_math_avx2();
    case Tier::avx512:
      return &vec_math_avx512();
#elif defined(__aarch64__)
    case Tier::neon:
      return &vec_math_neon();
#endif
    default:
      return nullptr;
  }
}

int64_t kv_row_bytes(int32_t kv_type, int64_t n) {
  switch (kv_type) {
    case STRATA_KV_F32:
      return 4 * n;
    case STRATA_KV_F16:
      return 2 * n;
    case STRATA_KV_Q8_0:
      return n / 32 * 34;
    default:
      return 0;
  }
}

}  // namespace strata::cpu
