// Kernels on the packed layouts for 64-bit ARM with the int8 dot product: four vectors of 4 rows for a group of 16.
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

#include "cpu/act.h"
#include "cpu/pack.h"
#include "cpu/packed.h"
#include "cpu/tiles.h"

namespace strata::cpu {
namespace {

#define STRATA_UNROLL _Pragma("GCC unroll 8")
#define STRATA_INLINE static __attribute__((always_inline)) inline

constexpr int kQuarters = 4;

template <int T>
using Sums = float32x4_t[T][kQuarters][4];  // float accumulators [token][quarter of the group][unit mod 4]
template <int T>
using IntSums = int32x4_t[T][kQuarters];

STRATA_INLINE uint8x16_t load(const uint8_t* p) { return vld1q_u8(p); }
STRATA_INLINE float32x4_t halves(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }

template <int T>
STRATA_INLINE void clear(Sums<T>& a) {
  for (int t = 0; t < T; t++) {
    for (int h = 0; h < kQuarters; h++) {
      for (int i = 0; i < 4; i++) a[t][h][i] = vdupq_n_f32(0.0f);
    }
  }
}
template <int T>
STRATA_INLINE void clear(IntSums<T>& sums) {
  STRATA_UNROLL
  for (int t = 0; t < T; t++) {
    STRATA_UNROLL
    for (int h = 0; h < kQuarters; h++) sums[t][h] = vdupq_n_s32(0);
  }
}
template <int T>
STRATA_INLINE void finish(const Sums<T>& a, float32x4_t (*out)[kQuarters]) {
  for (int t = 0; t < T; t++) {
    for (int h = 0; h < kQuarters; h++) {
      out[t][h] = vaddq_f32(vaddq_f32(a[t][h][0], a[t][h][2]), vaddq_f32(a[t][h][1], a[t][h][3]));
    }
  }
}

// Four chunks against 16 activations of every token; decode(c, h) gives the signed codes of chunk c, quarter h.
template <int T, class Decode>
STRATA_INLINE void dot16(const int8_t* const* q, const Decode& decode, IntSums<T>& sums) {
  int8x16_t x[T];
  STRATA_UNROLL
  for (int t = 0; t < T; t++) x[t] = vld1q_s8(q[t]);
  STRATA_UNROLL
  for (int h = 0; h < kQuarters; h++) {
    const int8x16_t c0 = decode(0, h), c1 = decode(1, h), c2 = decode(2, h), c3 = decode(3, h);
    STRATA_UNROLL
    for (int t = 0; t < T; t++) {
      sums[t][h] = vdotq_laneq_s32(sums[t][h], c0, x[t], 0);
      sums[t][h] = vdotq_laneq_s32(sums[t][h], c1, x[t], 1);
      sums[t][h] = vdotq_laneq_s32(sums[t][h], c2, x[t], 2);
      sums[t][h] = vdotq_laneq_s32(sums[t][h], c3, x[t], 3);
    }
  }
}

// a = fma(float(sum), d_w * d_x, a).
STRATA_INLINE float32x4_t add(float32x4_t a, int32x4_t sum, float32x4_t dw, float dx) {
  return vfmaq_f32(a, vcvtq_f32_s32(sum), vmulq_n_f32(dw, dx));
}

STRATA_INLINE uint32x4_t words(const uint8_t* p) { return vreinterpretq_u32_u8(load(p)); }
STRATA_INLINE int32x4_t byte_of(uint32x4_t w, int i) {
  return vreinterpretq_s32_u32(vandq_u32(vshlq_u32(w, vdupq_n_s32(-8 * i)), vdupq_n_u32(255)));
}
STRATA_INLINE uint8x16_t quartet_top(uint8x16_t w0, uint8x16_t w1, uint8x16_t w2) {
  // Byte shifts: nothing crosses from one byte to the next.
  const uint8x16_t v = vorrq_u8(vshrq_n_u8(w0, 6), vandq_u8(vshrq_n_u8(w1, 4), vdupq_n_u8(0x0c)));
  return vorrq_u8(v, vandq_u8(vshrq_n_u8(w2, 2), vdupq_n_u8(0x30)));
}

struct Q4K {
  static int64_t group_bytes(int64_t n_cols) { return q4k_group_bytes(n_cols); }

