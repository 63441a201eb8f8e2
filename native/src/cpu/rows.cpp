// Chooses the row kernels of a tier, and reads rows back as floats.
#include "cpu/rows.h"

#include <memory>

#include "cpu/pack.h"
#include "cpu/rows_impl.h"

namespace strata::cpu {

MatmulFn rows_matmul_ref(int32_t type);
MatmulFn rows_matmul_avx2(int32_t type);
MatmulFn rows_matmul_avx512(int32_t type);
MatmulFn rows_matmul_neon(int32_t type);

MatmulFn rows_matmul(Tier tier, int32_t type) {
  switch (tier) {
    case Tier::scalar:
      return rows_matmul_ref(type);
#if defined(__x86_64__)
    case Tier::avx2:
      return rows_matmul_avx2(type);
    case Tier::avx512:
      return rows_matmul_avx512(type);
#elif defined(__aarch64__)
    case Tier::neon:
      return rows_matmul_neon(type);
#endif
    default:
      return nullptr;
  }
}

namespace {

// The order of operations is gguf's; products of scale and sub-scale are exact.
template <class D>
void dequantize_32(const uint8_t* row, int64_t n_cols, float* out) {
  for (int64_t b = 0; b < n_cols / D::kValues; ++b) {
    int16_t q[D::kValues];
    float d[D::kValues / D::kUnit], m[D::kValues / D::kUnit];
    D::decode(row + b * D::kBytes, q, d, m);
    for (int i = 0; i < D::kValues; ++i) {
      const float value = d[i / D::kUnit] * static_cast<float>(q[i]);
      out[b * D::kValues + i] = D::kHasMin ? value + m[i / D::kUnit] : value;
    }
  }
}
template <class D>
void dequantize_256(const uint8_t* row, int64_t n_cols, float* out) {
  for (int64_t b = 0; b < n_cols / 256; ++b) {
    SuperBlock block;
    D::decode(row + b * D::kBytes, block);
    for (int i = 0; i < 256; ++i) {
      const float value = (block.d * static_cast<float>(block.scale[i / 16])) * static_cast<float>(block.q[i]);
      if constexpr (D::kHasMin)
        out[b * 256 + i] = value - block.dmin * static_cast<float>(block.minimum[i / 16]);
      else
        out[b * 256 + i] = value;
    }
  }
}

using DequantizeFn = void (*)(const uint8_t* row, int64_t n_cols, float* out);
struct DequantizeEntry {
  int32_t type;
  DequantizeFn run;
};
template <class... D>
DequantizeFn find_dequantize_32(int32_t type, List<D...>) {
  const DequantizeEntry entries[] = {{D::kType, dequantize_32<D>}...};
  for (const DequantizeEntry& entry : entries)
    if (entry.type == type) return entry.run;
  return nullptr;
}
template <class... D>
DequantizeFn find_dequantize_256(int32_t type, List<D...>) {
  const DequantizeEntry entries[] = {{D::kType, dequantize_256<D>}...};
  for (const DequantizeEntry& entry : entries)
    if (entry.type == type) return entry.run;
  return nullptr;
}
template <class Row>
void dequantize_float(const uint8_t* row, int64_t n_cols, float* out) {
  for (int64_t i = 0; i < n_cols; ++i) out[i] = Row::one(row, i);
}
DequantizeFn find_dequantize(int32_t type) {
  if (type == 0) return dequantize_float<RowF32>;
  if (type == 1) return dequantize_float<RowF16>;
  if (type == 30) return dequantize_float<RowBf16>;
  const DequantizeFn found = find_dequantize_32(type, All32{});
  return found != nullptr ? found : find_dequantize_256(type, All256{});
}

}  // namespace

bool rows_dequantize(int32_t type, const uint8_t* row, int64_t n_cols, float* out) {
  const DequantizeFn run = find_dequantize(type);
  if (run == nullptr) return false;
  run(row, n_cols, out);
  return true;
}

void row_dequantize(const MatView& w, int64_t row, float* out) {
  const TypeKernels* type = type_kernels(Tier::scalar, w.type);
  const int64_t row_bytes = w.n_cols / type->block * type->block_bytes;
  if (w.layout == Layout::rows || !type->interleaved) {
    rows_dequantize(w.type, w.data + row * row_bytes, w.n_cols, out);
    return;
  }
  const std::unique_ptr<uint8_t[]> file_row(new uint8_t[static_cast<size_t>(row_bytes)]);
  unpack_row(w.type, w.data, row, w.n_cols, file_row.get());
  rows_dequantize(w.type, file_row.get(), w.n_cols, out);
}

}  // namespace strata::cpu
