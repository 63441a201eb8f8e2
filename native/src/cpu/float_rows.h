// Rows whose values are read as floats: weights and cache rows of F32, F16 and BF16, cache rows of Q8_0.
//
// load() gives kLanes values from value i on, one() a single one. Internal linkage, one copy per tier.
#pragma once
#include "cpu/simd.h"

namespace strata::cpu {
namespace {

constexpr int64_t kQ8Values = 32, kQ8Bytes = 34;  // half scale, then 32 int8

struct RowF32 {
  static constexpr int64_t kBytes = 4;
  STRATA_LANE VF load(const uint8_t* row, int64_t i) { return v_load(reinterpret_cast<const float*>(row) + i); }
  STRATA_LANE float one(const uint8_t* row, int64_t i) { return reinterpret_cast<const float*>(row)[i]; }
};
struct RowF16 {
  static constexpr int64_t kBytes = 2;
  STRATA_LANE VF load(const uint8_t* row, int64_t i) { return v_load_half(reinterpret_cast<const uint16_t*>(row) + i); }
  STRATA_LANE float one(const uint8_t* row, int64_t i) { return m_half_to_float(reinterpret_cast<const uint16_t*>(row)[i]); }
};
struct RowBf16 {
  static constexpr int64_t kBytes = 2;
  STRATA_LANE VF load(const uint8_t* row, int64_t i) { return v_load_bf16(reinterpret_cast<const uint16_t*>(row) + i); }
  STRATA_LANE float one(const uint8_t* row, int64_t i) { return m_bf16_to_float(reinterpret_cast<const uint16_t*>(row)[i]); }
};
struct RowQ8 {  // scale times code is exact in float32: 11 and 8 bits
  STRATA_LANE float scale(const uint8_t* block) {
    uint16_t h;
    memcpy(&h, block, sizeof h);
    return m_half_to_float(h);
  }
  STRATA_LANE VF load(const uint8_t* row, int64_t i) {
    const uint8_t* block = row + i / kQ8Values * kQ8Bytes;
    return v_load_int8(reinterpret_cast<const int8_t*>(block) + 2 + i % kQ8Values) * VF(scale(block));
  }
  STRATA_LANE float one(const uint8_t* row, int64_t i) {
    const uint8_t* block = row + i / kQ8Values * kQ8Bytes;
    return static_cast<float>(static_cast<int8_t>(block[2 + i % kQ8Values])) * scale(block);
  }
};
// The first n < kLanes values from value i on, zeros behind.
template <class Row>
STRATA_LANE VF load_first(const uint8_t* row, int64_t i, int64_t n) {
  float lanes[kLanes] = {};
  for (int64_t k = 0; k < n; ++k) lanes[k] = Row::one(row, i + k);
  return v_load(lanes);
}

}  // namespace
}  // namespace strata::cpu
