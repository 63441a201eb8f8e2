#include "cuda/gpu_launcher.h"

#include <cstring>

namespace strata::cuda {
namespace {

constexpr int64_t kSpinNs = 20000;

}  // namespace

Status GpuLauncher::open(const GpuContext& gpu, CUcontext context, Error& error) {
  gpu_ = &gpu;
  context_ = context;
  const int failed = pthread_create(&thread_, nullptr, thread_main, this);
  if (failed != 0) return error.fail(STRATA_E_MEMORY, "the GPU's launching thread did not start: %s", strerror(failed));
  started_ = true;
  return STRATA_OK;
}

void GpuLauncher::close() {
  if (!started_) return;
  closing_.store(true, std::memory_order_release);
  begun_.advance();
  pthread_join(thread_, nullptr);
  started_ = false;
}

void GpuLauncher::start(const StepShape& shape, const uint8_t* inputs, uint64_t sequence) {
  shape_ = shape;
  inputs_ = inputs;
  sequence_ = sequence;
  begun_.advance();
}

bool GpuLauncher::wait(int64_t deadline_ns) {
  for (;;) {
    const uint32_t seen = ended_.load();
    if (finished_.load(std::memory_order_acquire) >= sequence_) return true;
    if (!ended_.wait(seen, kSpinNs, true, deadline_ns)) return false;
  }
}

Status GpuLauncher::result(Error& error) const {
  if (error_.status == STRATA_OK) return STRATA_OK;
  return error.fail(error_.status, "%s", error_.text);
}

void* GpuLauncher::thread_main(void* launcher) {
  pthread_setname_np(pthread_self(), "strata-launch");
  static_cast<GpuLauncher*>(launcher)->loop();
  return nullptr;
}

void GpuLauncher::loop() {
  for (uint32_t seen = 0; !closing_.load(std::memory_order_acquire);) {
    if (begun_.load() == seen) {
      begun_.wait(seen, 0, false, 0);
      continue;
    }
    seen = begun_.load();
    if (closing_.load(std::memory_order_acquire)) return;
    launch();
    finished_.store(sequence_, std::memory_order_release);
    ended_.advance();
  }
}

void GpuLauncher::launch() {
  error_.clear();
  const CUresult entered = gpu_->driver->cuCtxSetCurrent(context_);
  Walk walk(*gpu_, shape_, inputs_, error_);
  Status status = STRATA_OK;
  if (entered == kCudaSuccess)
    status = walk.run(sequence_);
  else
    status = gpu_->driver->fail(entered, "cuCtxSetCurrent", __FILE__, __LINE__, error_);
  if (status == STRATA_OK || status == STRATA_E_CANCELLED) return;
  // The host must not wait for the next doorbell in vain: whichever job it waits for, this is the answer.
  gpu_->mailbox->store(kMailboxFailure, sequence_ << kFailureShift | static_cast<uint64_t>(walk.n_jobs() + 1));
}

}  // namespace strata::cuda