  // Sub-blocks 2g and 2g + 1: the low and the high nibbles of eight chunks.
  template <int T, int nibble>
  STRATA_INLINE void sub_block(const uint8_t* block, int g, const A256Row* x, int64_t u, IntSums<T>& isum) {
    const int j = 2 * g + nibble;
    IntSums<T> sums;
    clear<T>(sums);
    for (int part = 0; part < 2; part++) {
      const uint8_t* chunk = block + 64 * (4 + 8 * g + 4 * part);
      const int8_t* q[T];
      STRATA_UNROLL
      for (int t = 0; t < T; t++) q[t] = x[t].q + 256 * u + 32 * j + 16 * part;
      dot16<T>(
          q,
          [&](int c, int h) {
            const uint8x16_t w = load(chunk + 64 * c + 16 * h);
            return vreinterpretq_s8_u8(nibble == 0 ? vandq_u8(w, vdupq_n_u8(15)) : vshrq_n_u8(w, 4));
          },
          sums);
    }
    STRATA_UNROLL
    for (int h = 0; h < kQuarters; h++) {
      const uint8x16_t fields = vandq_u8(load(block + 64 + 64 * (j / 4) + 16 * h), vdupq_n_u8(0x3f));
      const int32x4_t scale = byte_of(vreinterpretq_u32_u8(fields), j % 4);
      STRATA_UNROLL
      for (int t = 0; t < T; t++) isum[t][h] = vmlaq_s32(isum[t][h], sums[t][h], scale);
    }
  }

  template <int T>
  STRATA_INLINE void minimums(const uint8_t* block, int h, const A256Row* x, int64_t u, int32x4_t* msum) {
    const uint8x16_t w2 = load(block + 192 + 16 * h);
    const uint32x4_t low = vreinterpretq_u32_u8(vandq_u8(w2, vdupq_n_u8(0x3f)));
    const uint32x4_t high = vreinterpretq_u32_u8(quartet_top(load(block + 64 + 16 * h), load(block + 128 + 16 * h), w2));
    for (int t = 0; t < T; t++) msum[t] = vdupq_n_s32(0);
    for (int i = 0; i < 4; i++) {
      const int byte = i == 1 ? 2 : i == 2 ? 1 : i;  // bytes hold m 0, 2, 1, 3
      const int32x4_t m_low = byte_of(low, byte), m_high = byte_of(high, byte);
      for (int t = 0; t < T; t++) {
        msum[t] = vmlaq_n_s32(msum[t], m_low, x[t].sum32[8 * u + i]);
        msum[t] = vmlaq_n_s32(msum[t], m_high, x[t].sum32[8 * u + 4 + i]);
      }
    }
  }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, float32x4_t (*out)[kQuarters]) {
    Sums<T> a;
    A256Row x[T];
    clear<T>(a);
    for (int t = 0; t < T; t++) x[t] = a256_view(acts[t], n_cols);
    for (int64_t u = 0; u < n_cols / 256; u++, group += kQ4KBlockBytes) {
      IntSums<T> isum;
      clear<T>(isum);
      for (int g = 0; g < 4; g++) {
        sub_block<T, 0>(group, g, x, u, isum);
        sub_block<T, 1>(group, g, x, u, isum);
      }
      for (int h = 0; h < kQuarters; h++) {
        int32x4_t msum[T];
        minimums<T>(group, h, x, u, msum);
        const float32x4_t d = halves(group + 8 * h), d_min = halves(group + 32 + 8 * h);
        for (int t = 0; t < T; t++) {
          const float32x4_t acc = add(a[t][h][u & 3], isum[t][h], d, x[t].d[u]);
          a[t][h][u & 3] = vfmsq_f32(acc, vcvtq_f32_s32(msum[t]), vmulq_n_f32(d_min, x[t].d[u]));
        }
      }
    }
    finish<T>(a, out);
  }
};

struct Q6K {
  static int64_t group_bytes(int64_t n_cols) { return q6k_group_bytes(n_cols); }

