// One group of 16 packed rows times up to 8 activation rows: the core of every decode kernel.
//
// A team of 64 * kSplit threads holds one group. Thread (lane, part, j): lane = row of the group, j = accumulator, so the
// thread takes the units u = j, j + 4, j + 8, ... and its fma chain is exactly accumulator a[j] of contract C1; four chains
// run side by side without a float being reordered. With kSplit = 2 the two halves of a warp share a unit's codes and add
// their exact integer sums by one shuffle.
//
// Memory: a half-warp reads one 64-byte chunk, a word for each row; the words of kUnroll units are loaded before the first
// is used. Every weight byte is read once, so the floor of a launch is (bytes of its matrices) / (bandwidth); activations
// (about 1 % of the bytes) come from the first-level cache.
#pragma once
#include "base/ieee_math.h"
#include "cuda/layout.h"

namespace strata::cuda {

// Adds the products of eight words.
template <int kWords>
STRATA_DEVICE int32_t dot_words(const uint32_t (&w)[kWords], const uint32_t (&x)[kWords], int32_t sum) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) sum = dot4(w[i], x[i], sum);
  return sum;
}
STRATA_DEVICE void load_words(const uint8_t* p, uint32_t (&x)[4]) {
  const Quad q = load_quad(p);
  x[0] = q.x, x[1] = q.y, x[2] = q.z, x[3] = q.w;
}
// The integer sums of one unit, whose scales are d and m; m; msum is subtracted.
struct UnitSums {
  int32_t isum, msum;
};

// Three words of a 6-bit quartet to four words of bytes (pack.h).
STRATA_DEVICE void unpack_quartet(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t (&v)[4]) {
  v[0] = w0 & 0x3f3f3f3fu;
  v[1] = w1 & 0x3f3f3f3fu;
  v[2] = w2 & 0x3f3f3f3fu;
  v[3] = (w0 >> 6 & 0x03030303u) | (w1 >> 4 & 0x0c0c0c0cu) | (w2 >> 2 & 0x30303030u);
}
STRATA_DEVICE int32_t byte_of(uint32_t word, int i) { return static_cast<int32_t>(word >> (8 * i) & 255u); }
STRATA_DEVICE int32_t signed_byte_of(uint32_t word, int i) { return static_cast<int8_t>(word >> (8 * i)); }
// Byte 0 .. 3 of a word whose middle bytes are swapped.
STRATA_DEVICE constexpr int middle_swapped(int i) { return i == 1 ? 2 : i == 2 ? 1 : i; }

// ---- the four packed types ------------------------------------------------------------------------------------------
//
// A type gives: kUnit values of one unit; kSplit; kUnroll; the same two for one token, kOneThreads and kOneUnroll; Weights,
// the raw words of one thread's part of a unit, and load for them; sums of a part against one activation row; d and m, the
// weight scales; kHasMin.

