// Hooks of the CUDA kernels' compiler and of the driver's loading: cuda/compiler.h and cuda/driver.h as plain C.
#include <cstdio>
#include <cstring>

#include "cuda/compiler.h"
#include "cuda/driver.h"
#include "strata_test_cuda.h"

using namespace strata;

extern "C" {

__attribute__((visibility("default"))) int32_t strata_test_cuda_n_modules(void) { return cuda::kNModules; }

__attribute__((visibility("default"))) const char* strata_test_cuda_module_name(int32_t module) {
  return cuda::kModules[module].name;
}

__attribute__((visibility("default"))) int32_t strata_test_cuda_compile(const char* nvrtc, int32_t module, int32_t sm,
                                                                        const char* cache_dir, uint8_t* cubin,
                                                                        int64_t capacity, int64_t* n_bytes,
                                                                        int32_t* from_cache, char* text,
                                                                        int32_t text_capacity) {
  Error error;
  cuda::Compiler compiler;
  Array<char> code;
  bool cached = false;
  Status status = compiler.open(nvrtc, error);
  if (status == STRATA_OK) status = compiler.compile(cuda::kModules[module], sm, cache_dir, code, &cached, error);
  snprintf(text, static_cast<size_t>(text_capacity), "%s", error.text);
  *n_bytes = code.size();
  *from_cache = cached ? 1 : 0;
  if (status == STRATA_OK && code.size() <= capacity) memcpy(cubin, code.data(), static_cast<size_t>(code.size()));
  return status;
}

__attribute__((visibility("default"))) int32_t strata_test_cuda_driver(const char* path, char* text, int32_t text_capacity) {
  Error error;
  cuda::Driver driver;
  const Status status = driver.open(path, error);
  snprintf(text, static_cast<size_t>(text_capacity), "%s", error.text);
  return status;
}

}  // extern "C"
