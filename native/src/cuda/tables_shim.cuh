// Stands for cpu/iq_tables.h where NVRTC compiles cpu/decode_256.h: the same code books, expanded by the compiler into
// device memory.
#pragma once
#include "cpu/iq_grids.h"

namespace strata::cpu::iq {

// Coordinate i of a point is map[code >> (bits i) & mask] * factor, in byte i.
template <class Word, int kPoints>
struct Book {
  Word words[kPoints];

  template <int kMap>
  constexpr Book(const uint16_t (&codes)[kPoints], const int8_t (&map)[kMap], int size, int bits, int factor) : words{} {
    for (int p = 0; p < kPoints; ++p) {
      for (int i = 0; i < size; ++i) {
        const int value = map[codes[p] >> (bits * i) & ((1 << bits) - 1)] * factor;
        words[p] |= static_cast<Word>(static_cast<uint8_t>(value)) << (8 * i);
      }
    }
  }
  __device__ __forceinline__ Word operator[](uint32_t i) const { return words[i]; }
};

struct Tables {
  Book<uint64_t, kIq2xxsPoints> iq2xxs;
  Book<uint64_t, kIq2xsPoints> iq2xs;
  Book<uint64_t, kIq2sPoints> iq2s;
  Book<uint64_t, kIq1sPoints> iq1s_eighths;
  Book<uint32_t, kIq3xxsPoints> iq3xxs;
  Book<uint32_t, kIq3sPoints> iq3s;
};
__device__ constexpr Tables kTables{
    {kIq2xxs, kIq2xxsMap, kIq2xxsSize, kIq2xxsBits, 1}, {kIq2xs, kIq2xsMap, kIq2xsSize, kIq2xsBits, 1},
    {kIq2s, kIq2sMap, kIq2sSize, kIq2sBits, 1},         {kIq1s, kIq1sMap, kIq1sSize, kIq1sBits, 8},
    {kIq3xxs, kIq3xxsMap, kIq3xxsSize, kIq3xxsBits, 1}, {kIq3s, kIq3sMap, kIq3sSize, kIq3sBits, 1}};

}  // namespace strata::cpu::iq