struct PackedMxfp4 {
  static constexpr int kUnit = 32, kSplit = 1, kUnroll = 4;
  static constexpr int kOneThreads = 128, kOneUnroll = 6;
  static constexpr bool kHasMin = false;
  struct Weights {
    uint32_t code[4];
    uint32_t exponents;
  };
  STRATA_DEVICE int64_t group_bytes(int64_t n_cols) { return mx_group_bytes(n_cols); }
  STRATA_DEVICE int64_t act_d_offset(int64_t n_cols) { return a32_d_offset(n_cols); }
  STRATA_DEVICE void load(const uint8_t* group, int64_t, int unit, int lane, int, Weights& w) {
    const uint8_t* bundle = group + static_cast<int64_t>(unit / 4) * kMXBundleBytes + 4 * lane;
    const uint8_t* codes = bundle + 64 + unit % 4 * kMXBlockBytes;
    w.exponents = load_stream(bundle);
#pragma unroll
    for (int c = 0; c < 4; ++c) w.code[c] = load_stream(codes + 64 * c);
  }
  STRATA_DEVICE float d(const Weights& w, int unit) {
    return m_e8m0_half_to_float(static_cast<uint8_t>(w.exponents >> (8 * (unit % 4))));
  }
  STRATA_DEVICE float m(const Weights&) { return 0.0f; }
  // Eight nibbles to eight codes in the order of the pairs section, by four-way byte look-ups: the positive and the
  // negative table each, then a choice by the sign bit of each nibble.
  STRATA_DEVICE void look_up(uint32_t nibbles, uint32_t& first, uint32_t& second) {
    const uint32_t magnitude = nibbles & 0x77777777u, sign = (nibbles >> 1 & 0x44444444u) | 0x32103210u;
    constexpr uint32_t kLow = 0x03020100u, kHigh = 0x0c080604u, kMinusLow = 0xfdfeff00u, kMinusHigh = 0xf4f8fafcu;
    first = pick_bytes(pick_bytes(kLow, kHigh, magnitude), pick_bytes(kMinusLow, kMinusHigh, magnitude), sign);
    second =
        pick_bytes(pick_bytes(kLow, kHigh, magnitude >> 16), pick_bytes(kMinusLow, kMinusHigh, magnitude >> 16), sign >> 16);
  }
  struct Codes {
    uint32_t v[8];
  };
  STRATA_DEVICE void decode(const Weights& w, int, Codes& codes) {
#pragma unroll
    for (int c = 0; c < 4; ++c) look_up(w.code[c], codes.v[2 * c], codes.v[2 * c + 1]);
  }
  STRATA_DEVICE UnitSums sums(const Weights&, const Codes& codes, const uint8_t* act, int64_t n_cols, int unit, int) {
    const uint8_t* pairs = act + a32_pairs_offset(n_cols) + 32 * unit;
    uint32_t x[8];
    const Quad low = load_quad(pairs), high = load_quad(pairs + 16);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return {dot_words(codes.v, x, 0), 0};
  }
  // Weight k of a row as a float.
  STRATA_DEVICE float value(const uint8_t* group, int64_t, int lane, int64_t k) {
    const int64_t unit = k / 32;
    const uint8_t* bundle = group + unit / 4 * kMXBundleBytes + 4 * lane;
    const uint8_t byte = bundle[64 + unit % 4 * kMXBlockBytes + k % 16 / 4 * 64 + k % 4];
    const int nibble = k % 32 < 16 ? byte & 15 : byte >> 4;
    uint32_t code, unused;
    look_up(static_cast<uint32_t>(nibble), code, unused);
    return m_e8m0_half_to_float(bundle[unit % 4]) * static_cast<float>(static_cast<int8_t>(code));
  }
};

struct PackedQ8 {
  static constexpr int kUnit = 32, kSplit = 2, kUnroll = 4;
  static constexpr int kOneThreads = 256, kOneUnroll = 3;
  static constexpr bool kHasMin = false;
  struct Weights {
    uint32_t code[4];
    uint16_t scale;
  };
  struct Codes {};
  STRATA_DEVICE int64_t group_bytes(int64_t n_cols) { return q8_group_bytes(n_cols); }
  STRATA_DEVICE int64_t act_d_offset(int64_t n_cols) { return a32_d_offset(n_cols); }
  STRATA_DEVICE void load(const uint8_t* group, int64_t, int unit, int lane, int part, Weights& w) {
    const uint8_t* bundle = group + static_cast<int64_t>(unit / 2) * kQ8BundleBytes;
    const uint8_t* codes = bundle + 64 + unit % 2 * kQ8BlockBytes + 256 * part + 4 * lane;
    w.scale = load_stream_half(bundle + unit % 2 * 32 + 2 * lane);
#pragma unroll
    for (int c = 0; c < 4; ++c) w.code[c] = load_stream(codes + 64 * c);
  }
  STRATA_DEVICE float d(const Weights& w, int) { return half_to_float(w.scale); }
  STRATA_DEVICE float m(const Weights&) { return 0.0f; }
  STRATA_DEVICE void decode(const Weights&, int, Codes&) {}
  STRATA_DEVICE UnitSums sums(const Weights& w, const Codes&, const uint8_t* act, int64_t, int unit, int part) {
    uint32_t x[4];
    load_words(act + 32 * unit + 16 * part, x);
    return {dot_words(w.code, x, 0), 0};
  }
  STRATA_DEVICE float value(const uint8_t* group, int64_t, int lane, int64_t k) {
    const int64_t unit = k / 32;
    const uint8_t* bundle = group + unit / 2 * kQ8BundleBytes;
    const auto code = static_cast<int8_t>(bundle[64 + unit % 2 * kQ8BlockBytes + k % 32 / 4 * 64 + 4 * lane + k % 4]);
    return half_to_float(load_stream_half(bundle + unit % 2 * 32 + 2 * lane)) * static_cast<float>(code);
  }
};

