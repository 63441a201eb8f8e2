// Scalar rounding of activation rows: the bit reference of the other tiers.
#include "base/ieee_math.h"
#include "cpu/act.h"

#include <cstring>

namespace strata::cpu {
namespace {

// One scale's n values. Integer order of the bits of |x| is the order of the
// magnitudes, infinity and NaN on top.
float quantize_unit(const float* x, int64_t n, int8_t* q) {
  int32_t amax_bits = 0;
  for (int64_t i = 0; i < n; i++) {
    const int32_t bits = v_bits(x[i]) & 0x7fffffff;
    if (bits > amax_bits) amax_bits = bits;
  }
  if (amax_bits >= 0x7f800000) {
    memset(q, 0, static_cast<size_t>(n));
    return v_from_bits(static_cast<int32_t>(0x7fc00000));
  }
  const float d = v_from_bits(amax_bits) / 127.0f;
  if (d == 0.0f) {
    memset(q, 0, static_cast<size_t>(n));
    return 0.0f;
  }
  for (int64_t i = 0; i < n; i++) q[i] = static_cast<int8_t>(m_round_even(m_clamp(x[i] / d, -127.0f, 127.0f)));
  return d;
}

int32_t sum_of(const int8_t* q, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; i++) sum += q[i];
  return sum;
}

}  // namespace

void act_quantize_row_ref(ActForm form, const float* x, int64_t n_cols, uint8_t* row) {
  auto* q = reinterpret_cast<int8_t*>(row);
  if (form == ActForm::f32) {
    memcpy(row, x, static_cast<size_t>(n_cols) * 4);
  } else if (form == ActForm::a32) {
    auto* d = reinterpret_cast<float*>(row + a32_d_offset(n_cols));
    auto* sum = reinterpret_cast<int32_t*>(row + a32_sum_offset(n_cols));
    for (int64_t u = 0; u < n_cols / 32; u++) {
      d[u] = quantize_unit(x + 32 * u, 32, q + 32 * u);
      sum[u] = sum_of(q + 32 * u, 32);
    }
  } else {
    auto* d = reinterpret_cast<float*>(row + a256_d_offset(n_cols));
    auto* sum16 = reinterpret_cast<int16_t*>(row + a256_sum16_offset(n_cols));
    auto* sum32 = reinterpret_cast<int16_t*>(row + a256_sum32_offset(n_cols));
    for (int64_t u = 0; u < n_cols / 256; u++) d[u] = quantize_unit(x + 256 * u, 256, q + 256 * u);
    for (int64_t j = 0; j < n_cols / 16; j++) sum16[j] = static_cast<int16_t>(sum_of(q + 16 * j, 16));
    for (int64_t j = 0; j < n_cols / 32; j++) sum32[j] = static_cast<int16_t>(sum16[2 * j] + sum16[2 * j + 1]);
  }
}

}  // namespace strata::cpu
