// Bodies of the row functions, built once per tier (vecmath_*.cpp). Elementwise functions may use any lane width; sums
// use 16 or 256 lanes whatever the width is, so that all tiers agree.
#pragma once
#include "cpu/simd.h"
#include "cpu/vecmath.h"
#include "strata.h"

namespace strata::cpu {
namespace {

// ---- elementwise ----------------------------------------------------------------------------------------------------

// out[i] = f(x[i]).
template <class F>
STRATA_LANE void map1(const float* x, float* out, int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) v_store(out + i, f(v_load(x + i)));
  if (i < n) v_store_first(out + i, f(v_load_first(x + i, n - i)), n - i);
}
// out[i] = f(x[i], y[i]).
template <class F>
STRATA_LANE void map2(const float* x, const float* y, float* out, int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) v_store(out + i, f(v_load(x + i), v_load(y + i)));
  if (i < n) v_store_first(out + i, f(v_load_first(x + i, n - i), v_load_first(y + i, n - i)), n - i);
}

void row_glu(int32_t kind, const float* gate, const float* up, float p0, float p1, float* out, int64_t n) {
  const VF a = VF(p0), b = VF(p1), one = VF(1.0f);
  switch (kind) {
    case STRATA_GLU_SILU:
      return map2(gate, up, out, n, [](VF g, VF u) { return m_silu(g) * u; });
    case STRATA_GLU_GELU:
      return map2(gate, up, out, n, [](VF g, VF u) { return m_gelu(g) * u; });
    case STRATA_GLU_RELU:
      return map2(gate, up, out, n, [](VF g, VF u) { return m_relu(g) * u; });
    case STRATA_GLU_SWIGLU_OAI:
      return map2(gate, up, out, n, [=](VF g, VF u) { return m_silu_alpha(m_min(g, b), a) * (m_clamp(u, -b, b) + one); });
    case STRATA_GLU_SILU_CLAMP_EARLY:
      return map2(gate, up, out, n, [=](VF g, VF u) { return m_silu(m_min(g, a)) * m_clamp(u, -a, a); });
    case STRATA_GLU_SILU_CLAMP_LATE:
      return map2(gate, up, out, n, [=](VF g, VF u) { return m_min(m_silu(g), a) * m_clamp(u, -a, a); });
    case STRATA_GLU_SITU:
      if (p1 > 0.0f)
        return map2(gate, up, out, n, [=](VF g, VF u) { return (m_softcap(g, a) * m_sigmoid(g)) * m_softcap(u, b); });
      return map2(gate, up, out, n, [=](VF g, VF u) { return (m_softcap(g, a) * m_sigmoid(g)) * u; });
    case STRATA_GLU_UP_SILU:
      return map1(up, out, n, [](VF u) { return m_silu(u); });
    case STRATA_GLU_UP_RELU_SQR:
      return map1(up, out, n, [](VF u) { return m_relu_sqr(u); });
    case STRATA_GLU_UP_GELU:
      return map1(up, out, n, [](VF u) { return m_gelu(u); });
    default:  // the plan's validation admits no other kind; poison rather than a guess
      return map1(up, out, n, [](VF) { return VF(v_from_bits(static_cast<int32_t>(0x7fc00000))); });
  }
}

void row_unary(Unary kind, const float* x, float* out, int64_t n) {
  switch (kind) {
    case Unary::exp:
      return map1(x, out, n, [](VF v) { return m_exp(v); });
    case Unary::sigmoid:
      return map1(x, out, n, [](VF v) { return m_sigmoid(v); });
    case Unary::silu:
      return map1(x, out, n, [](VF v) { return m_silu(v); });
    case Unary::softplus:
      return map1(x, out, n, [](VF v) { return m_softplus(v); });
    case Unary::tanh:
      return map1(x, out, n, [](VF v) { return m_tanh(v); });
    case Unary::gelu:
      return map1(x, out, n, [](VF v) { return m_gelu(v); });
    case Unary::gelu_erf:
      return map1(x, out, n, [](VF v) { return m_gelu_erf(v); });
    case Unary::gelu_quick:
      return map1(x, out, n, [](VF v) { return m_gelu_quick(v); });
    case Unary::relu:
      return map1(x, out, n, [](VF v) { return m_relu(v); });
    case Unary::relu_sqr:
      return map1(x, out, n, [](VF v) { return m_relu_sqr(v); });
    case Unary::log:
      return map1(x, out, n, [](VF v) { return m_log(v); });
    case Unary::sqrt:
      return map1(x, out, n, [](VF v) { return v_sqrt(v); });
  }
}