struct PackedQ4K {
  static constexpr int kUnit = 256, kSplit = 2, kUnroll = 1;
  static constexpr int kOneThreads = 256, kOneUnroll = 1;
  static constexpr bool kHasMin = true;
  struct Weights {
    uint32_t code[16];
    uint32_t scales[3];
    uint16_t d, dmin;
  };
  struct Codes {
    uint32_t scale, minimum;  // four bytes each; the minimums with their middle bytes swapped
  };
  STRATA_DEVICE int64_t group_bytes(int64_t n_cols) { return q4k_group_bytes(n_cols); }
  STRATA_DEVICE int64_t act_d_offset(int64_t n_cols) { return a256_d_offset(n_cols); }
  STRATA_DEVICE void load(const uint8_t* group, int64_t, int unit, int lane, int part, Weights& w) {
    const uint8_t* block = group + static_cast<int64_t>(unit) * kQ4KBlockBytes;
    const uint8_t* words = block + 4 * lane;
    w.d = load_stream_half(block + 2 * lane);
    w.dmin = load_stream_half(block + 32 + 2 * lane);
#pragma unroll
    for (int i = 0; i < 3; ++i) w.scales[i] = load_stream(words + 64 * (1 + i));
#pragma unroll
    for (int c = 0; c < 16; ++c) w.code[c] = load_stream(words + 64 * (4 + 16 * part + c));
  }
  STRATA_DEVICE float d(const Weights& w, int) { return half_to_float(w.d); }
  STRATA_DEVICE float m(const Weights& w) { return half_to_float(w.dmin); }
  STRATA_DEVICE void decode(const Weights& w, int part, Codes& codes) {
    uint32_t v[4];
    unpack_quartet(w.scales[0], w.scales[1], w.scales[2], v);
    codes.scale = part != 0 ? v[1] : v[0];
    codes.minimum = part != 0 ? v[3] : v[2];
  }
  // The part has the sub-blocks 4 part .. 4 part + 3 of 32 values.
  STRATA_DEVICE UnitSums sums(const Weights& w, const Codes& codes, const uint8_t* act, int64_t n_cols, int unit, int part) {
    const uint8_t* q = act + 256 * unit + 128 * part;
    int32_t isum = 0;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      int32_t low = 0, high = 0;
#pragma unroll
      for (int c = 0; c < 8; c += 4) {
        uint32_t x_low[4], x_high[4];
        load_words(q + 64 * g + 4 * c, x_low);
        load_words(q + 64 * g + 32 + 4 * c, x_high);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t pair = w.code[8 * g + c + i];
          low = dot4(pair & 0x0f0f0f0fu, x_low[i], low);
          high = dot4(pair >> 4 & 0x0f0f0f0fu, x_high[i], high);
        }
      }
      isum += byte_of(codes.scale, 2 * g) * low + byte_of(codes.scale, 2 * g + 1) * high;
    }
    const auto* sum32 = reinterpret_cast<const int16_t*>(act + a256_sum32_offset(n_cols)) + 8 * unit + 4 * part;
    int32_t msum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) msum += byte_of(codes.minimum, middle_swapped(j)) * sum32[j];
    return {isum, msum};
  }
  STRATA_DEVICE float value(const uint8_t* group, int64_t, int lane, int64_t k) {
    const uint8_t* block = group + k / 256 * kQ4KBlockBytes;
    const uint8_t* words = block + 4 * lane;
    const int in_block = static_cast<int>(k % 256), j = in_block / 32;
    uint32_t v[4];
    unpack_quartet(load_stream(words + 64), load_stream(words + 128), load_stream(words + 192), v);
    const uint8_t byte = words[64 * (4 + j / 2 * 8 + in_block % 32 / 4) + k % 4];
    const int code = j % 2 == 0 ? byte & 15 : byte >> 4;
    const int scale = byte_of(j < 4 ? v[0] : v[1], j % 4), minimum = byte_of(j < 4 ? v[2] : v[3], middle_swapped(j % 4));
    const float d = half_to_float(load_stream_half(block + 2 * lane)),
                dmin = half_to_float(load_stream_half(block + 32 + 2 * lane));
    return (d * static_cast<float>(scale)) * static_cast<float>(code) - dmin * static_cast<float>(minimum);
  }
};

