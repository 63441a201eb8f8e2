// What a GPU is, asked before anything is planned on it.
#pragma once
#include "base/error.h"

namespace strata::cuda {

Status gpu_info(int32_t ordinal, strata_gpu& gpu, Error& error);

}  // namespace strata::cuda
