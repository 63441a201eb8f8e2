#include "cuda/gpu_graphs.h"

namespace strata::cuda {
namespace {

bool same(const StepShape& a, const StepShape& b) {
  return a.n_tokens == b.n_tokens && a.n_outputs == b.n_outputs && a.n_blocks == b.n_blocks;
}

}  // namespace

Status GpuGraphs::launch(const GpuContext& gpu, const StepShape& shape, const uint8_t* inputs, Error& error) {
  Entry* entry = nullptr;
  for (int32_t i = 0; i < n_ && entry == nullptr; ++i)
    if (same(entries_[i].shape, shape)) entry = &entries_[i];
  if (entry == nullptr) {
    if (n_ < kMost) {
      entry = &entries_[n_];
    } else {  // the longest unused one makes room; nothing of it runs, since steps end before others begin
      entry = &entries_[0];
      for (Entry& other : entries_)
        if (other.used < entry->used) entry = &other;
      gpu.driver->cuGraphExecDestroy(entry->exec);
      *entry = entries_[--n_];
      entry = &entries_[n_];
    }
    STRATA_TRY(capture(gpu, shape, inputs, *entry, error));
    ++n_;
  }
  entry->used = ++turn_;
  STRATA_CU(*gpu.driver, error, cuGraphLaunch(entry->exec, gpu.stream));
  return STRATA_OK;
}

Status GpuGraphs::capture(const GpuContext& gpu, const StepShape& shape, const uint8_t* inputs, Entry& entry, Error& error) {
  const Driver& driver = *gpu.driver;
  STRATA_CU(driver, error, cuStreamBeginCapture(gpu.stream, kCaptureThreadLocal));
  Walk walk(gpu, shape, inputs, error);
  const Status status = walk.run(0);
  CUgraph graph = nullptr;
  const CUresult ended = driver.cuStreamEndCapture(gpu.stream, &graph);
  if (status != STRATA_OK || ended != kCudaSuccess) {
    if (graph != nullptr) driver.cuGraphDestroy(graph);
    return status != STRATA_OK ? status : driver.fail(ended, "the capture of a step", __FILE__, __LINE__, error);
  }
  const CUresult made = driver.cuGraphInstantiate(&entry.exec, graph, 0);
  driver.cuGraphDestroy(graph);
  if (made != kCudaSuccess) return driver.fail(made, "a captured step's graph", __FILE__, __LINE__, error);
  entry.shape = shape;
  return STRATA_OK;
}

void GpuGraphs::close(const Driver& driver) {
  for (int32_t i = 0; i < n_; ++i) driver.cuGraphExecDestroy(entries_[i].exec);
  n_ = 0;
}

}  // namespace strata::cuda