  // Field i of four quartets: sub-block j = 8h + s + 2i of the block.
  template <int T, int i>
  STRATA_INLINE void field(const uint8_t* block, int part, const A256Row* x, int64_t u, IntSums<T>& isum) {
    const int j = part / 2 * 8 + part % 2 + 2 * i;
    const uint8_t* chunk = block + 64 * (4 + 12 * part);
    const int8_t* q[T];
    STRATA_UNROLL
    for (int t = 0; t < T; t++) q[t] = x[t].q + 256 * u + 16 * j;
    IntSums<T> sums;
    clear<T>(sums);
    dot16<T>(
        q,
        [&](int c, int h) {
          const uint8_t* w = chunk + 192 * c + 16 * h;
          const uint8x16_t codes =
              i < 3 ? vandq_u8(load(w + 64 * (i % 3)), vdupq_n_u8(0x3f)) : quartet_top(load(w), load(w + 64), load(w + 128));
          return vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8(32));
        },
        sums);
    // Sub-scale 2i + s of this half is byte (i % 2) + 2s of word i / 2: bytes hold sc 0, 2, 1, 3.
    const int byte = i % 2 + 2 * (part % 2);
    STRATA_UNROLL
    for (int h = 0; h < kQuarters; h++) {
      const int32x4_t w = vreinterpretq_s32_u8(load(block + 128 * (part / 2) + 64 * (i / 2) + 16 * h));
      const int32x4_t scale = vshrq_n_s32(vshlq_s32(w, vdupq_n_s32(24 - 8 * byte)), 24);
      STRATA_UNROLL
      for (int t = 0; t < T; t++) isum[t][h] = vmlaq_s32(isum[t][h], sums[t][h], scale);
    }
  }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, float32x4_t (*out)[kQuarters]) {
    Sums<T> a;
    A256Row x[T];
    clear<T>(a);
    for (int t = 0; t < T; t++) x[t] = a256_view(acts[t], n_cols);
    const uint8_t* block = group + q6k_d_bytes(n_cols);
    for (int64_t u = 0; u < n_cols / 256; u++, block += kQ6KBlockBytes) {
      IntSums<T> isum;
      clear<T>(isum);
      for (int part = 0; part < 4; part++) {
        field<T, 0>(block, part, x, u, isum);
        field<T, 1>(block, part, x, u, isum);
        field<T, 2>(block, part, x, u, isum);
        field<T, 3>(block, part, x, u, isum);
      }
      for (int h = 0; h < kQuarters; h++) {
        const float32x4_t d = halves(group + 32 * u + 8 * h);
        for (int t = 0; t < T; t++) a[t][h][u & 3] = add(a[t][h][u & 3], isum[t][h], d, x[t].d[u]);
      }
    }
    finish<T>(a, out);
  }
};

struct MXFP4 {
  static int64_t group_bytes(int64_t n_cols) { return mx_group_bytes(n_cols); }

  // 2^(e - 128) for exponent bytes in 32-bit lanes; e = 0 and 1 are subnormal.
  STRATA_INLINE float32x4_t scale_of(uint32x4_t e) {
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    const uint32x4_t subnormal = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), subnormal, normal));
  }

  template <int T>
  STRATA_INLINE void unit(const uint8_t* bundle, int i, const A32Row* x, int64_t u, Sums<T>& a) {
    static constexpr int8_t kCodes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const int8x16_t table = vld1q_s8(kCodes);
    const uint8_t* chunk = bundle + 64 + i * kMXBlockBytes;
    const int8_t *q_low[T], *q_high[T];
    for (int t = 0; t < T; t++) {
      q_low[t] = x[t].q + 32 * u;
      q_high[t] = q_low[t] + 16;
    }
    IntSums<T> sums;
    clear<T>(sums);
    dot16<T>(
        q_low, [&](int c, int h) { return vqtbl1q_s8(table, vandq_u8(load(chunk + 64 * c + 16 * h), vdupq_n_u8(15))); },
        sums);
    dot16<T>(q_high, [&](int c, int h) { return vqtbl1q_s8(table, vshrq_n_u8(load(chunk + 64 * c + 16 * h), 4)); }, sums);
    for (int h = 0; h < kQuarters; h++) {
      const float32x4_t dw = scale_of(vreinterpretq_u32_s32(byte_of(words(bundle + 16 * h), i)));
      for (int t = 0; t < T; t++) a[t][h][i] = add(a[t][h][i], sums[t][h], dw, x[t].d[u]);
    }
  }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, float32x4_t (*out)[kQuarters]) {
    Sums<T> a;
    A32Row x[T];
    clear<T>(a);
    for (int t = 0; t < T; t++) x[t] = a32_view(acts[t], n_cols);
    const int64_t n_blocks = n_cols / 32;
    for (int64_t first = 0; first < n_blocks; first += kMXBundle, group += 64 + kMXBundle * kMXBlockBytes) {
      for (int i = 0; i < kMXBundle && first + i < n_blocks; i++) unit<T>(group, i, x, first + i, a);
    }
    finish<T>(a, out);
  }
};

