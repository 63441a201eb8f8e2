// Every tier of the packed kernels and of activation rounding against the scalar reference, bit for bit.
//
// The Python tests check values too; this program is for sanitizers and for machines without Python (ARM under an emulator).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "cpu/act.h"
#include "cpu/kernels.h"
#include "cpu/pack.h"

namespace {
using namespace strata::cpu;

constexpr int64_t kTokens = 15;  // tiles of 8, 4, 2 and 1

uint32_t g_state = 2463534242u;
uint32_t next_random() {
  g_state ^= g_state << 13;
  g_state ^= g_state >> 17;
  g_state ^= g_state << 5;
  return g_state;
}

// A buffer that starts at a multiple of 64 and ends where it says, so that an address sanitizer sees a read past it.
struct Aligned {
  explicit Aligned(int64_t n_bytes)
      : data(static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(align64(n_bytes))))) {}
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  uint8_t* data;
};

// File rows with random codes and scales that are neither infinite nor NaN.
std::vector<uint8_t> random_rows(const TypeKernels& facts, int64_t n_rows, int64_t n_cols) {
  std::vector<uint8_t> rows(static_cast<size_t>(n_rows * n_cols / facts.block * facts.block_bytes));
  for (uint8_t& byte : rows) byte = static_cast<uint8_t>(next_random() >> 13);
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(facts.block_bytes)) {
    const auto half = static_cast<uint16_t>(0x2000 + (next_random() >> 20));
    if (facts.type == kTypeMXFP4) {
      rows[at] = static_cast<uint8_t>(next_random() % 130);
    } else {
      std::memcpy(&rows[at + (facts.type == kTypeQ6_K ? 208 : 0)], &half, 2);
    }
    if (facts.type == kTypeQ4_K) std::memcpy(&rows[at + 2], &half, 2);
  }
  return rows;
}

void multiply(const TypeKernels& kernels, const uint8_t* packed, int64_t n_rows, int64_t n_cols, const uint8_t* acts,
              std::vector<float>& y) {
  y.assign(static_cast<size_t>(kTokens * n_rows), -7.0f);
  MatmulArgs args{};
  args.w = {kernels.type, Layout::packed, n_rows, n_cols, packed};
  args.row_end = n_rows;
  args.acts = acts;
  args.act_stride = act_row_bytes(kernels.act, n_cols);
  args.n_tokens = kTokens;
  args.y = y.data();
  args.y_stride = n_rows;
  kernels.matmul_packed(args);
}

bool same_bits(const void* a, const void* b, size_t n_bytes, const char* what, const TypeKernels& facts, Tier tier,
               int64_t n_rows, int64_t n_cols) {
  if (std::memcmp(a, b, n_bytes) == 0) return true;
  std::printf("%s differs: %s, %s, %lld x %lld\n", what, facts.name, tier_name(tier), static_cast<long long>(n_rows),
              static_cast<long long>(n_cols));
  return false;
}

bool check(int32_t type, int64_t n_rows, int64_t n_cols, int& n_compared) {
  const TypeKernels* scalar = type_kernels(Tier::scalar, type);
  const std::vector<uint8_t> rows = random_rows(*scalar, n_rows, n_cols);
  Aligned packed(packed_bytes(type, n_rows, n_cols));
  pack_rows(type, rows.data(), 0, n_rows, n_rows, n_cols, packed.data);
  std::vector<float> x(static_cast<size_t>(kTokens * n_cols));
  for (float& value : x) value = static_cast<float>(static_cast<int32_t>(next_random())) * 0x1p-29f;
  const int64_t act_bytes = kTokens * act_row_bytes(scalar->act, n_cols);
  Aligned acts(act_bytes), other(act_bytes);
  std::memset(acts.data, 0, static_cast<size_t>(act_bytes));
  std::memset(other.data, 0, static_cast<size_t>(act_bytes));
  act_quantize(Tier::scalar, scalar->act, x.data(), n_cols, n_cols, kTokens, acts.data);
  std::vector<float> want, y;
  multiply(*scalar, packed.data, n_rows, n_cols, acts.data, want);
  bool same = true;
  for (const Tier tier : {Tier::avx2, Tier::avx512, Tier::neon}) {
    const TypeKernels* kernels = type_kernels(tier, type);
    if (kernels == nullptr) continue;
    act_quantize(tier, scalar->act, x.data(), n_cols, n_cols, kTokens, other.data);
    same &=
        same_bits(acts.data, other.data, static_cast<size_t>(act_bytes), "activation row", *scalar, tier, n_rows, n_cols);
    multiply(*kernels, packed.data, n_rows, n_cols, acts.data, y);
    same &= same_bits(want.data(), y.data(), want.size() * 4, "product", *scalar, tier, n_rows, n_cols);
    n_compared++;
  }
  return same;
}

}  // namespace

int main() {
  bool same = true;
  int n_compared = 0;
  for (const int64_t n_rows : {1, 15, 16, 17, 33, 48}) {
    for (const int64_t n_cols : {256, 768, 1280}) {
      for (const int32_t type : {kTypeQ4_K, kTypeQ6_K, kTypeQ8_0, kTypeMXFP4})
        same &= check(type, n_rows, n_cols, n_compared);
    }
    for (const int64_t n_cols : {32, 64, 96, 224, 352}) {
      for (const int32_t type : {kTypeQ8_0, kTypeMXFP4}) same &= check(type, n_rows, n_cols, n_compared);
    }
  }
  std::printf("%d comparisons with the scalar reference (best tier: %s)\n", n_compared, tier_name(tier_best()));
  return same ? 0 : 1;
}
