// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011): ten rounds that mix a 128-bit counter with a 64-bit key. No state: a draw is a function of (key, counter).
#pragma once
#include <cstdint>

namespace strata {

struct PhiloxWords {
  uint32_t w[4];
};

inline PhiloxWords philox4x32(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kStep0 = 0x9E3779B9u, kStep1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter.w[0], product1 = kMultiplier1 * counter.w[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.w[1] ^ key0, static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.w[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += kStep0;
    key1 += kStep1;
  }
  return counter;
}

// What one token's draws are for; each has its own numbers.
enum class Draw : uint32_t { token = 0, xtc = 1 };

// Uniform in [0, 1) with 53 bits.
inline double philox_uniform(uint64_t seed, uint64_t counter, Draw draw) {
  const PhiloxWords words =
      philox4x32({{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), static_cast<uint32_t>(draw), 0}},
                 static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const uint64_t bits = (static_cast<uint64_t>(words.w[0] >> 5) << 26) | (words.w[1] >> 6);
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace strata
