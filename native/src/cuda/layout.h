// Sizes and places inside activation rows and packed matrices as the CUDA kernels see them (host and NVRTC).
//
// The formats are defined by cpu/act.h and cpu/pack.h; cuda/check_layout.cpp holds the two sides together at compile time.
#pragma once
#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

namespace strata::cuda {

constexpr int32_t kGroupRows = 16;

static constexpr int64_t align64(int64_t bytes) { return (bytes + 63) & ~int64_t{63}; }

// ---- activations ----------------------------------------------------------------------------------------------------

static constexpr int64_t a32_d_offset(int64_t n_cols) { return align64(n_cols); }
static constexpr int64_t a32_sum_offset(int64_t n_cols) { return a32_d_offset(n_cols) + align64(n_cols / 32 * 4); }
// On the GPU only: the codes of each 32 values in the order that nibble look-ups give weights,
// 0 16 1 17 | 2 18 3 19 | 4 20 5 21 | ... | 14 30 15 31.
static constexpr int64_t a32_pairs_offset(int64_t n_cols) { return a32_sum_offset(n_cols) + align64(n_cols / 32 * 4); }
static constexpr int64_t a32_row_bytes(int64_t n_cols) { return a32_pairs_offset(n_cols) + align64(n_cols); }

static constexpr int64_t a256_d_offset(int64_t n_cols) { return n_cols; }
static constexpr int64_t a256_sum16_offset(int64_t n_cols) { return a256_d_offset(n_cols) + align64(n_cols / 256 * 4); }
static constexpr int64_t a256_sum32_offset(int64_t n_cols) { return a256_sum16_offset(n_cols) + align64(n_cols / 16 * 2); }
static constexpr int64_t a256_row_bytes(int64_t n_cols) { return a256_sum32_offset(n_cols) + align64(n_cols / 32 * 2); }

// ---- packed matrices ------------------------------------------------------------------------------------------------

constexpr int32_t kQ4KBlockBytes = 16 * 144, kQ6KBlockBytes = 16 * 208, kQ8BlockBytes = 16 * 32, kMXBlockBytes = 16 * 16;
constexpr int32_t kQ8BundleBytes = 64 + 2 * kQ8BlockBytes, kMXBundleBytes = 64 + 4 * kMXBlockBytes;

static constexpr int64_t q4k_group_bytes(int64_t n_cols) { return n_cols / 256 * kQ4KBlockBytes; }
static constexpr int64_t q6k_d_bytes(int64_t n_cols) { return align64(n_cols / 256 * 32); }
static constexpr int64_t q6k_group_bytes(int64_t n_cols) { return q6k_d_bytes(n_cols) + n_cols / 256 * kQ6KBlockBytes; }
static constexpr int64_t q8_group_bytes(int64_t n_cols) { return (n_cols / 32 + 1) / 2 * 64 + n_cols / 32 * kQ8BlockBytes; }
static constexpr int64_t mx_group_bytes(int64_t n_cols) { return (n_cols / 32 + 3) / 4 * 64 + n_cols / 32 * kMXBlockBytes; }

}  // namespace strata::cuda
