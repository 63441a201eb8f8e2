// The kernels that a plan needs: compiled side by side, loaded, and looked up once.
#pragma once
#include "cuda/attention.h"
#include "cuda/compiler.h"
#include "cuda/driver.h"
#include "cuda/modules.h"
#include "model/plan.h"

namespace strata::cuda {

// By number of tokens: 1, 2 (as 8 where a type has no such variant), up to 8.
struct TypeFunctions {
  const TypeKernels* kernels;  // null: not needed
  CUfunction linear[3], expert_rows[3], expert_in[3];
  CUfunction linear_batch, expert_rows_batch;  // null: no such kernels, or no step is large enough
  CUfunction embed;
};
inline int32_t variant_of(int32_t n_tokens) { return n_tokens <= 2 ? n_tokens - 1 : 2; }

constexpr int32_t kMaxTypes = 64;  // GGML type numbers
struct GpuFunctions {
  TypeFunctions types[kMaxTypes];
  AttentionFunctions attention;
  CUfunction act[3];  // by ActForm; f32: none
  CUfunction norm, rope_table, rope, router, glu, add, mul, clamp, combine;
  CUfunction group, dispatch, wait, collect, finish;
  CUfunction copy, gather, scale, temperature, weigh;
};

class GpuModules {
 public:
  GpuModules() = default;
  ~GpuModules() { close(); }
  GpuModules(const GpuModules&) = delete;
  GpuModules& operator=(const GpuModules&) = delete;

  // Compiles what `plan` needs for capability `sm` with a thread for each module (at most cpu_count()), loads it into the
  // current context and fills `functions`.
  Status open(const Driver& driver, const Compiler& compiler, const Plan& plan, int32_t kv_type, int32_t sm,
              const char* cache_dir, GpuFunctions& functions, Error& error);
  // The context must be current.
  void close();

 private:
  struct Build;
  static constexpr int32_t kMaxModules = 64;

  Status add(const Module* module, const char* name, Error& error);
  Status collect(const Plan& plan, int32_t kv_type, Error& error);
  Status compile(const Compiler& compiler, int32_t sm, const char* cache_dir, Error& error);
  Status find(const char* module, const char* name, CUfunction& function, Error& error) const;
  Status find_types(const Plan& plan, GpuFunctions& functions, Error& error) const;
  Status find_plain(GpuFunctions& functions, Error& error) const;
  bool has(const char* module) const;

  const Driver* driver_ = nullptr;
  int32_t n_ = 0;
  const Module* wanted_[kMaxModules] = {};
  CUmodule loaded_[kMaxModules] = {};
};

}  // namespace strata::cuda
