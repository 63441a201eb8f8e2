// Gated activations of one pair of values, as docs/numerics.md section 5 has them.
#pragma once
#include "base/ieee_math.h"
#include "strata.h"

namespace strata::cuda {

STRATA_DEVICE float glu(int32_t kind, float gate, float up, float p0, float p1) {
  switch (kind) {
    case STRATA_GLU_SILU:
      return m_silu(gate) * up;
    case STRATA_GLU_GELU:
      return m_gelu(gate) * up;
    case STRATA_GLU_RELU:
      return m_relu(gate) * up;
    case STRATA_GLU_SWIGLU_OAI:
      return m_silu_alpha(m_min(gate, p1), p0) * (m_clamp(up, -p1, p1) + 1.0f);
    case STRATA_GLU_SILU_CLAMP_EARLY:
      return m_silu(m_min(gate, p0)) * m_clamp(up, -p0, p0);
    case STRATA_GLU_SILU_CLAMP_LATE:
      return m_min(m_silu(gate), p0) * m_clamp(up, -p0, p0);
    case STRATA_GLU_SITU: {
      const float gated = m_softcap(gate, p0) * m_sigmoid(gate);
      return gated * (p1 > 0.0f ? m_softcap(up, p1) : up);
    }
    case STRATA_GLU_UP_SILU:
      return m_silu(up);
    case STRATA_GLU_UP_RELU_SQR:
      return m_relu_sqr(up);
    case STRATA_GLU_UP_GELU:
      return m_gelu(up);
    default:
      return __int_as_float(0x7fc00000);  // the plan's validation admits no other kind
  }
}

}  // namespace strata::cuda