struct Q80 {
  static int64_t group_bytes(int64_t n_cols) { return q8_group_bytes(n_cols); }

  template <int T>
  STRATA_INLINE void run(const uint8_t* group, int64_t n_cols, const uint8_t* const* acts, float32x4_t (*out)[kQuarters]) {
    Sums<T> a;
    A32Row x[T];
    clear<T>(a);
    for (int t = 0; t < T; t++) x[t] = a32_view(acts[t], n_cols);
    for (int64_t u = 0; u < n_cols / 32; u++) {
      if (u % kQ8Bundle == 0 && u > 0) group += 64 + kQ8Bundle * kQ8BlockBytes;
      IntSums<T> sums;
      clear<T>(sums);
      for (int part = 0; part < 2; part++) {
        const uint8_t* chunk = group + 64 + u % kQ8Bundle * kQ8BlockBytes + 256 * part;
        const int8_t* q[T];
        for (int t = 0; t < T; t++) q[t] = x[t].q + 32 * u + 16 * part;
        dot16<T>(q, [&](int c, int h) { return vreinterpretq_s8_u8(load(chunk + 64 * c + 16 * h)); }, sums);
      }
      for (int h = 0; h < kQuarters; h++) {
        const float32x4_t dw = halves(group + 32 * (u % kQ8Bundle) + 8 * h);
        for (int t = 0; t < T; t++) a[t][h][u & 3] = add(a[t][h][u & 3], sums[t][h], dw, x[t].d[u]);
      }
    }
    finish<T>(a, out);
  }
};

// Runs one tile of T tokens on one group and writes the rows that exist.
template <class Type>
struct Tile {
  template <int T, int R>
  static void run(const MatmulArgs& args, const uint8_t* group, int64_t row, int64_t token) {
    const uint8_t* acts[T];
    for (int t = 0; t < T; t++) acts[t] = act_row(args, token + t);
    float32x4_t out[T][kQuarters];
    Type::template run<T>(group, args.w.n_cols, acts, out);
    const int64_t n_rows = args.row_end - row < kGroupRows ? args.row_end - row : kGroupRows;
    for (int t = 0; t < T; t++) {
      float values[kGroupRows];
      for (int h = 0; h < kQuarters; h++) vst1q_f32(values + 4 * h, out[t][h]);
      float* y = y_row(args, token + t) + row;
      for (int64_t r = 0; r < n_rows; r++) y[r] = values[r];
    }
  }
};

template <class Type>
void matmul(const MatmulArgs& args) {
  for_each_tile<Tile<Type>, 1>(args, Type::group_bytes(args.w.n_cols));
}

}  // namespace

MatmulFn packed_matmul_neon(int32_t type) {
  switch (type) {
    case kTypeQ4_K:
      return matmul<Q4K>;
    case kTypeQ6_K:
      return matmul<Q6K>;
    case kTypeQ8_0:
      return matmul<Q80>;
    case kTypeMXFP4:
      return matmul<MXFP4>;
    default:
      return nullptr;
  }
}

}  // namespace strata::cpu
#endif
