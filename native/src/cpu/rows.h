// Kernels on the file's row layout, for every weight type: the exact generic path, and what a mapped file runs on.
#pragma once
#include "cpu/kernels.h"

namespace strata::cpu {

// Null for an unknown type or a tier that this build lacks. The caller checks that the processor has the tier.
MatmulFn rows_matmul(Tier tier, int32_t type);

// One row of the file's bytes as float32 [n_cols], the bits of gguf's dequantisation. False for an unknown type.
bool rows_dequantize(int32_t type, const uint8_t* row, int64_t n_cols, float* out);

}  // namespace strata::cpu
