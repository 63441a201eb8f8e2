// What the validators of the plan's tables share. Only plan.cpp, plan_experts.cpp and plan_ops.cpp include this.
#pragma once
#include <cmath>

#include "model/plan.h"

namespace strata {

// One row of a table under examination; every complaint names it.
struct Row {
  Error& error;
  const char* table;
  int64_t index;

  Status bad(const char* field, int64_t value, const char* wanted) const {
    return error.fail(STRATA_E_ARGUMENT, "%s[%lld].%s is %lld; %s", table, static_cast<long long>(index), field,
                      static_cast<long long>(value), wanted);
  }
  Status range(const char* field, int64_t value, int64_t low, int64_t high) const {
    if (value >= low && value <= high) return STRATA_OK;
    return error.fail(STRATA_E_ARGUMENT, "%s[%lld].%s is %lld; accepted: %lld to %lld", table, static_cast<long long>(index),
                      field, static_cast<long long>(value), static_cast<long long>(low), static_cast<long long>(high));
  }
  Status equal(const char* field, int64_t value, int64_t wanted, const char* why) const {
    if (value == wanted) return STRATA_OK;
    return error.fail(STRATA_E_ARGUMENT, "%s[%lld].%s is %lld, but %s is %lld", table, static_cast<long long>(index), field,
                      static_cast<long long>(value), why, static_cast<long long>(wanted));
  }
  Status finite(const char* field, double value) const {
    if (std::isfinite(value)) return STRATA_OK;
    return error.fail(STRATA_E_ARGUMENT, "%s[%lld].%s is not finite", table, static_cast<long long>(index), field);
  }
};

// Limits that keep every product below within int64. No model comes near them.
constexpr int64_t kMaxCols = int64_t{1} << 24;
constexpr int64_t kMaxRows = int64_t{1} << 28;
constexpr int64_t kMaxMats = int64_t{1} << 16;
constexpr int64_t kMaxTableRows = int64_t{1} << 22;
constexpr int64_t kMaxBatch = int64_t{1} << 20;
constexpr int64_t kMaxHeads = int64_t{1} << 16;
constexpr int64_t kMaxStateFloats = int64_t{1} << 34;

inline bool add_overflows(int64_t a, int64_t b, int64_t* sum) { return __builtin_add_overflow(a, b, sum); }
inline bool mul_overflows(int64_t a, int64_t b, int64_t* product) { return __builtin_mul_overflow(a, b, product); }

Status validate_expert_sets(const Plan& plan, Error& error);
Status validate_ops(const Plan& plan, Error& error);

}  // namespace strata
