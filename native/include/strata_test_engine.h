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
/* Makes every sim device of the process fail: STRATA_TEST_FAULT_*, values of engine/sim_device.h (SimFaults). */
#define STRATA_TEST_FAULT_DELAY_NS 0
#define STRATA_TEST_FAULT_LOST_DOORBELL 1
#define STRATA_TEST_FAULT_LOST_DONE 2
#define STRATA_TEST_FAULT_STALE_ROW 3
#define STRATA_TEST_FAULT_SWAPPED_PAIR 4
#define STRATA_TEST_FAULT_FLIPPED_BYTE 5
int32_t strata_test_sim_fault(int32_t fault, int64_t value);
/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
