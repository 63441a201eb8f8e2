/* strata_test_ops.h: hooks of the sampler; test builds only (STRATA_TESTS). Uses the structs of strata.h. */
#ifndef STRATA_TEST_OPS_H
#define STRATA_TEST_OPS_H
#include <stdint.h>

#include "strata.h"

#ifndef STRATA_TEST_API
#if defined(__GNUC__)
#define STRATA_TEST_API __attribute__((visibility("default")))
#else
#define STRATA_TEST_API
#endif
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin (plain C declarations only) */

/* One row's token: the status of sample_row (engine/sampler.h). `repeats` > 1 draws as often, for timing. */
int32_t strata_test_sample(int32_t tier, const float* logits, int64_t n_vocab, const strata_sample* params,
                           const int32_t* ints, const float* floats, int64_t max_history, int32_t repeats,
                           strata_sampled* out);
void strata_test_philox(const uint32_t* counter, uint32_t key0, uint32_t key1, uint32_t* out);
/* draw: 0 token, 1 XTC. */
double strata_test_uniform(uint64_t seed, uint64_t counter, uint32_t draw);

/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
