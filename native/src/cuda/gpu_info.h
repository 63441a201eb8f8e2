// What a GPU is, asked before anything is planned on it.
#pragma once
#include "base/error.h"

namespace strata::cuda {

Status gpu_info(int32_t ordinal, strata_gpu& gpu, Error& error);
// Rates of the card's memory and of the link from page-locked memory, in bytes per second.
Status gpu_measure(int32_t ordinal, double* memory_read_per_s, double* link_per_s, Error& error);

}  // namespace strata::cuda
