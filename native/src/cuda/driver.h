// The CUDA driver by dlopen: the few types and functions that the backend uses, declared here, and errors with their text.
//
// No header and no library of a CUDA toolkit is needed to build or to start; a machine without a driver gets a refusal
// from Driver::open. Names are the driver API's; the table below gives their versions.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace strata::cuda {

using CUresult = int32_t;
using CUdevice = int32_t;
using CUdeviceptr = uint64_t;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;

constexpr CUresult kCudaSuccess = 0, kCudaOutOfMemory = 2, kCudaNotReady = 600;
// CUdevice_attribute
constexpr int32_t kAttributeMultiprocessors = 16, kAttributeMajor = 75, kAttributeMinor = 76;
// CU_MEMHOSTALLOC_*, CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
constexpr uint32_t kHostPortable = 1, kHostMapped = 2, kStreamNonBlocking = 1, kCaptureThreadLocal = 1;
// CU_MEMHOSTREGISTER_*; CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING
constexpr uint32_t kRegisterPortable = 1, kRegisterMapped = 2, kEventSleeps = 1, kEventNoTiming = 2;
// CU_FUNC_ATTRIBUTE_*
constexpr int32_t kFunctionLocalBytes = 3, kFunctionRegisters = 4;

// X(name, exported symbol, parameters)
#define STRATA_DRIVER_FUNCTIONS(X)                                                                                    \
  X(cuInit, "cuInit", (uint32_t flags))                                                                               \
  X(cuDriverGetVersion, "cuDriverGetVersion", (int32_t* version))                                                     \
  X(cuGetErrorName, "cuGetErrorName", (CUresult result, const char** name))                                           \
  X(cuGetErrorString, "cuGetErrorString", (CUresult result, const char** text))                                       \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int32_t* n))                                                               \
  X(cuDeviceGet, "cuDeviceGet", (CUdevice * device, int32_t ordinal))                                                 \
  X(cuDeviceGetName, "cuDeviceGetName", (char* name, int32_t capacity, CUdevice device))                              \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int32_t* value, int32_t attribute, CUdevice device))               \
  X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t* bytes, CUdevice device))                                        \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))                     \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                                     \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                                                          \
  X(cuCtxSynchronize, "cuCtxSynchronize", ())                                                                         \
  X(cuModuleLoadData, "cuModuleLoadData", (CUmodule * module, const void* image))                                     \
  X(cuModuleUnload, "cuModuleUnload", (CUmodule module))                                                              \
  X(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction * function, CUmodule module, const char* name))           \
  X(cuFuncGetAttribute, "cuFuncGetAttribute", (int32_t* value, int32_t attribute, CUfunction function))               \
  X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t* free_bytes, size_t* total_bytes))                                       \
  X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr * address, size_t bytes))                                               \
  X(cuMemFree, "cuMemFree_v2", (CUdeviceptr address))                                                                 \
  X(cuMemHostAlloc, "cuMemHostAlloc", (void** address, size_t bytes, uint32_t flags))                                 \
  X(cuMemFreeHost, "cuMemFreeHost", (void* address))                                                                  \
  X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", (CUdeviceptr * device, void* host, uint32_t flags))    \
  X(cuMemHostRegister, "cuMemHostRegister_v2", (void* address, size_t bytes, uint32_t flags))                         \
  X(cuMemHostUnregister, "cuMemHostUnregister", (void* address))                                                      \
  X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr to, const void* from, size_t bytes))                                \
  X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void* to, CUdeviceptr from, size_t bytes))                                      \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr to, const void* from, size_t bytes, CUstream stream))     \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))     \
  X(cuMemsetD32, "cuMemsetD32_v2", (CUdeviceptr to, uint32_t value, size_t n))                                        \
  X(cuMemsetD32Async, "cuMemsetD32Async", (CUdeviceptr to, uint32_t value, size_t n, CUstream stream))                \
  X(cuStreamCreate, "cuStreamCreate", (CUstream * stream, uint32_t flags))                                            \
  X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                                         \
  X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream stream))                                                    \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, uint32_t mode))                                \
  X(cuStreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph * graph))                                     \
  X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) \
  X(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec exec, CUstream stream))                                              \
  X(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec exec))                                                     \
  X(cuGraphDestroy, "cuGraphDestroy", (CUgraph graph))                                                                \
  X(cuEventCreate, "cuEventCreate", (CUevent * event, uint32_t flags))                                                \
  X(cuEventDestroy, "cuEventDestroy_v2", (CUevent event))                                                             \
  X(cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream))                                                 \
  X(cuEventQuery, "cuEventQuery", (CUevent event))                                                                    \
  X(cuEventSynchronize, "cuEventSynchronize", (CUevent event))                                                        \
  X(cuEventElapsedTime, "cuEventElapsedTime", (float* ms, CUevent start, CUevent end))                                \
  X(cuLaunchKernel, "cuLaunchKernel",                                                                                 \
    (CUfunction function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z, uint32_t block_x, uint32_t block_y,      \
     uint32_t block_z, uint32_t shared_bytes, CUstream stream, void** arguments, void** extra))

// Function pointers under the driver API's names. Open once; valid until the process ends (a driver is never unloaded).
struct Driver {
#define STRATA_DRIVER_MEMBER(name, symbol, parameters) CUresult(*name) parameters = nullptr;
  STRATA_DRIVER_FUNCTIONS(STRATA_DRIVER_MEMBER)
#undef STRATA_DRIVER_MEMBER
  int32_t version = 0;  // 12080: CUDA 12.8

  // STRATA_E_UNSUPPORTED: no driver here, or one too old; the text says which symbol or file is missing. `path` null: the
  // system's libcuda.so.1.
  Status open(const char* path, Error& error);
  // The text of `result`, with the failed expression and its place; STRATA_E_DEVICE_MEMORY when the card is full.
  Status fail(CUresult result, const char* expression, const char* file, int line, Error& error) const;
};

// Returns from the calling function with the error's text when a driver call fails.
#define STRATA_CU(driver, error, call)                                                                                \
  do {                                                                                                                \
    const ::strata::cuda::CUresult cu_result = (driver).call;                                                         \
    if (cu_result != ::strata::cuda::kCudaSuccess) return (driver).fail(cu_result, #call, __FILE__, __LINE__, error); \
  } while (0)

struct DeviceInfo {
  char name[128];
  int32_t sm;  // 89: compute capability 8.9
  int32_t n_multiprocessors;
  int64_t total_bytes;
};

// One GPU: its primary context, current on the thread that opened it.
class Device {
 public:
  Device() = default;
  ~Device() { close(); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Status open(const Driver& driver, int32_t ordinal, Error& error);
  void close();
  const DeviceInfo& info() const { return info_; }
  // For cuCtxSetCurrent on other threads.
  CUcontext context() const { return context_; }

 private:
  const Driver* driver_ = nullptr;
  CUcontext context_ = nullptr;
  CUdevice device_ = 0;
  DeviceInfo info_{};
};

// Launches with one argument struct: the only way kernels are started.
template <class Args>
Status launch(const Driver& driver, CUfunction function, uint32_t grid_x, uint32_t grid_y, uint32_t threads,
              uint32_t shared_bytes, CUstream stream, const Args& args, Error& error) {
  void* arguments[] = {const_cast<Args*>(&args)};
  STRATA_CU(driver, error,
            cuLaunchKernel(function, grid_x, grid_y, 1, threads, 1, 1, shared_bytes, stream, arguments, nullptr));
  return STRATA_OK;
}

}  // namespace strata::cuda
