// Code books of the IQ formats, one machine word per grid point: coordinate i in byte i, as int8.
#pragma once
#include <cstdint>

#include "cpu/iq_grids.h"

namespace strata::cpu::iq {

struct Tables {
  uint64_t iq2xxs[kIq2xxsPoints];
  uint64_t iq2xs[kIq2xsPoints];
  uint64_t iq2s[kIq2sPoints];
  uint64_t iq1s_eighths[kIq1sPoints];  // times 8: the format's delta is an eighth
  uint32_t iq3xxs[kIq3xxsPoints];
  uint32_t iq3s[kIq3sPoints];
};
extern const Tables kTables;

}  // namespace strata::cpu::iq
