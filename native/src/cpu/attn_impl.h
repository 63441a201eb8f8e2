// Cache rows and the two products of attention, built once per tier (vecmath_*.cpp).
#pragma once
#include "cpu/float_rows.h"
#include "cpu/vecmath.h"
#include "cpu/vecmath_impl.h"
#include "strata.h"

namespace strata::cpu {
namespace {

// ---- store and load -------------------------------------------------------------------------------------------------

// Scale = half(amax / 127), codes = round-to-even(x / scale) inside [-127, 127]. A value that is not finite, or too large
// for the scale, makes the whole block NaN.
void store_q8_block(const float* x, uint8_t* block) {
  float amax = 0.0f;
  bool finite = true;
  for (int64_t i = 0; i < kQ8Values; ++i) {
    const float a = strata::v_abs(x[i]);
    finite = finite && a < v_from_bits(static_cast<int32_t>(0x7f800000));
    amax = amax < a ? a : amax;
  }
  const uint16_t half = finite ? m_float_to_half(amax / 127.0f) : uint16_t{0x7e00};
  memcpy(block, &half, sizeof half);
  const float d = m_half_to_float(half);
  for (int64_t i = 0; i < kQ8Values; ++i) {
    const float q = finite && d > 0.0f ? m_clamp(m_round_even(x[i] / d), -127.0f, 127.0f) : 0.0f;
    block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(q));
  }
}
void row_kv_store(int32_t kv_type, const float* x, uint8_t* row, int64_t n) {
  if (kv_type == STRATA_KV_F32) {
    memcpy(row, x, static_cast<size_t>(n) * sizeof(float));
  } else if (kv_type == STRATA_KV_F16) {
    uint16_t* out = reinterpret_cast<uint16_t*>(row);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) v_store_half(out + i, v_load(x + i));
    for (; i < n; ++i) out[i] = m_float_to_half(x[i]);
  } else {
    for (int64_t i = 0; i < n; i += kQ8Values) store_q8_block(x + i, row + i / kQ8Values * kQ8Bytes);
  }
}
template <class Row>
STRATA_LANE void load_row(const uint8_t* row, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) v_store(out + i, Row::load(row, i));
  for (; i < n; ++i) out[i] = Row::one(row, i);
}
void row_kv_load(int32_t kv_type, const uint8_t* row, float* out, int64_t n) {
  if (kv_type == STRATA_KV_F32) return load_row<RowF32>(row, out, n);
  if (kv_type == STRATA_KV_F16) return load_row<RowF16>(row, out, n);
  load_row<RowQ8>(row, out, n);
}

// ---- scores ---------------------------------------------------------------------------------------------------------

struct ScoreArgs {
  const float* q;
  int64_t q_stride, n_q;
  const uint8_t* k;
  int64_t k_stride, n_keys, n_dim;
  float scale;
  float* s;
  int64_t s_stride;
};

// kQ queries against kK keys at once; the 16 lanes of each pair are its own: pair (i, j) in lanes[j * kQ + i].
template <class Row, int kQ, int kK>
STRATA_LANE void score_lanes(const ScoreArgs& a, int64_t first_q, int64_t first_k, VF (*lanes)[k16]) {
  for (int p = 0; p < kQ * kK; ++p)
    for (int k = 0; k < k16; ++k) lanes[p][k] = VF(0.0f);
  const float* q = a.q + first_q * a.q_stride;
  const uint8_t* rows = a.k + first_k * a.k_stride;
  int64_t d = 0;
  for (; d + 16 <= a.n_dim; d += 16)
    for (int k = 0; k < k16; ++k)
      for (int j = 0; j < kK; ++j) {
        const VF key = Row::load(rows + j * a.k_stride, d + k * kLanes);
        for (int i = 0; i < kQ; ++i)
          lanes[j * kQ + i][k] = v_fma(v_load(q + i * a.q_stride + d + k * kLanes), key, lanes[j * kQ + i][k]);
      }
  for (int k = 0; k < k16 && d < a.n_dim; ++k) {
    const int64_t left = a.n_dim - d - k * kLanes, n = left < 0 ? 0 : left < kLanes ? left : kLanes;
    for (int j = 0; j < kK; ++j) {
      const VF key = load_first<Row>(rows + j * a.k_stride, d + k * kLanes, n);
      for (int i = 0; i < kQ; ++i)
        lanes[j * kQ + i][k] = v_fma(v_load_first(q + i * a.q_stride + d + k * kLanes, n), key, lanes[j * kQ + i][k]);
    }
  }
}
template <class Row, int kQ, int kK>
STRATA_LANE void score_block(const ScoreArgs& a, int64_t first_q, int64_t first_k) {
  VF lanes[kQ * kK][k16];
  score_lanes<Row, kQ, kK>(a, first_q, first_k, lanes);
  for (int i = 0; i < kQ; ++i)
    for (int j = 0; j < kK; ++j) a.s[(first_q + i) * a.s_stride + first_k + j] = v_tree16(lanes[j * kQ + i]) * a.scale;
}

