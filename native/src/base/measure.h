// Measured facts of the machine.
#pragma once
#include "base/error.h"

namespace strata {

// Best rate of n_threads reading `bytes` of touched memory, over passes of about one second.
Status measure_read(int32_t n_threads, int64_t bytes, double* bytes_per_s, Error& error);

}  // namespace strata
