// Holds cuda/layout.h to cpu/act.h and cpu/pack.h, from which no CUDA kernel can include: sizes as functions of n_cols.
//
// The one place that sees both sides; it has no code.
#include "cpu/act.h"
#include "cpu/pack.h"
#include "cuda/layout.h"

namespace strata {
namespace {

constexpr bool same_32(int64_t n) {
  return cuda::a32_d_offset(n) == cpu::a32_d_offset(n) && cuda::a32_sum_offset(n) == cpu::a32_sum_offset(n) &&
         cuda::a32_pairs_offset(n) == cpu::a32_row_bytes(n) && cuda::q8_group_bytes(n) == cpu::q8_group_bytes(n) &&
         cuda::mx_group_bytes(n) == cpu::mx_group_bytes(n);
}
constexpr bool same_256(int64_t n) {
  return cuda::a256_d_offset(n) == cpu::a256_d_offset(n) && cuda::a256_sum16_offset(n) == cpu::a256_sum16_offset(n) &&
         cuda::a256_sum32_offset(n) == cpu::a256_sum32_offset(n) && cuda::a256_row_bytes(n) == cpu::a256_row_bytes(n) &&
         cuda::q4k_group_bytes(n) == cpu::q4k_group_bytes(n) && cuda::q6k_d_bytes(n) == cpu::q6k_d_bytes(n) &&
         cuda::q6k_group_bytes(n) == cpu::q6k_group_bytes(n);
}
constexpr bool same_layouts() {
  for (int64_t blocks = 1; blocks <= 300; ++blocks) {
    if (!same_32(32 * blocks) || !same_256(256 * blocks)) return false;
  }
  return cuda::kGroupRows == cpu::kGroupRows;
}
static_assert(same_layouts(), "the CUDA kernels and the CPU kernels see different layouts");

}  // namespace
}  // namespace strata