struct PackedQ6K {
  static constexpr int kUnit = 256, kSplit = 2, kUnroll = 1;
  static constexpr int kOneThreads = 256, kOneUnroll = 1;
  static constexpr bool kHasMin = false;
  struct Weights {
    uint32_t code[24];
    uint32_t scales[2];
    uint16_t d;
  };
  struct Codes {};
  STRATA_DEVICE int64_t group_bytes(int64_t n_cols) { return q6k_group_bytes(n_cols); }
  STRATA_DEVICE int64_t act_d_offset(int64_t n_cols) { return a256_d_offset(n_cols); }
  STRATA_DEVICE void load(const uint8_t* group, int64_t n_cols, int unit, int lane, int part, Weights& w) {
    const uint8_t* words = group + q6k_d_bytes(n_cols) + static_cast<int64_t>(unit) * kQ6KBlockBytes + 4 * lane;
    w.d = load_stream_half(group + 32 * unit + 2 * lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) w.scales[i] = load_stream(words + 64 * (2 * part + i));
#pragma unroll
    for (int c = 0; c < 24; ++c) w.code[c] = load_stream(words + 64 * (4 + 24 * part + c));
  }
  STRATA_DEVICE float d(const Weights& w, int) { return half_to_float(w.d); }
  STRATA_DEVICE float m(const Weights&) { return 0.0f; }
  STRATA_DEVICE void decode(const Weights&, int, Codes&) {}
  // The part has 128 values: sub-scale 8 part + 2 i + c / 4 for the codes from k = 128 part + 32 i + 4 c.
  STRATA_DEVICE UnitSums sums(const Weights& w, const Codes&, const uint8_t* act, int64_t n_cols, int unit, int part) {
    const uint8_t* q = act + 256 * unit + 128 * part;
    const auto* sum16 = reinterpret_cast<const int16_t*>(act + a256_sum16_offset(n_cols)) + 16 * unit + 8 * part;
    int32_t isum = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // c / 4
      int32_t sub[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) sub[i] = -32 * sum16[2 * i + half];
      uint32_t x[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_words(q + 32 * i + 16 * half, x[i]);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int at = 3 * (4 * half + c);
        uint32_t v[4];
        unpack_quartet(w.code[at], w.code[at + 1], w.code[at + 2], v);
#pragma unroll
        for (int i = 0; i < 4; ++i) sub[i] = dot4(v[i], x[i][c], sub[i]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 2 * i + half;  // byte of the part's two words, middle bytes swapped
        isum += signed_byte_of(w.scales[j / 4], middle_swapped(j % 4)) * sub[i];
      }
    }
    return {isum, 0};
  }
  STRATA_DEVICE float value(const uint8_t* group, int64_t n_cols, int lane, int64_t k) {
    const int64_t unit = k / 256;
    const uint8_t* words = group + q6k_d_bytes(n_cols) + unit * kQ6KBlockBytes + 4 * lane;
    const int in_block = static_cast<int>(k % 256), half = in_block / 128, i = in_block % 128 / 32, c = in_block % 32 / 4;
    const uint8_t* codes = words + 64 * (4 + 24 * half + 3 * c);
    uint32_t v[4];
    unpack_quartet(load_stream(codes), load_stream(codes + 64), load_stream(codes + 128), v);
    const uint32_t word = i == 0 ? v[0] : i == 1 ? v[1] : i == 2 ? v[2] : v[3];
    const int j = in_block / 16, scale = signed_byte_of(load_stream(words + 64 * (j / 4)), middle_swapped(j % 4));
    const float d = half_to_float(load_stream_half(group + 32 * unit + 2 * lane));
    return (d * static_cast<float>(scale)) * static_cast<float>(byte_of(word, in_block % 4) - 32);
  }
};

