// Stands for cpu/simd.h where NVRTC compiles cpu/decode_32.h and cpu/decode_256.h: their plain branch, one lane a thread.
//
// The decoders of the file's blocks are one source for both sides, as base/ieee_math.h is.
#pragma once
#include "base/ieee_math.h"

#define STRATA_LANE static __device__ __forceinline__
#define __builtin_popcount __popc
