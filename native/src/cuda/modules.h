// The CUDA sources inside the library, and the modules compiled from them: one for each job, or for each job and type.
#pragma once
#include <cstdint>

namespace strata::cuda {

struct SourceFile {
  const char* name;  // as an #include names it
  const char* text;
};
// Generated when the library is built (embed.cmake).
extern const SourceFile kSources[];
extern const int32_t kNSources;

struct Module {
  const char* name;    // "linear.q4_k"
  const char* source;  // "cuda/linear.cu"
  const char* define;  // "STRATA_PACKED=PackedQ4K", or null
};
extern const Module kModules[];
extern const int32_t kNModules;
const Module* find_module(const char* name);  // null: no such module

// The modules that hold the kernels of a weight type. Blocks of a k_linear or k_expert_rows launch: rows_per_block rows
// each; those of the batched kernels: tiles of kTileRows rows and kTileTokens tokens (kernel_args.h).
struct TypeKernels {
  int32_t type;         // GGML type number
  const char* linear;   // k_linear_*, k_embed
  const char* experts;  // k_expert_rows_*, and k_expert_in_* when packed
  const char* batch;    // k_linear_batch, k_expert_rows_batch; null: the type has none
  int32_t rows_per_block;
  int32_t threads_one;    // of a block of k_linear_1
  int32_t threads;        // of the other kernels; k_expert_in takes twice as many
  int32_t embed_columns;  // columns of one block of k_embed
  int32_t embed_threads;

  bool packed() const { return batch != nullptr; }  // in the interleaved layout; the others are file rows
};
const TypeKernels* type_kernels(int32_t type);  // null: unknown

inline int32_t linear_threads(const TypeKernels& type, int32_t n_tokens) {
  return n_tokens == 1 ? type.threads_one : type.threads;
}
// Steps of more rows take the batched kernels, where a type has them.
constexpr int32_t kFewTokens = 16;
// The kernel variant for a step of n_tokens (1 .. kMaxTokens): "k_linear_2".
const char* linear_kernel(const TypeKernels& type, int32_t n_tokens);
const char* expert_rows_kernel(const TypeKernels& type, int32_t n_tokens);
const char* expert_in_kernel(int32_t n_tokens);

}  // namespace strata::cuda