void row_softcap(const float* x, float cap, float* out, int64_t n) {
  const VF c = VF(cap);
  map1(x, out, n, [=](VF v) { return m_softcap(v, c); });
}
void row_add(const float* x, const float* y, float* out, int64_t n) {
  map2(x, y, out, n, [](VF a, VF b) { return a + b; });
}
void row_mul(const float* x, const float* y, float* out, int64_t n) {
  map2(x, y, out, n, [](VF a, VF b) { return a * b; });
}
void row_scale(const float* x, float factor, float* out, int64_t n) {
  const VF f = VF(factor);
  map1(x, out, n, [=](VF v) { return v * f; });
}
void row_add_scaled(float a, const float* x, float b, const float* y, float* out, int64_t n) {
  const VF va = VF(a), vb = VF(b);
  map2(x, y, out, n, [=](VF u, VF v) { return (va * u) + (vb * v); });
}
void row_clamp(const float* x, float limit, float* out, int64_t n) {
  const VF high = VF(limit);
  map1(x, out, n, [=](VF v) { return m_clamp(v, -high, high); });
}
void row_axpy(float w, const float* x, float* acc, int64_t n) {
  const VF vw = VF(w);
  map2(x, acc, acc, n, [=](VF v, VF a) { return v_fma(vw, v, a); });
}

// ---- sums -----------------------------------------------------------------------------------------------------------

constexpr int k256 = 256 / kLanes;

// Element i goes to lane i mod 256 through lane = f(x[i], lane); lanes i and i + 128, then + 64 ... + 1 are added.
template <class F>
STRATA_LANE float sum256(const float* x, int64_t n, F f) {
  VF lanes[k256];
  for (int k = 0; k < k256; ++k) lanes[k] = VF(0.0f);
  int64_t i = 0;
  for (; i + 256 <= n; i += 256)
    for (int k = 0; k < k256; ++k) lanes[k] = f(v_load(x + i + k * kLanes), lanes[k]);
  for (int k = 0; i < n; ++k, i += kLanes)
    lanes[k] = f(n - i >= kLanes ? v_load(x + i) : v_load_first(x + i, n - i), lanes[k]);
  for (int half = k256 / 2; half >= k16; half /= 2)
    for (int k = 0; k < half; ++k) lanes[k] = lanes[k] + lanes[k + half];
  return v_tree16(lanes);
}

float row_sum(const float* x, int64_t n) {
  return sum256(x, n, [](VF v, VF lane) { return lane + v; });
}
float row_sum_squares(const float* x, int64_t n) {
  return sum256(x, n, [](VF v, VF lane) { return v_fma(v, v, lane); });
}

float row_dot(const float* x, const float* y, int64_t n) {
  VF lanes[k16];
  for (int k = 0; k < k16; ++k) lanes[k] = VF(0.0f);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int k = 0; k < k16; ++k) lanes[k] = v_fma(v_load(x + i + k * kLanes), v_load(y + i + k * kLanes), lanes[k]);
  if (i < n) {  // lanes behind the end take fma(0, 0, lane)
    float tail_x[16] = {}, tail_y[16] = {};
    for (int64_t t = 0; i + t < n; ++t) tail_x[t] = x[i + t], tail_y[t] = y[i + t];
    for (int k = 0; k < k16; ++k) lanes[k] = v_fma(v_load(tail_x + k * kLanes), v_load(tail_y + k * kLanes), lanes[k]);
  }
  return v_tree16(lanes);
}

float row_max(const float* x, int64_t n) {
  const float minus_inf = v_from_bits(static_cast<int32_t>(0xff800000));
  VF best = VF(minus_inf), nan = VF(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF v = v_load(x + i);
    best = v_select(best < v, v, best);
    nan = v_select(v == v, nan, v);
  }
  float lanes[kLanes], nans[kLanes];
  v_store(lanes, best);
  v_store(nans, nan);
  float result = minus_inf, poison = 0.0f;
  for (int k = 0; k < kLanes; ++k) {
    if (result < lanes[k]) result = lanes[k];
    if (nans[k] != nans[k]) poison = nans[k];
  }
  for (; i < n; ++i) {
    if (result < x[i]) result = x[i];
    if (x[i] != x[i]) poison = x[i];
  }
  return poison != poison ? poison : result + 0.0f;
}