// ---- the team -------------------------------------------------------------------------------------------------------

template <class Q>
struct Team {
  static constexpr int kThreads = 64 * Q::kSplit;
};

// Accumulator j of row `lane` for each token t: acc[t]. `thread` counts inside the team; a warp never has two teams.
template <class Q, int kTokens>
STRATA_DEVICE void accumulate_group(const uint8_t* group, int64_t n_cols, int thread, const uint8_t* const (&acts)[kTokens],
                                    float (&acc)[kTokens]) {
  const int lane = thread & 15, part = Q::kSplit == 2 ? thread >> 4 & 1 : 0, j = thread / (16 * Q::kSplit);
  const int n_units = static_cast<int>(n_cols / Q::kUnit);
  const int64_t d_offset = Q::act_d_offset(n_cols);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) acc[t] = 0.0f;
  for (int first = j; first < n_units; first += 4 * Q::kUnroll) {
    typename Q::Weights w[Q::kUnroll];
#pragma unroll
    for (int i = 0; i < Q::kUnroll; ++i) {
      if (first + 4 * i < n_units) Q::load(group, n_cols, first + 4 * i, lane, part, w[i]);
    }
#pragma unroll
    for (int i = 0; i < Q::kUnroll; ++i) {
      const int unit = first + 4 * i;
      if (unit >= n_units) break;
      typename Q::Codes codes;
      Q::decode(w[i], part, codes);
      const float d = Q::d(w[i], unit), m = Q::m(w[i]);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        UnitSums sums = Q::sums(w[i], codes, acts[t], n_cols, unit, part);
        if (Q::kSplit == 2) {
          sums.isum += __shfl_xor_sync(0xffffffffu, sums.isum, 16);
          if (Q::kHasMin) sums.msum += __shfl_xor_sync(0xffffffffu, sums.msum, 16);
        }
        const float dx = reinterpret_cast<const float*>(acts[t] + d_offset)[unit];
        acc[t] = v_fma(static_cast<float>(sums.isum), d * dx, acc[t]);
        if (Q::kHasMin) acc[t] = v_fma(-static_cast<float>(sums.msum), m * dx, acc[t]);
      }
    }
  }
}

// Room for the four accumulators of a team's rows and tokens.
template <int kTokens>
struct Accumulators {
  float a[4][kTokens][kGroupRows];

  __device__ __forceinline__ float total(int token, int row) const {
    return (a[0][token][row] + a[2][token][row]) + (a[1][token][row] + a[3][token][row]);
  }
};
template <class Q, int kTokens, int kRoom>
STRATA_DEVICE void store_accumulators(Accumulators<kRoom>& room, int thread, const float (&acc)[kTokens]) {
  const int lane = thread & 15, j = thread / (16 * Q::kSplit);
  if (Q::kSplit == 2 && (thread & 16) != 0) return;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) room.a[j][t][lane] = acc[t];
}

