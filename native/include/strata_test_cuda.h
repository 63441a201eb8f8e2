/* strata_test_cuda.h: hooks of libstrata_test for the CUDA kernels' compiler. No part of the public ABI. */
#ifndef STRATA_TEST_CUDA_H
#define STRATA_TEST_CUDA_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin (plain C declarations only) */

int32_t strata_test_cuda_n_modules(void);
const char* strata_test_cuda_module_name(int32_t module);
/* One module for compute capability sm (75). nvrtc: library or folder; cache_dir may be null. Copies the machine code when
 * capacity suffices; n_bytes is its size. text: the reason of a failure, NUL-terminated. Any thread. */
int32_t strata_test_cuda_compile(const char* nvrtc, int32_t module, int32_t sm, const char* cache_dir, uint8_t* cubin,
                                 int64_t capacity, int64_t* n_bytes, int32_t* from_cache, char* text, int32_t text_capacity);
/* Opens a driver library; its failure's status and text. */
int32_t strata_test_cuda_driver(const char* path, char* text, int32_t text_capacity);

/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
