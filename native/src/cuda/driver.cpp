#include "cuda/driver.h"

#include <dlfcn.h>

namespace strata::cuda {
namespace {

constexpr int32_t kOldestVersion = 12000;  // machine code from CUDA 12 runs from driver 525 on

}  // namespace

Status Driver::open(const char* path, Error& error) {
  void* library = dlopen(path != nullptr ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return error.fail(STRATA_E_UNSUPPORTED, "no CUDA driver: %s", dlerror());
  struct Entry {
    void** member;
    const char* symbol;
  };
  const Entry entries[] = {
#define STRATA_DRIVER_ENTRY(name, symbol, parameters) {reinterpret_cast<void**>(&name), symbol},
      STRATA_DRIVER_FUNCTIONS(STRATA_DRIVER_ENTRY)
#undef STRATA_DRIVER_ENTRY
  };
  for (const Entry& entry : entries) {
    *entry.member = dlsym(library, entry.symbol);
    if (*entry.member == nullptr)
      return error.fail(STRATA_E_UNSUPPORTED, "the CUDA driver has no %s: it is older than CUDA 12", entry.symbol);
  }
  STRATA_CU(*this, error, cuInit(0));
  STRATA_CU(*this, error, cuDriverGetVersion(&version));
  if (version < kOldestVersion) {
    return error.fail(STRATA_E_UNSUPPORTED, "the CUDA driver supports CUDA %d.%d; 12.0 is the oldest that works",
                      version / 1000, version % 1000 / 10);
  }
  return STRATA_OK;
}

Status Driver::fail(CUresult result, const char* expression, const char* file, int line, Error& error) const {
  const char *name = "unknown error", *text = "";
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &text);
  const Status status = result == kCudaOutOfMemory ? STRATA_E_DEVICE_MEMORY : STRATA_E_DEVICE;
  return error.fail(status, "%s failed: %s (%d): %s, at %s:%d", expression, name != nullptr ? name : "unknown error", result,
                    text != nullptr ? text : "", file, line);
}

Status Device::open(const Driver& driver, int32_t ordinal, Error& error) {
  int32_t n = 0, major = 0, minor = 0;
  STRATA_CU(driver, error, cuDeviceGetCount(&n));
  if (ordinal < 0 || ordinal >= n)
    return error.fail(STRATA_E_UNSUPPORTED, "there is no GPU %d: the driver sees %d", ordinal, n);
  STRATA_CU(driver, error, cuDeviceGet(&device_, ordinal));
  STRATA_CU(driver, error, cuDeviceGetName(info_.name, sizeof info_.name, device_));
  STRATA_CU(driver, error, cuDeviceGetAttribute(&major, kAttributeMajor, device_));
  STRATA_CU(driver, error, cuDeviceGetAttribute(&minor, kAttributeMinor, device_));
  STRATA_CU(driver, error, cuDeviceGetAttribute(&info_.n_multiprocessors, kAttributeMultiprocessors, device_));
  size_t bytes = 0;
  STRATA_CU(driver, error, cuDeviceTotalMem(&bytes, device_));
  info_.sm = 10 * major + minor;
  info_.total_bytes = static_cast<int64_t>(bytes);
  if (info_.sm < 75) {
    return error.fail(STRATA_E_UNSUPPORTED, "GPU %d (%s) has compute capability %d.%d; 7.5 is the oldest that works",
                      ordinal, info_.name, major, minor);
  }
  STRATA_CU(driver, error, cuDevicePrimaryCtxRetain(&context_, device_));
  driver_ = &driver;
  STRATA_CU(driver, error, cuCtxSetCurrent(context_));
  return STRATA_OK;
}

void Device::close() {
  if (driver_ != nullptr) driver_->cuDevicePrimaryCtxRelease(device_);
  driver_ = nullptr;
}

}  // namespace strata::cuda
