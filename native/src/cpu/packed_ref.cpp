// Scalar kernels on the packed layouts: the bit reference of every tier and of
// CUDA. Obvious, not fast.
#include "base/ieee_math.h"
#include "cpu/act.h"
#include "cpu/pack.h"
#include "cpu/pack_words.h"
#include "cpu/packed.h"

namespace strata::cpu {
namespace {

// The sum of four products of unsigned codes and activations.
int32_t dot4(uint32_t codes, const int8_t* q) {
  int32_t sum = 0;
  for (int i = 0; i < 4; i++) sum += static_cast<int32_t>(codes >> 8 * i & 255) * q[i];
  return sum;
}
int32_t byte_of(uint32_t word, int64_t i) { return static_cast<int32_t>(word >> 8 * i & 255); }

// The four accumulators of contract C1 and their fixed tree.
struct Accumulators {
  float a[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  void add(int64_t unit, int32_t sum, float scale) { a[unit % 4] = v_fma(static_cast<float>(sum), scale, a[unit % 4]); }
  void subtract(int64_t unit, int32_t sum, float scale) {
    a[unit % 4] = v_fma(-static_cast<float>(sum), scale, a[unit % 4]);
  }
  float total() const { return (a[0] + a[2]) + (a[1] + a[3]); }
};

float dot_q4k(const uint8_t* group, int64_t n_cols, int64_t lane, const uint8_t* act) {
  const A256Row x = a256_view(act, n_cols);
  Accumulators acc;
  for (int64_t u = 0; u < n_cols / 256; u++) {
    const uint8_t* block = group + u * kQ4KBlockBytes;
    const uint8_t* words = block + 4 * lane;
    const uint32_t w[3] = {load_u32(words + 64), load_u32(words + 128), load_u32(words + 192)};
    uint32_t v[4];
    quartet_unpack(w, v);
    int32_t isum = 0, msum = 0;
    for (int64_t j = 0; j < 8; j++) {
      int32_t sum = 0;
      for (int64_t c = 0; c < 8; c++) {
        const uint32_t pair = load_u32(words + 64 * (4 + j / 2 * 8 + c));
        sum += dot4(pair >> 4 * (j % 2) & 0x0f0f0f0fu, x.q + 256 * u + 32 * j + 4 * c);
      }
      isum += byte_of(v[j / 4], j % 4) * sum;
      msum += byte_of(swap_middle(v[2 + j / 4]), j % 4) * x.sum32[8 * u + j];
    }
    acc.add(u, isum, m_half_to_float(load_u16(block + 2 * lane)) * x.d[u]);
    acc.subtract(u, msum, m_half_to_float(load_u16(block + 32 + 2 * lane)) * x.d[u]);
  }
  return acc.total();
}

float dot_q6k(const uint8_t* group, int64_t n_cols, int64_t lane, const uint8_t* act) {
  const A256Row x = a256_view(act, n_cols);
  Accumulators acc;
  for (int64_t u = 0; u < n_cols / 256; u++) {
    const uint8_t* words = group + q6k_d_bytes(n_cols) + u * kQ6KBlockBytes + 4 * lane;
    int32_t sums[16];
    for (int64_t j = 0; j < 16; j++) sums[j] = -32 * x.sum16[16 * u + j];
    for (int64_t q = 0; q < 16; q++) {
      const uint8_t* codes = words + 64 * (4 + 3 * q);
      const uint32_t w[3] = {load_u32(codes), load_u32(codes + 64), load_u32(codes + 128)};
      uint32_t v[4];
      quartet_unpack(w, v);
      for (int64_t i = 0; i < 4; i++) {
        const int64_t k = 128 * (q / 8) + 32 * i + 4 * (q % 8);
        sums[k / 16] += dot4(v[i], x.q + 256 * u + k);
      }
    }
    int32_t isum = 0;
    for (int64_t j = 0; j < 16; j++) {
      const uint32_t scales = swap_middle(load_u32(words + 64 * (j / 4)));
      isum += static_cast<int8_t>(byte_of(scales, j % 4)) * sums[j];
    }
    acc.add(u, isum, m_half_to_float(load_u16(group + 32 * u + 2 * lane)) * x.d[u]);
  }
  return acc.total();
}

float dot_q8(const uint8_t* group, int64_t n_cols, int64_t lane, const uint8_t* act) {
  const A32Row x = a32_view(act, n_cols);
  Accumulators acc;
  const uint8_t* codes = group;
  float scale[kQ8Bundle] = {};
  for (int64_t u = 0; u < n_cols / 32; u++, codes += kQ8BlockBytes) {
    if (u % kQ8Bundle == 0) {
      for (int64_t i = 0; i < kQ8Bundle; i++) scale[i] = m_half_to_float(load_u16(codes + 32 * i + 2 * lane));
      codes += 64;
    }
    int32_t isum = -128 * x.sum[u];
    for (int64_t c = 0; c < 8; c++) {
      isum += dot4(load_u32(codes + 64 * c + 4 * lane) ^ 0x80808080u, x.q + 32 * u + 4 * c);
    }
    acc.add(u, isum, scale[u % kQ8Bundle] * x.d[u]);
  }
  return acc.total();
}

float dot_mx(const uint8_t* group, int64_t n_cols, int64_t lane, const uint8_t* act) {
  static constexpr int8_t kCode[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const A32Row x = a32_view(act, n_cols);
  Accumulators acc;
  const uint8_t* codes = group;
  uint32_t exponents = 0;
  for (int64_t u = 0; u < n_cols / 32; u++, codes += kMXBlockBytes) {
    if (u % kMXBundle == 0) {
      exponents = load_u32(codes + 4 * lane);
      codes += 64;
    }
    int32_t isum = 0;
    for (int64_t k = 0; k < 32; k++) {
      const uint8_t pair = codes[64 * (k % 16 / 4) + 4 * lane + k % 4];
      isum += kCode[k < 16 ? pair & 15 : pair >> 4] * x.q[32 * u + k];
    }
    const auto exponent = static_cast<uint8_t>(byte_of(exponents, u % kMXBundle));
    acc.add(u, isum, m_e8m0_half_to_float(exponent) * x.d[u]);
  }
  return acc.total();
}

using DotFn = float (*)(const uint8_t* group, int64_t n_cols, int64_t lane, const uint8_t* act);

template <DotFn dot>
void matmul(const MatmulArgs& args) {
  const int64_t bytes = group_bytes(args.w.type, args.w.n_cols);
  for (int64_t t = 0; t < args.n_tokens; t++) {
    for (int64_t r = args.row_begin; r < args.row_end; r++) {
      const uint8_t* group = args.w.data + r / kGroupRows * bytes;
      y_row(args, t)[r] = dot(group, args.w.n_cols, r % kGroupRows, act_row(args, t));
    }
  }
}

}  // namespace

MatmulFn packed_matmul_ref(int32_t type) {
  switch (type) {
    case kTypeQ4_K:
      return matmul<dot_q4k>;
    case kTypeQ6_K:
      return matmul<dot_q6k>;
    case kTypeQ8_0:
      return matmul<dot_q8>;
    case kTypeMXFP4:
      return matmul<dot_mx>;
    default:
      return nullptr;
  }
}

}  // namespace strata::cpu
