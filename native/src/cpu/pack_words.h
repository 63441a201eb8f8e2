// Words of the packed layouts in memory: the few lines that pack_*.cpp and the
// scalar kernels share. Internal linkage.
#pragma once
#include <cstdint>
#include <cstring>

namespace strata::cpu {

static inline uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}
static inline void store_u32(uint8_t* p, uint32_t v) { memcpy(p, &v, 4); }
static inline uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}
static inline void store_u16(uint8_t* p, uint16_t v) { memcpy(p, &v, 2); }

// Four words of four 6-bit bytes to the three words of a quartet, and back
// (pack.h).
static inline void quartet_pack(const uint32_t v[4], uint32_t w[3]) {
  w[0] = v[0] | (v[3] & 0x03030303u) << 6;
  w[1] = v[1] | (v[3] & 0x0c0c0c0cu) << 4;
  w[2] = v[2] | (v[3] & 0x30303030u) << 2;
}
static inline void quartet_unpack(const uint32_t w[3], uint32_t v[4]) {
  for (int i = 0; i < 3; i++) v[i] = w[i] & 0x3f3f3f3fu;
  v[3] = (w[0] >> 6 & 0x03030303u) | (w[1] >> 4 & 0x0c0c0c0cu) | (w[2] >> 2 & 0x30303030u);
}

// Bytes a, b, c, d of a word to a, c, b, d: its own inverse (the order of
// sub-scales that int16 pairs want).
static inline uint32_t swap_middle(uint32_t w) {
  return (w & 0xff0000ffu) | (w & 0x0000ff00u) << 8 | (w & 0x00ff0000u) >> 8;
}

}  // namespace strata::cpu