#ifdef STRATA_TREE16X16
// 4 queries against 4 keys, or one against 16, whose trees are added together.
template <class Row>
STRATA_LANE void score_4x4(const ScoreArgs& a, int64_t first_q, int64_t first_k) {
  VF lanes[16][k16];
  score_lanes<Row, 4, 4>(a, first_q, first_k, lanes);
  const VF sums = v_tree16x16(&lanes[0][0]) * VF(a.scale);  // quarter i: query i against the four keys
  for (int i = 0; i < 4; ++i) v_store_quarter(a.s + (first_q + i) * a.s_stride + first_k, sums, i);
}
template <class Row>
STRATA_LANE void score_1x16(const ScoreArgs& a, int64_t first_q, int64_t first_k) {
  VF lanes[16][k16], mixed[16];
  score_lanes<Row, 1, 16>(a, first_q, first_k, lanes);
  for (int j = 0; j < 16; ++j) mixed[j % 4 * 4 + j / 4] = lanes[j][0];
  v_store(a.s + first_q * a.s_stride + first_k, v_tree16x16(mixed) * VF(a.scale));
}
#endif

template <class Row>
void score_rows(const ScoreArgs& a) {
  constexpr int kQ = 4, kManyK = kLanes == 16 ? 2 : 1, kOneQ = 4;
  int64_t i = 0;
  for (; i + kQ <= a.n_q; i += kQ) {
    int64_t j = 0;
#ifdef STRATA_TREE16X16
    for (; j + 4 <= a.n_keys; j += 4) score_4x4<Row>(a, i, j);
#endif
    for (; j + kManyK <= a.n_keys; j += kManyK) score_block<Row, kQ, kManyK>(a, i, j);
    for (; j < a.n_keys; ++j) score_block<Row, kQ, 1>(a, i, j);
  }
  for (; i < a.n_q; ++i) {
    int64_t j = 0;
#ifdef STRATA_TREE16X16
    for (; j + 16 <= a.n_keys; j += 16) score_1x16<Row>(a, i, j);
#endif
    for (; j + kOneQ <= a.n_keys; j += kOneQ) score_block<Row, 1, kOneQ>(a, i, j);
    for (; j < a.n_keys; ++j) score_block<Row, 1, 1>(a, i, j);
  }
}
void row_attn_scores(int32_t kv_type, const float* q, int64_t q_stride, int64_t n_q, const uint8_t* k, int64_t k_stride,
                     int64_t n_keys, int64_t n_dim, float scale, float* s, int64_t s_stride) {
  const ScoreArgs args{q, q_stride, n_q, k, k_stride, n_keys, n_dim, scale, s, s_stride};
  if (kv_type == STRATA_KV_F32) return score_rows<RowF32>(args);
  if (kv_type == STRATA_KV_F16) return score_rows<RowF16>(args);
  score_rows<RowQ8>(args);
}

// ---- values ---------------------------------------------------------------------------------------------------------

struct ValueArgs {
  const float* p;
  int64_t p_stride, n_q;
  const uint8_t* v;
  int64_t v_stride, n_keys, n_dim;
  float* acc;
  int64_t acc_stride;
};

// Whether a value row counts for one of kQ queries, and whether all count for all.
template <int kQ>
STRATA_LANE bool any_weight(const ValueArgs& a, const float* p, int64_t j) {
  bool any = false;
  for (int i = 0; i < kQ; ++i) any = any || p[i * a.p_stride + j] != 0.0f;
  return any;
}
template <int kQ>
STRATA_LANE bool all_weights(const ValueArgs& a, const float* p) {
  int32_t n_zero = 0;
  for (int i = 0; i < kQ; ++i)
    for (int64_t j = 0; j < a.n_keys; ++j) n_zero += p[i * a.p_stride + j] == 0.0f ? 1 : 0;
  return n_zero == 0;
}