float row_exp_sub(const float* x, float max, float* out, int64_t n) {
  const VF m = VF(max);
  VF lanes[k16];
  for (int k = 0; k < k16; ++k) lanes[k] = VF(0.0f);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int k = 0; k < k16; ++k) {
      const VF e = m_exp(v_load(x + i + k * kLanes) - m);
      v_store(out + i + k * kLanes, e);
      lanes[k] = lanes[k] + e;
    }
  }
  if (i < n) {
    float tail[16] = {};
    for (int64_t t = 0; i + t < n; ++t) tail[t] = x[i + t];
    for (int k = 0; k < k16; ++k) v_store(tail + k * kLanes, m_exp(v_load(tail + k * kLanes) - m));
    for (int64_t t = n - i; t < 16; ++t) tail[t] = 0.0f;
    for (int64_t t = 0; i + t < n; ++t) out[i + t] = tail[t];
    for (int k = 0; k < k16; ++k) lanes[k] = lanes[k] + v_load(tail + k * kLanes);
  }
  return v_tree16(lanes);
}

// ---- norms ----------------------------------------------------------------------------------------------------------

STRATA_LANE void apply_norm(const float* x, float r, const float* gain, const float* bias, float* out, int64_t n) {
  const VF vr = VF(r);
  if (gain == nullptr && bias == nullptr) return row_scale(x, r, out, n);
  if (bias == nullptr) return map2(x, gain, out, n, [=](VF v, VF g) { return (v * vr) * g; });
  if (gain == nullptr) return map2(x, bias, out, n, [=](VF v, VF b) { return (v * vr) + b; });
  map2(x, gain, out, n, [=](VF v, VF g) { return (v * vr) * g; });
  row_add(out, bias, out, n);
}
void row_rms_norm(const float* x, const float* gain, float eps, float* out, int64_t n) {
  const float r = 1.0f / strata::v_sqrt(row_sum_squares(x, n) / static_cast<float>(n) + eps);
  apply_norm(x, r, gain, nullptr, out, n);
}
void row_layer_norm(const float* x, const float* gain, const float* bias, float eps, float* out, int64_t n) {
  const float mean = row_sum(x, n) / static_cast<float>(n);
  const VF vm = VF(mean);
  map1(x, out, n, [=](VF v) { return v - vm; });
  const float r = 1.0f / strata::v_sqrt(row_sum_squares(out, n) / static_cast<float>(n) + eps);
  apply_norm(out, r, gain, bias, out, n);
}
void row_l2_norm(const float* x, float eps, float* out, int64_t n) {
  row_scale(x, 1.0f / strata::v_sqrt(row_sum_squares(x, n) + eps), out, n);
}

// (a, b) -> (fma(a, cos, -(b sin)), fma(a, sin, b cos)).
void row_rope(int32_t style, float* x, const float* cos_row, const float* sin_row, int64_t n_rot) {
  const int64_t half = n_rot / 2;
  if (style == STRATA_ROPE_NORM) {
    for (int64_t p = 0; p < half; ++p) {
      const float a = x[2 * p], b = x[2 * p + 1];
      x[2 * p] = strata::v_fma(a, cos_row[p], -(b * sin_row[p]));
      x[2 * p + 1] = strata::v_fma(a, sin_row[p], b * cos_row[p]);
    }
    return;
  }
  int64_t p = 0;
  for (; p + kLanes <= half; p += kLanes) {
    const VF a = v_load(x + p), b = v_load(x + half + p), c = v_load(cos_row + p), s = v_load(sin_row + p);
    v_store(x + p, v_fma(a, c, -(b * s)));
    v_store(x + half + p, v_fma(a, s, b * c));
  }
  for (; p < half; ++p) {
    const float a = x[p], b = x[half + p];
    x[p] = strata::v_fma(a, cos_row[p], -(b * sin_row[p]));
    x[half + p] = strata::v_fma(a, sin_row[p], b * cos_row[p]);
  }
}

}  // namespace
}  // namespace strata::cpu
