// Launches of STRATA_OP_ATTENTION: cache rows are stored, then scores, maxima and values follow on the stream.
//
// Everything that changes from step to step (rows, positions, block table, their number) is read from device memory, so the
// launches may be captured once for a shape and replayed. A capture should be made for a number of rows near the real one:
// the shape decides how tiles are shared by blocks. Bits do not depend on it.
#pragma once
#include "cuda/attention_args.h"
#include "cuda/driver.h"

namespace strata::cuda {

struct AttentionFunctions {
  CUfunction store, scores, max, values, finish;
};

// Module of a STRATA_KV_*: "attention.f16"; null: unknown type.
const char* attention_module(int32_t kv_type);
// Finds the kernels in that module.
Status find_attention(const Driver& driver, CUmodule module, AttentionFunctions& functions, Error& error);

// `args` with all but the fields that launch_attention fills. scratch: attention_scratch_bytes(args.shape) device bytes,
// aligned to 256. q may not be out. args.k absent: the cache is only read (in[1] of the op is -1).
// STRATA_E_UNSUPPORTED: heads larger than kAttnMaxHeadK, or n_head no multiple of n_head_kv.
Status launch_attention(const Driver& driver, const AttentionFunctions& functions, CUstream stream,
                        const AttentionArgs& args, CUdeviceptr scratch, Error& error);

}  // namespace strata::cuda
