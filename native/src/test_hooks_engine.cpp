#include "handles.h"
#include "strata_test_engine.h"

extern "C" {

STRATA_API int32_t strata_test_engine_block(void* engine, int32_t worker, int32_t hard) {
  static_cast<strata_engine*>(engine)->engine.pool().test_block(worker, hard != 0);
  return STRATA_OK;
}

STRATA_API int32_t strata_test_cgroup_cpus(const char* root, const char* proc_cgroup) {
  return strata::cgroup_cpus(root, proc_cgroup);
}

}  // extern "C"
