#include "cuda/modules.h"

#include <cstring>

namespace strata::cuda {

const Module kModules[] = {
    {"act", "cuda/act.cu", nullptr},
    {"norm", "cuda/norm.cu", nullptr},
    {"rope", "cuda/rope.cu", nullptr},
    {"element", "cuda/element.cu", nullptr},
    {"router", "cuda/router.cu", nullptr},
    {"selftest", "cuda/selftest.cu", nullptr},
    {"gpu.mailbox", "cuda/gpu_mailbox.cu", nullptr},
    {"gpu.rows", "cuda/gpu_rows.cu", nullptr},
    {"attention.f32", "cuda/attention.cu", "STRATA_KV_TYPE=0"},
    {"attention.f16", "cuda/attention.cu", "STRATA_KV_TYPE=1"},
    {"attention.q8_0", "cuda/attention.cu", "STRATA_KV_TYPE=8"},
    {"linear.q8_0", "cuda/linear.cu", "STRATA_PACKED=PackedQ8"},
    {"linear.mxfp4", "cuda/linear.cu", "STRATA_PACKED=PackedMxfp4"},
    {"linear.q4_k", "cuda/linear.cu", "STRATA_PACKED=PackedQ4K"},
    {"linear.q6_k", "cuda/linear.cu", "STRATA_PACKED=PackedQ6K"},
    {"experts.q8_0", "cuda/experts.cu", "STRATA_PACKED=PackedQ8"},
    {"experts.mxfp4", "cuda/experts.cu", "STRATA_PACKED=PackedMxfp4"},
    {"experts.q4_k", "cuda/experts.cu", "STRATA_PACKED=PackedQ4K"},
    {"experts.q6_k", "cuda/experts.cu", "STRATA_PACKED=PackedQ6K"},
    {"batch.q8_0", "cuda/batched.cu", "STRATA_PACKED=PackedQ8"},
    {"batch.mxfp4", "cuda/batched.cu", "STRATA_PACKED=PackedMxfp4"},
    {"batch.q4_k", "cuda/batched.cu", "STRATA_PACKED=PackedQ4K"},
    {"batch.q6_k", "cuda/batched.cu", "STRATA_PACKED=PackedQ6K"},
    {"rows.f32", "cuda/rows_float.cu", "STRATA_FLOAT_TYPE=0"},
    {"rows.f16", "cuda/rows_float.cu", "STRATA_FLOAT_TYPE=1"},
    {"rows.bf16", "cuda/rows_float.cu", "STRATA_FLOAT_TYPE=30"},
    {"rows.q4_0", "cuda/rows.cu", "STRATA_ROWS=Rows32<cpu::DecodeQ4_0>"},
    {"rows.q4_1", "cuda/rows.cu", "STRATA_ROWS=Rows32<cpu::DecodeQ4_1>"},
    {"rows.q5_0", "cuda/rows.cu", "STRATA_ROWS=Rows32<cpu::DecodeQ5_0>"},
    {"rows.q5_1", "cuda/rows.cu", "STRATA_ROWS=Rows32<cpu::DecodeQ5_1>"},
    {"rows.iq4_nl", "cuda/rows.cu", "STRATA_ROWS=Rows32<cpu::DecodeIq4Nl>"},
    {"rows.nvfp4", "cuda/rows.cu", "STRATA_ROWS=Rows32<cpu::DecodeNvfp4>"},
    {"rows.q2_k", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeQ2K>"},
    {"rows.q3_k", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeQ3K>"},
    {"rows.q5_k", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeQ5K>"},
    {"rows.iq4_xs", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeIq4Xs>"},
    {"rows.tq1_0", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeTq1>"},
    {"rows.tq2_0", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeTq2>"},
    {"rows.iq2_xxs", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeIq2Xxs>"},
    {"rows.iq2_xs", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeIq2Xs>"},
    {"rows.iq2_s", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeIq2S>"},
    {"rows.iq3_xxs", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeIq3Xxs>"},
    {"rows.iq3_s", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeIq3S>"},
    {"rows.iq1_s", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeIq1S>"},
    {"rows.iq1_m", "cuda/rows.cu", "STRATA_ROWS=Rows256<cpu::DecodeIq1M>"},
};
const int32_t kNModules = sizeof kModules / sizeof kModules[0];

namespace {

// Rows of a block: 16 of a packed group; 4 of floats; 4 warps of one row (blocks of 32) or four rows (super-blocks).
constexpr TypeKernels kTypes[] = {
    {8, "linear.q8_0", "experts.q8_0", "batch.q8_0", 16, 256, 128, 256, 256},
    {39, "linear.mxfp4", "experts.mxfp4", "batch.mxfp4", 16, 128, 64, 256, 256},
    {12, "linear.q4_k", "experts.q4_k", "batch.q4_k", 16, 256, 128, 256, 256},
    {14, "linear.q6_k", "experts.q6_k", "batch.q6_k", 16, 256, 128, 256, 256},
    {0, "rows.f32", "rows.f32", nullptr, 4, 128, 128, 256, 256},
    {1, "rows.f16", "rows.f16", nullptr, 4, 128, 128, 256, 256},
    {30, "rows.bf16", "rows.bf16", nullptr, 4, 128, 128, 256, 256},
    {2, "rows.q4_0", "rows.q4_0", nullptr, 4, 128, 128, 64 * 32, 64},
    {3, "rows.q4_1", "rows.q4_1", nullptr, 4, 128, 128, 64 * 32, 64},
    {6, "rows.q5_0", "rows.q5_0", nullptr, 4, 128, 128, 64 * 32, 64},
    {7, "rows.q5_1", "rows.q5_1", nullptr, 4, 128, 128, 64 * 32, 64},
    {20, "rows.iq4_nl", "rows.iq4_nl", nullptr, 4, 128, 128, 64 * 32, 64},
    {40, "rows.nvfp4", "rows.nvfp4", nullptr, 4, 128, 128, 64 * 64, 64},
    {10, "rows.q2_k", "rows.q2_k", nullptr, 16, 128, 128, 64 * 256, 64},
    {11, "rows.q3_k", "rows.q3_k", nullptr, 16, 128, 128, 64 * 256, 64},
    {13, "rows.q5_k", "rows.q5_k", nullptr, 16, 128, 128, 64 * 256, 64},
    {23, "rows.iq4_xs", "rows.iq4_xs", nullptr, 16, 128, 128, 64 * 256, 64},
    {34, "rows.tq1_0", "rows.tq1_0", nullptr, 16, 128, 128, 64 * 256, 64},
    {35, "rows.tq2_0", "rows.tq2_0", nullptr, 16, 128, 128, 64 * 256, 64},
    {16, "rows.iq2_xxs", "rows.iq2_xxs", nullptr, 16, 128, 128, 64 * 256, 64},
    {17, "rows.iq2_xs", "rows.iq2_xs", nullptr, 16, 128, 128, 64 * 256, 64},
    {22, "rows.iq2_s", "rows.iq2_s", nullptr, 16, 128, 128, 64 * 256, 64},
    {18, "rows.iq3_xxs", "rows.iq3_xxs", nullptr, 16, 128, 128, 64 * 256, 64},
    {21, "rows.iq3_s", "rows.iq3_s", nullptr, 16, 128, 128, 64 * 256, 64},
    {19, "rows.iq1_s", "rows.iq1_s", nullptr, 16, 128, 128, 64 * 256, 64},
    {29, "rows.iq1_m", "rows.iq1_m", nullptr, 16, 128, 128, 64 * 256, 64},
};
}  // namespace

const Module* find_module(const char* name) {
  for (const Module& module : kModules) {
    if (strcmp(module.name, name) == 0) return &module;
  }
  return nullptr;
}

const TypeKernels* type_kernels(int32_t type) {
  for (const TypeKernels& kernels : kTypes) {
    if (kernels.type == type) return &kernels;
  }
  return nullptr;
}

const char* linear_kernel(const TypeKernels& type, int32_t n_tokens) {
  if (n_tokens == 1) return "k_linear_1";
  return type.packed() && n_tokens == 2 ? "k_linear_2" : "k_linear_8";
}
const char* expert_rows_kernel(const TypeKernels& type, int32_t n_tokens) {
  if (n_tokens == 1) return "k_expert_rows_1";
  return type.packed() && n_tokens == 2 ? "k_expert_rows_2" : "k_expert_rows_8";
}
const char* expert_in_kernel(int32_t n_tokens) {
  return n_tokens == 1 ? "k_expert_in_1" : n_tokens == 2 ? "k_expert_in_2" : "k_expert_in_8";
}

}  // namespace strata::cuda
