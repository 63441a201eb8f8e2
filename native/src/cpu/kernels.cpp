// The table of weight types, the choice of the instruction-set tier, and
// activation rounding over rows.
#include "cpu/kernels.h"

#include <initializer_list>

#include "cpu/act.h"
#include "cpu/pack.h"
#include "cpu/packed.h"
#include "cpu/rows.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace strata::cpu {
namespace {

constexpr int64_t kTiers = 4;

// GGML type number, name, activation form, values and bytes of a file block.
struct TypeFacts {
  int32_t type;
  const char* name;
  ActForm act;
  int64_t block, block_bytes;
};
constexpr TypeFacts kTypes[] = {
    {0, "F32", ActForm::f32, 1, 4},          {1, "F16", ActForm::f32, 1, 2},
    {2, "Q4_0", ActForm::a32, 32, 18},       {3, "Q4_1", ActForm::a32, 32, 20},
    {6, "Q5_0", ActForm::a32, 32, 22},       {7, "Q5_1", ActForm::a32, 32, 24},
    {8, "Q8_0", ActForm::a32, 32, 34},       {10, "Q2_K", ActForm::a256, 256, 84},
    {11, "Q3_K", ActForm::a256, 256, 110},   {12, "Q4_K", ActForm::a256, 256, 144},
    {13, "Q5_K", ActForm::a256, 256, 176},   {14, "Q6_K", ActForm::a256, 256, 210},
    {16, "IQ2_XXS", ActForm::a256, 256, 66}, {17, "IQ2_XS", ActForm::a256, 256, 74},
    {18, "IQ3_XXS", ActForm::a256, 256, 98}, {19, "IQ1_S", ActForm::a256, 256, 50},
    {20, "IQ4_NL", ActForm::a32, 32, 18},    {21, "IQ3_S", ActForm::a256, 256, 110},
    {22, "IQ2_S", ActForm::a256, 256, 82},   {23, "IQ4_XS", ActForm::a256, 256, 136},
    {29, "IQ1_M", ActForm::a256, 256, 56},   {30, "BF16", ActForm::f32, 1, 2},
    {34, "TQ1_0", ActForm::a256, 256, 54},   {35, "TQ2_0", ActForm::a256, 256, 66},
    {39, "MXFP4", ActForm::a32, 32, 17},     {40, "NVFP4", ActForm::a32, 64, 36},
};
constexpr int64_t kTypeCount = sizeof(kTypes) / sizeof(kTypes[0]);

MatmulFn packed_matmul(Tier tier, int32_t type) {
  switch (tier) {
#if defined(__x86_64__)
    case Tier::avx2:
      return packed_matmul_avx2(type);
    case Tier::avx512:
      return packed_matmul_avx512(type);
#elif defined(__aarch64__)
    case Tier::neon:
      return packed_matmul_neon(type);
#endif
    default:
      return packed_matmul_ref(type);
  }
}

struct Table {
  TypeKernels entries[kTiers][kTypeCount];
  Table() {
    for (int64_t tier = 0; tier < kTiers; tier++) {
      for (int64_t i = 0; i < kTypeCount; i++) fill(static_cast<Tier>(tier), kTypes[i], entries[tier][i]);
    }
  }
  static void fill(Tier tier, const TypeFacts& facts, TypeKernels& out) {
    const MatmulFn rows = tier_supported(tier) ? rows_matmul(tier, facts.type) : nullptr;
    const bool interleaved = type_interleaved(facts.type);
    const MatmulFn packed = tier_supported(tier) && interleaved ? packed_matmul(tier, facts.type) : rows;
    out = {facts.type, facts.name, facts.act, facts.block, facts.block_bytes, interleaved, packed, rows};
  }
};

#if defined(__aarch64__)
// The int8 dot product instructions are an extension of the first 64-bit ARM
// processors.
bool has_neon_dot() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // every ARM processor of macOS has them
#endif
}
#endif

Tier find_best() {
  for (const Tier tier : {Tier::avx512, Tier::avx2, Tier::neon}) {
    if (tier_supported(tier)) return tier;
  }
  return Tier::scalar;
}

ActQuantFn act_quantize_row(Tier tier) {
#if defined(__x86_64__)
  if (tier == Tier::avx2) return act_quantize_row_avx2;
  if (tier == Tier::avx512) return act_quantize_row_avx512;
#endif
  (void)tier;
  return act_quantize_row_ref;
}

}  // namespace

bool tier_supported(Tier tier) {
  switch (tier) {
    case Tier::scalar:
      return true;
#if defined(__x86_64__)
    case Tier::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case Tier::avx512:
      return tier_supported(Tier::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
    case Tier::neon:
      return has_neon_dot();
#endif
    default:
      return false;
  }
}

Tier tier_best() {
  static const Tier best = find_best();
  return best;
}

const char* tier_name(Tier tier) {
  static constexpr const char* kNames[kTiers] = {"scalar", "avx2", "avx512", "neon"};
  return kNames[static_cast<int32_t>(tier)];
}

const TypeKernels* type_kernels(Tier tier, int32_t type) {
  static const Table table;
  if (!tier_supported(tier)) return nullptr;
  for (const TypeKernels& kernels : table.entries[static_cast<int32_t>(tier)]) {
    if (kernels.type == type) return &kernels;
  }
  return nullptr;
}

int64_t act_row_bytes(ActForm form, int64_t n_cols) {
  switch (form) {
    case ActForm::a32:
      return a32_row_bytes(n_cols);
    case ActForm::a256:
      return a256_row_bytes(n_cols);
    default:
      return align64(n_cols * 4);
  }
}

void act_quantize(Tier tier, ActForm form, const float* x, int64_t x_stride, int64_t n_cols, int64_t n_tokens,
                  uint8_t* acts) {
  const ActQuantFn quantize_row = act_quantize_row(tier);
  const int64_t row_bytes = act_row_bytes(form, n_cols);
  for (int64_t t = 0; t < n_tokens; t++) quantize_row(form, x + t * x_stride, n_cols, acts + t * row_bytes);
}

}  // namespace strata::cpu