// ---- one token ------------------------------------------------------------------------------------------------------
//
// A dense matrix has few groups: with one activation row, teams of 64 or 128 threads do not keep enough loads under way. So
// k_linear_1 takes kOneThreads for a group; thread slots take the units s, s + kSlots, ... and leave each unit's exact sum
// and its rounded scale product in shared memory; then 64 threads walk them in ascending order, accumulator by accumulator:
// the same operations in the same order. On an H200 (2026-12-01): Q8_0 5120 x 2880 9.7 us against 11.9, Q4_K 4096 x 2048
// 5.1 against 8.5. Experts come four or more at a time, and there the plain team is as fast (MXFP4 gate and up: faster).

template <class Q>
struct OneTokenRoom {
  static constexpr int kUnits = Q::kUnit == 32 ? 96 : 16;  // of one pass
  float sum[kUnits][kGroupRows], scale[kUnits][kGroupRows];
  float minimum[Q::kHasMin ? kUnits : 1][kGroupRows], minimum_scale[Q::kHasMin ? kUnits : 1][kGroupRows];
};

template <class Q>
STRATA_DEVICE void unit_to_room(const typename Q::Weights& w, const uint8_t* act, int64_t n_cols, int unit, int at, int lane,
                                int part, OneTokenRoom<Q>& room) {
  typename Q::Codes codes;
  Q::decode(w, part, codes);
  UnitSums sums = Q::sums(w, codes, act, n_cols, unit, part);
  if (Q::kSplit == 2) {
    sums.isum += __shfl_xor_sync(0xffffffffu, sums.isum, 16);
    if (Q::kHasMin) sums.msum += __shfl_xor_sync(0xffffffffu, sums.msum, 16);
  }
  if (part != 0) return;
  const float dx = reinterpret_cast<const float*>(act + Q::act_d_offset(n_cols))[unit];
  room.sum[at][lane] = static_cast<float>(sums.isum);
  room.scale[at][lane] = Q::d(w, unit) * dx;
  if (!Q::kHasMin) return;
  room.minimum[at][lane] = -static_cast<float>(sums.msum);
  room.minimum_scale[at][lane] = Q::m(w) * dx;
}

// Every thread of the block calls this together.
template <class Q>
STRATA_DEVICE void accumulate_one(const uint8_t* group, int64_t n_cols, int thread, const uint8_t* act,
                                  OneTokenRoom<Q>& room, Accumulators<1>& accumulators) {
  constexpr int kSlots = Q::kOneThreads / (16 * Q::kSplit), kUnroll = Q::kOneUnroll, kUnits = OneTokenRoom<Q>::kUnits;
  const int lane = thread & 15, part = Q::kSplit == 2 ? thread >> 4 & 1 : 0, slot = thread / (16 * Q::kSplit),
            j = thread / 16;
  const int n_units = static_cast<int>(n_cols / Q::kUnit), n_passes = (n_units + kUnits - 1) / kUnits;
  float acc = 0.0f;
  for (int pass = 0; pass < n_passes; ++pass) {
    const int begin = pass * kUnits, end = begin + kUnits < n_units ? begin + kUnits : n_units;
    for (int first = begin + slot; first < end; first += kSlots * kUnroll) {
      typename Q::Weights w[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (first + kSlots * i < end) Q::load(group, n_cols, first + kSlots * i, lane, part, w[i]);
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int unit = first + kSlots * i;
        if (unit < end) unit_to_room<Q>(w[i], act, n_cols, unit, unit - begin, lane, part, room);
      }
    }
    __syncthreads();
    if (j < 4) {
#pragma unroll 4
      for (int at = j; at < end - begin; at += 4) {
        acc = v_fma(room.sum[at][lane], room.scale[at][lane], acc);
        if (Q::kHasMin) acc = v_fma(room.minimum[at][lane], room.minimum_scale[at][lane], acc);
      }
    }
    __syncthreads();
  }
  if (j < 4) accumulators.a[j][0][lane] = acc;
}

// y * scale + bias, each rounded alone; absent parts change nothing.
STRATA_DEVICE float finish(float y, const float* scale, const float* bias, int row) {
  if (scale != nullptr) y = y * *scale;
  if (bias != nullptr) y = y + bias[row];
  return y;
}

}  // namespace strata::cuda
