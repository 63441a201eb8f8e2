// Status codes with text: how every part below the C border reports failure. Nothing here allocates.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>

#include "strata.h"

namespace strata {

// STRATA_OK or a negative STRATA_E_*.
using Status = int32_t;

// The text of one failure, cut to fit. The first failure is kept: later ones are its consequences.
struct Error {
  Status status = STRATA_OK;
  char text[768] = {};

  __attribute__((format(printf, 3, 4))) Status fail(Status code, const char* format, ...) {
    if (status != STRATA_OK) return status;
    status = code;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return code;
  }
  void clear() {
    status = STRATA_OK;
    text[0] = 0;
  }
};

// Returns from the calling function when `expression` is not STRATA_OK.
#define STRATA_TRY(expression)                        \
  do {                                                \
    const ::strata::Status try_status = (expression); \
    if (try_status != STRATA_OK) return try_status;   \
  } while (0)

}  // namespace strata
