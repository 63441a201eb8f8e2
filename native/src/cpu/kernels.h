// Matrix kernels of the CPU: what the engine sees of weight formats, activation forms and instruction-set tiers.
//
// Contract C1 rules every function here: the bits of y[t][r] depend on row r of the weights and on activation row t
// alone, never on n_tokens, on the rows beside it, on the tier, or on how rows are split over threads.
// docs/numerics.md states the arithmetic for every type.
#pragma once
#include <cstdint>

namespace strata::cpu {

// How an activation row is held while it meets a weight type (docs/numerics.md).
enum class ActForm : int32_t { f32 = 0, a32 = 1, a256 = 2 };

// Instruction-set tiers. `scalar` is the bit reference of the others.
enum class Tier : int32_t { scalar = 0, avx2 = 1, avx512 = 2, neon = 3 };

// Best tier of this processor, found once by CPU feature bits.
Tier tier_best();
bool tier_supported(Tier tier);
const char* tier_name(Tier tier);

// `packed`: 16 rows interleaved, for the types that have such a layout (equal to `rows` for the others, which keep
// the file's row bytes). `rows`: the file's row layout, usable straight from a mapped file.
enum class Layout : int32_t { packed = 0, rows = 1 };

// Rows of one group of the packed layout; row ranges given to kernels start at a multiple of it.
constexpr int64_t kGroupRows = 16;

struct MatView {
  int32_t type;  // GGML type number
  Layout layout;
  int64_t n_rows;       // outputs (ne[1])
  int64_t n_cols;       // inputs (ne[0]), a multiple of the type's block size
  const uint8_t* data;  // 64-byte aligned when packed
};

// One call computes y[y_row(t)][r] = W[r] . act[act_row(t)] for r in [row_begin, row_end), t in [0, n_tokens).
// row_begin is a multiple of kGroupRows; row_end too, or n_rows. Biases and scales are the caller's.
struct MatmulArgs {
  MatView w;
  int64_t row_begin, row_end;
  const uint8_t* acts;       // activation rows in the form that the type asks for, 64-byte aligned rows
  int64_t act_stride;        // bytes between activation rows, = act_row_bytes(form, n_cols)
  const int32_t* act_index;  // [n_tokens] activation row of token t, or null for t itself
  int64_t n_tokens;
  float* y;
  int64_t y_stride;        // floats between output rows
  const int32_t* y_index;  // [n_tokens] output row of token t, or null for t itself
};
using MatmulFn = void (*)(const MatmulArgs& args);

struct TypeKernels {
  int32_t type;
  const char* name;
  ActForm act;
  int64_t block;        // values per file block
  int64_t block_bytes;  // bytes per file block
  bool interleaved;     // the packed layout differs from the row layout
  MatmulFn matmul_packed;
  MatmulFn matmul_rows;
};

// Null when the type is unknown or the tier is not supported here.
const TypeKernels* type_kernels(Tier tier, int32_t type);

// Bytes of one activation row of n_cols values, a multiple of 64.
int64_t act_row_bytes(ActForm form, int64_t n_cols);
// Rounds n_tokens rows x[t * x_stride ..] of n_cols floats into acts (act_row_bytes apart). Same bits on all tiers.
void act_quantize(Tier tier, ActForm form, const float* x, int64_t x_stride, int64_t n_cols, int64_t n_tokens,
                  uint8_t* acts);

// Bytes of a matrix in the packed layout, last group padded, a multiple of 64.
int64_t packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols);
// Repacks rows [row_begin, row_end) of the file's row layout (`file_rows` points at row_begin) into `packed`
// (the start of the whole packed matrix). row_begin is a multiple of kGroupRows; padding rows are zeroed.
void pack_rows(int32_t type, const uint8_t* file_rows, int64_t row_begin, int64_t row_end, int64_t n_rows, int64_t n_cols,
               uint8_t* packed);
// Reads row r of a matrix back as float32, exactly d * q as gguf's dequantisation gives it (embedding look-up).
void row_dequantize(const MatView& w, int64_t row, float* out);

}  // namespace strata::cpu
