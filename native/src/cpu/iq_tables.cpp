// Expands the code books when the library is compiled.
#include "cpu/iq_tables.h"

namespace strata::cpu::iq {
namespace {

// codes -> words; each coordinate is map[index] * factor as int8.
template <class Word, int kPoints, int kMap>
constexpr void expand(const uint16_t (&codes)[kPoints], const int8_t (&map)[kMap], int size, int bits, int factor,
                      Word (&words)[kPoints]) {
  for (int p = 0; p < kPoints; ++p) {
    Word word = 0;
    for (int i = 0; i < size; ++i) {
      const int value = map[codes[p] >> (bits * i) & ((1 << bits) - 1)] * factor;
      word |= static_cast<Word>(static_cast<uint8_t>(value)) << (8 * i);
    }
    words[p] = word;
  }
}

constexpr Tables make_tables() {
  Tables t{};
  expand(kIq2xxs, kIq2xxsMap, kIq2xxsSize, kIq2xxsBits, 1, t.iq2xxs);
  expand(kIq2xs, kIq2xsMap, kIq2xsSize, kIq2xsBits, 1, t.iq2xs);
  expand(kIq2s, kIq2sMap, kIq2sSize, kIq2sBits, 1, t.iq2s);
  expand(kIq1s, kIq1sMap, kIq1sSize, kIq1sBits, 8, t.iq1s_eighths);
  expand(kIq3xxs, kIq3xxsMap, kIq3xxsSize, kIq3xxsBits, 1, t.iq3xxs);
  expand(kIq3s, kIq3sMap, kIq3sSize, kIq3sBits, 1, t.iq3s);
  return t;
}

}  // namespace

constexpr Tables kConstTables = make_tables();
const Tables kTables = kConstTables;

}  // namespace strata::cpu::iq
