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

namespace {

constexpr size_t kCardBytes = size_t{256} << 20, kHostBytes = size_t{64} << 20;
constexpr int32_t kPasses = 8;

// What a measurement takes from the card, given back in any case.
struct Probe {
  const Driver& driver;
  CUdeviceptr from = 0, to = 0;
  void* host = nullptr;
  CUstream stream = nullptr;
  CUevent start = nullptr, end = nullptr;

  explicit Probe(const Driver& d) : driver(d) {}
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  ~Probe() {
    if (stream != nullptr) driver.cuStreamSynchronize(stream);
    if (start != nullptr) driver.cuEventDestroy(start);
    if (end != nullptr) driver.cuEventDestroy(end);
    if (stream != nullptr) driver.cuStreamDestroy(stream);
    if (host != nullptr) driver.cuMemFreeHost(host);
    if (from != 0) driver.cuMemFree(from);
    if (to != 0) driver.cuMemFree(to);
  }

  Status open(Error& error) {
    STRATA_CU(driver, error, cuMemAlloc(&from, kCardBytes));
    STRATA_CU(driver, error, cuMemAlloc(&to, kCardBytes));
    STRATA_CU(driver, error, cuMemHostAlloc(&host, kHostBytes, kHostPortable));
    STRATA_CU(driver, error, cuStreamCreate(&stream, kStreamNonBlocking));
    STRATA_CU(driver, error, cuEventCreate(&start, 0));
    STRATA_CU(driver, error, cuEventCreate(&end, 0));
    return STRATA_OK;
  }

  // Shortest time of `copy`, in seconds.
  template <class F>
  Status shortest(F copy, double* seconds, Error& error) {
    *seconds = 1e9;
    for (int32_t pass = 0; pass < kPasses; ++pass) {
      STRATA_CU(driver, error, cuEventRecord(start, stream));
      const CUresult copied = copy();
      if (copied != kCudaSuccess) return driver.fail(copied, "a measured copy", __FILE__, __LINE__, error);
      STRATA_CU(driver, error, cuEventRecord(end, stream));
      STRATA_CU(driver, error, cuEventSynchronize(end));
      float ms = 0;
      STRATA_CU(driver, error, cuEventElapsedTime(&ms, start, end));
      if (static_cast<double>(ms) * 1e-3 < *seconds) *seconds = static_cast<double>(ms) * 1e-3;
    }
    return STRATA_OK;
  }
};

}  // namespace

Status gpu_measure(int32_t ordinal, double* memory_read_per_s, double* link_per_s, Error& error) {
  Driver driver;
  STRATA_TRY(driver.open(nullptr, error));
  Device device;
  STRATA_TRY(device.open(driver, ordinal, error));
  Probe probe(driver);
  STRATA_TRY(probe.open(error));
  double seconds = 0;
  STRATA_TRY(probe.shortest([&] { return driver.cuMemcpyDtoDAsync(probe.to, probe.from, kCardBytes, probe.stream); },
                            &seconds, error));
  *memory_read_per_s = 2.0 * static_cast<double>(kCardBytes) / seconds;  // a copy reads and writes
  STRATA_TRY(probe.shortest([&] { return driver.cuMemcpyHtoDAsync(probe.to, probe.host, kHostBytes, probe.stream); },
                            &seconds, error));
  *link_per_s = static_cast<double>(kHostBytes) / seconds;
  return STRATA_OK;
}

}  // namespace strata::cuda
