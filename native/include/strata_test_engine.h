/* strata_test_engine.h: hooks into a running engine, in libstrata_test only. */
#ifndef STRATA_TEST_ENGINE_H
#define STRATA_TEST_ENGINE_H
#include "strata.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */
/* Keeps worker `worker` (>= 1) away from the next regions, until worker 0 is named here or, when not `hard`, until close. */
int32_t strata_test_engine_block(void* engine, int32_t worker, int32_t hard);
/* Processors that the quotas below a fake /sys/fs/cgroup allow; 0: no quota. */
int32_t strata_test_cgroup_cpus(const char* root, const char* proc_cgroup);
/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
