#include "cuda/gpu_info.h"

#include <cstdio>

#include "cuda/driver.h"

namespace strata::cuda {

Status gpu_info(int32_t ordinal, strata_gpu& gpu, Error& error) {
  Driver driver;
  STRATA_TRY(driver.open(nullptr, error));
  Device device;
  STRATA_TRY(device.open(driver, ordinal, error));
  size_t free_bytes = 0, total_bytes = 0;
  STRATA_CU(driver, error, cuMemGetInfo(&free_bytes, &total_bytes));
  gpu.sm = device.info().sm;
  gpu.n_multiprocessors = device.info().n_multiprocessors;
  gpu.total_bytes = static_cast<int64_t>(total_bytes);
  gpu.free_bytes = static_cast<int64_t>(free_bytes);
  snprintf(gpu.name, sizeof gpu.name, "%s", device.info().name);
  return STRATA_OK;
}

}  // namespace strata::cuda
