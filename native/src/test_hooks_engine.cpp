#include "engine/sim_device.h"
#include "handles.h"
#include "strata_test_engine.h"

extern "C" {

STRATA_API int32_t strata_test_engine_block(void* engine, int32_t worker, int32_t hard) {
  static_cast<strata_engine*>(engine)->engine.pool().test_block(worker, hard != 0);
  return STRATA_OK;
}

STRATA_API int32_t strata_test_sim_fault(int32_t fault, int64_t value) {
  strata::SimFaults& faults = strata::sim_faults;
  const auto narrow = static_cast<int32_t>(value);
  switch (fault) {
    case STRATA_TEST_FAULT_DELAY_NS:
      faults.delay_ns = value;
      return STRATA_OK;
    case STRATA_TEST_FAULT_LOST_DOORBELL:
      faults.lost_doorbell = narrow;
      return STRATA_OK;
    case STRATA_TEST_FAULT_LOST_DONE:
      faults.lost_done = narrow;
      return STRATA_OK;
    case STRATA_TEST_FAULT_STALE_ROW:
      faults.stale_row = narrow;
      return STRATA_OK;
    case STRATA_TEST_FAULT_SWAPPED_PAIR:
      faults.swapped_pair = narrow;
      return STRATA_OK;
    case STRATA_TEST_FAULT_FLIPPED_BYTE:
      faults.flipped_byte = value;
      return STRATA_OK;
    default:
      return STRATA_E_ARGUMENT;
  }
}

STRATA_API int32_t strata_test_cgroup_cpus(const char* root, const char* proc_cgroup) {
  return strata::cgroup_cpus(root, proc_cgroup);
}

}  // extern "C"