// kQ queries, kD lane groups of the value row from `dim` on; n < kLanes when kD is 1 and the row ends inside. kAll: no
// weight is zero, so that the loop needs no branch.
template <class Row, int kQ, int kD, bool kAll>
STRATA_LANE void value_block(const ValueArgs& a, int64_t first_q, int64_t dim, int64_t n) {
  VF tile[kQ][kD];
  for (int i = 0; i < kQ; ++i)
    for (int k = 0; k < kD; ++k) tile[i][k] = VF(0.0f);
  const float* p = a.p + first_q * a.p_stride;
  for (int64_t j = 0; j < a.n_keys; ++j) {
    if (!kAll && !any_weight<kQ>(a, p, j)) continue;
    VF value[kD];
    const uint8_t* row = a.v + j * a.v_stride;
    for (int k = 0; k < kD; ++k) value[k] = n == kLanes ? Row::load(row, dim + k * kLanes) : load_first<Row>(row, dim, n);
    for (int i = 0; i < kQ; ++i) {
      const float weight = p[i * a.p_stride + j];
      if (!kAll && weight == 0.0f) continue;
      for (int k = 0; k < kD; ++k) tile[i][k] = v_fma(VF(weight), value[k], tile[i][k]);
    }
  }
  for (int i = 0; i < kQ; ++i)
    for (int k = 0; k < kD; ++k) {
      float* acc = a.acc + (first_q + i) * a.acc_stride + dim + k * kLanes;
      if (n == kLanes)
        v_store(acc, v_load(acc) + tile[i][k]);
      else
        v_store_first(acc, v_load_first(acc, n) + tile[i][k], n);
    }
}
template <class Row, int kQ, bool kAll>
STRATA_LANE void value_dims(const ValueArgs& a, int64_t first_q) {
  int64_t dim = 0;
  for (; dim + 4 * kLanes <= a.n_dim; dim += 4 * kLanes) value_block<Row, kQ, 4, kAll>(a, first_q, dim, kLanes);
  for (; dim + 2 * kLanes <= a.n_dim; dim += 2 * kLanes) value_block<Row, kQ, 2, kAll>(a, first_q, dim, kLanes);
  for (; dim + kLanes <= a.n_dim; dim += kLanes) value_block<Row, kQ, 1, kAll>(a, first_q, dim, kLanes);
  if (dim < a.n_dim) value_block<Row, kQ, 1, kAll>(a, first_q, dim, a.n_dim - dim);
}
template <class Row, int kQ>
STRATA_LANE void value_queries(const ValueArgs& a, int64_t first_q) {
  if (all_weights<kQ>(a, a.p + first_q * a.p_stride)) return value_dims<Row, kQ, true>(a, first_q);
  value_dims<Row, kQ, false>(a, first_q);
}
template <class Row>
void value_rows(const ValueArgs& a) {
  constexpr int kQ = kLanes == 16 ? 4 : 2;
  int64_t i = 0;
  for (; i + kQ <= a.n_q; i += kQ) value_queries<Row, kQ>(a, i);
  for (; i < a.n_q; ++i) value_queries<Row, 1>(a, i);
}
void row_attn_values(int32_t kv_type, const float* p, int64_t p_stride, int64_t n_q, const uint8_t* v, int64_t v_stride,
                     int64_t n_keys, int64_t n_dim, float* acc, int64_t acc_stride) {
  const ValueArgs args{p, p_stride, n_q, v, v_stride, n_keys, n_dim, acc, acc_stride};
  if (kv_type == STRATA_KV_F32) return value_rows<RowF32>(args);
  if (kv_type == STRATA_KV_F16) return value_rows<RowF16>(args);
  value_rows<RowQ8>(args);
}

constexpr VecMath kTable{row_glu,        row_unary,   row_softcap,     row_add,        row_mul,         row_scale,
                         row_add_scaled, row_clamp,   row_axpy,        row_sum,        row_sum_squares, row_dot,
                         row_max,        row_exp_sub, row_rms_norm,    row_layer_norm, row_l2_norm,     row_rope,
                         row_kv_store,   row_kv_load, row_attn_scores, row_attn_values};

}  // namespace
}  // namespace strata::cpu
