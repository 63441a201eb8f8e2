// Row functions of the value path besides matrix products: activations, norms, softmax pieces, attention pieces.
//
// One table per instruction-set tier, all with the same bits (contract C1); docs/numerics.md gives every order of
// operations. Rows are float32, need no alignment, and may be as short as one value. `out` may be the same row as an
// input unless stated otherwise. NaN inputs give NaN outputs; which NaN is not specified.
#pragma once
#include <cstdint>

#include "cpu/kernels.h"

namespace strata::cpu {

// Positions of one attention tile: tile borders stand at absolute positions that are multiples of it.
constexpr int64_t kAttnTile = 64;

enum class Unary : int32_t { exp = 0, sigmoid, silu, softplus, tanh, gelu, gelu_erf, gelu_quick, relu, relu_sqr, log, sqrt };

struct VecMath {
  // out[i] = act(gate[i], up[i]); kind and parameters as STRATA_GLU_* of strata.h. gate is not read by STRATA_GLU_UP_*.
  void (*glu)(int32_t kind, const float* gate, const float* up, float p0, float p1, float* out, int64_t n);
  void (*unary)(Unary kind, const float* x, float* out, int64_t n);
  // cap * tanh(x / cap).
  void (*softcap)(const float* x, float cap, float* out, int64_t n);
  void (*add)(const float* x, const float* y, float* out, int64_t n);
  void (*mul)(const float* x, const float* y, float* out, int64_t n);
  void (*scale)(const float* x, float factor, float* out, int64_t n);
  // (a * x) + (b * y), each operation rounded alone.
  void (*add_scaled)(float a, const float* x, float b, const float* y, float* out, int64_t n);
  // Limits to [-limit, limit].
  void (*clamp)(const float* x, float limit, float* out, int64_t n);
  // acc[i] = fma(w, x[i], acc[i]): the combine step.
  void (*axpy)(float w, const float* x, float* acc, int64_t n);

  // Sums in 256 strided lanes and a tree ("sum256").
  float (*sum)(const float* x, int64_t n);
  float (*sum_squares)(const float* x, int64_t n);
  // Product sum in 16 strided fma lanes and a tree ("dot16"), as F32 weights use it.
  float (*dot)(const float* x, const float* y, int64_t n);
  // Largest value; +0 for a zero of either sign, NaN when any value is NaN, -inf for n == 0.
  float (*max)(const float* x, int64_t n);
  // out[i] = exp(x[i] - max); returns the sum of out in 16 strided lanes and a tree.
  float (*exp_sub)(const float* x, float max, float* out, int64_t n);

  // (x * r) * gain with r = 1 / sqrt(sum_squares(x) / n + eps). gain may be null (no product).
  void (*rms_norm)(const float* x, const float* gain, float eps, float* out, int64_t n);
  // ((x - mean) * r) * gain + bias with r = 1 / sqrt(sum_squares(x - mean) / n + eps). gain and bias may be null.
  void (*layer_norm)(const float* x, const float* gain, const float* bias, float eps, float* out, int64_t n);
  // x * r with r = 1 / sqrt(sum_squares(x) + eps).
  void (*l2_norm)(const float* x, float eps, float* out, int64_t n);

  // Rotates the first n_rot values in place; style is STRATA_ROPE_*; cos_row, sin_row: [n_rot / 2], magnitude included.
  void (*rope)(int32_t style, float* x, const float* cos_row, const float* sin_row, int64_t n_rot);

  // Cache rows: kv_type is STRATA_KV_*; Q8_0 needs n a multiple of 32. Stores one row of n values, kv_row_bytes(type, n).
  void (*kv_store)(int32_t kv_type, const float* x, uint8_t* row, int64_t n);
  void (*kv_load)(int32_t kv_type, const uint8_t* row, float* out, int64_t n);
  // s[i * s_stride + j] = dot16(q_i, k_j) * scale for n_q queries (q_stride floats apart) and n_keys cache rows
  // (k_stride bytes apart). Query heads that share a key head belong in one call.
  void (*attn_scores)(int32_t kv_type, const float* q, int64_t q_stride, int64_t n_q, const uint8_t* k, int64_t k_stride,
                      int64_t n_keys, int64_t n_dim, float scale, float* s, int64_t s_stride);
  // One tile of at most kAttnTile positions: acc_i += sum over j of p[i * p_stride + j] * v_j, the tile's sum being a
  // chain of fma from zero in ascending j. Positions with p == 0 are skipped, their rows not read.
  void (*attn_values)(int32_t kv_type, const float* p, int64_t p_stride, int64_t n_q, const uint8_t* v, int64_t v_stride,
                      int64_t n_keys, int64_t n_dim, float* acc, int64_t acc_stride);
};

// Null when the tier is not supported here.
const VecMath* vec_math(Tier tier);

// Bytes of one cache row of n values: f32 4n, f16 2n, q8_0 34 for each 32 values. 0 for an unknown type.
int64_t kv_row_bytes(int32_t kv_type, int64_t n);

}  // namespace strata::cpu
