// Which types have a packed layout, its sizes, and whole matrices in and out of
// it.
#include "cpu/pack.h"

#include <cstring>

namespace strata::cpu {
namespace {

struct PackFns {
  int32_t type;
  int64_t (*group_bytes)(int64_t n_cols);
  void (*pack)(const uint8_t* row, int64_t n_cols, int64_t lane, uint8_t* group);
  void (*unpack)(const uint8_t* group, int64_t n_cols, int64_t lane, uint8_t* row);
};
constexpr PackFns kPackFns[] = {
    {kTypeQ4_K, q4k_group_bytes, pack_q4k_row, unpack_q4k_row},
    {kTypeQ6_K, q6k_group_bytes, pack_q6k_row, unpack_q6k_row},
    {kTypeQ8_0, q8_group_bytes, pack_q8_row, unpack_q8_row},
    {kTypeMXFP4, mx_group_bytes, pack_mx_row, unpack_mx_row},
};

const PackFns* find(int32_t type) {
  for (const PackFns& fns : kPackFns) {
    if (fns.type == type) return &fns;
  }
  return nullptr;
}

// 0 for an unknown type.
int64_t file_row_bytes(int32_t type, int64_t n_cols) {
  const TypeKernels* kernels = type_kernels(Tier::scalar, type);
  return kernels == nullptr ? 0 : n_cols / kernels->block * kernels->block_bytes;
}

}  // namespace

bool type_interleaved(int32_t type) { return find(type) != nullptr; }

int64_t group_bytes(int32_t type, int64_t n_cols) {
  const PackFns* fns = find(type);
  return fns == nullptr ? 0 : fns->group_bytes(n_cols);
}

int64_t packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols) {
  const PackFns* fns = find(type);
  if (fns == nullptr) return align64(n_rows * file_row_bytes(type, n_cols));
  return (n_rows + kGroupRows - 1) / kGroupRows * fns->group_bytes(n_cols);
}

void pack_rows(int32_t type, const uint8_t* file_rows, int64_t row_begin, int64_t row_end, int64_t n_rows, int64_t n_cols,
               uint8_t* packed) {
  const int64_t row_bytes = file_row_bytes(type, n_cols);
  const PackFns* fns = find(type);
  if (fns == nullptr) {
    const auto n_bytes = static_cast<size_t>((row_end - row_begin) * row_bytes);
    memcpy(packed + row_begin * row_bytes, file_rows, n_bytes);
    if (row_end == n_rows) {
      const int64_t end = n_rows * row_bytes;
      memset(packed + end, 0, static_cast<size_t>(align64(end) - end));
    }
    return;
  }
  const int64_t bytes = fns->group_bytes(n_cols);
  for (int64_t first = row_begin; first < row_end; first += kGroupRows) {
    uint8_t* group = packed + first / kGroupRows * bytes;
    const int64_t lanes = row_end - first < kGroupRows ? row_end - first : kGroupRows;
    // Zeroes the padding rows, and the unused scales of a last bundle in every
    // group.
    memset(group, 0, static_cast<size_t>(bytes));
    for (int64_t lane = 0; lane < lanes; lane++) {
      fns->pack(file_rows + (first - row_begin + lane) * row_bytes, n_cols, lane, group);
    }
  }
}

void unpack_row(int32_t type, const uint8_t* packed, int64_t row, int64_t n_cols, uint8_t* file_row) {
  const PackFns* fns = find(type);
  if (fns == nullptr) {
    const int64_t row_bytes = file_row_bytes(type, n_cols);
    memcpy(file_row, packed + row * row_bytes, static_cast<size_t>(row_bytes));
    return;
  }
  fns->unpack(packed + row / kGroupRows * fns->group_bytes(n_cols), n_cols, row % kGroupRows, file_row);
}

}  // namespace strata::cpu
