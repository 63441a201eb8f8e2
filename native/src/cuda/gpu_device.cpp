#include "cuda/gpu_device.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/clock.h"
#include "engine/tiered.h"

namespace strata::cuda {
namespace {

constexpr int64_t kEndNs = int64_t{20} * 1000000000;    // a step that does not end by then never will
constexpr int64_t kMaxContextBytes = int64_t{1} << 30;  // what is more than this beside us belongs to other programs

GpuConfig gpu_config(const strata_engine_config& config, int64_t slots_bytes) {
  GpuConfig made{};
  made.ordinal = config.ordinal;
  made.kv_type = config.kv_type;
  made.n_kv_blocks = config.n_kv_blocks;
  made.max_seqs = config.max_seqs;
  made.poison = config.poison;
  made.slots_bytes = slots_bytes;
  made.vram_limit_bytes = config.vram_limit_bytes;
  made.pin_limit_bytes = config.pin_limit_bytes;
  made.nvrtc_path = config.nvrtc_path;
  made.cubin_cache = config.cubin_cache;
  return made;
}

}  // namespace

Status GpuDevice::open(const DeviceSetup& setup, Error& error) {
  setup_.emplace(setup);
  config_ = gpu_config(setup.config, setup.slots.bytes());
  const Plan& plan = setup.model.plan;
  STRATA_TRY(check_plan(plan, error));
  STRATA_TRY(layout_.plan_places(plan, config_, error));
  if (!addresses_.resize(plan.expert_sets.size() * layout_.width))
    return error.fail(STRATA_E_MEMORY, "no memory for the device's tables");
  STRATA_TRY(open_card(error));
  size_t free_before = 0, total = 0;
  STRATA_CU(driver_, error, cuMemGetInfo(&free_before, &total));
  STRATA_TRY(check_room(static_cast<int64_t>(free_before), error));
  STRATA_TRY(compiler_.open(config_.nvrtc_path, error));
  STRATA_TRY(
      modules_.open(driver_, compiler_, plan, config_.kv_type, card_.info().sm, config_.cubin_cache, functions_, error));
  STRATA_TRY(open_memory(error));
  STRATA_TRY(upload(error));
  STRATA_TRY(pin_experts(error));
  STRATA_TRY(copier_.open(driver_, card_.context(), at(layout_.slots), pins_, error));
  gpu_ = {&driver_,          &plan,   &layout_,         &functions_,         &setup.mailbox,           arena_,
          gpu_.mailbox_base, stream_, config_.max_seqs, config_.poison != 0, setup.slots.n_slots() > 0};
  STRATA_TRY(launcher_.open(gpu_, card_.context(), error));
  return check_vram(free_before, error);
}

// Before anything is allocated; the driver's own part is known only afterwards.
Status GpuDevice::check_room(int64_t free_bytes, Error& error) const {
  const bool limited = config_.vram_limit_bytes > 0 && config_.vram_limit_bytes < free_bytes;
  const int64_t room = limited ? config_.vram_limit_bytes : free_bytes;
  if (layout_.bytes <= room) return STRATA_OK;
  return error.fail(STRATA_E_DEVICE_MEMORY,
                    "the GPU's part takes %lld bytes (dense weights %lld, KV cache %lld, expert slots %lld, activations and "
                    "scratch %lld); %lld %s",
                    static_cast<long long>(layout_.bytes), static_cast<long long>(layout_.dense_bytes),
                    static_cast<long long>(layout_.kv_bytes), static_cast<long long>(layout_.slots_bytes),
                    static_cast<long long>(layout_.bytes - layout_.dense_bytes - layout_.kv_bytes - layout_.slots_bytes),
                    static_cast<long long>(room), limited ? "may be used" : "are free on the GPU");
}

Status GpuDevice::open_card(Error& error) {
  STRATA_TRY(driver_.open(nullptr, error));
  STRATA_TRY(card_.open(driver_, config_.ordinal, error));
  STRATA_CU(driver_, error, cuStreamCreate(&stream_, kStreamNonBlocking));
  STRATA_CU(driver_, error, cuEventCreate(&ended_, kEventNoTiming));
  return STRATA_OK;
}

Status GpuDevice::open_memory(Error& error) {
  Mailbox& mailbox = setup_->mailbox;
  STRATA_CU(driver_, error, cuMemAlloc(&arena_, static_cast<size_t>(layout_.bytes)));
  STRATA_CU(driver_, error,
            cuMemHostRegister(mailbox.data(), static_cast<size_t>(round_up(mailbox.bytes(), 4096)),
                              kRegisterPortable | kRegisterMapped));
  mailbox_locked_ = true;
  STRATA_CU(driver_, error, cuMemHostGetDevicePointer(&gpu_.mailbox_base, mailbox.data(), 0));
  void* inputs = nullptr;
  STRATA_CU(driver_, error, cuMemHostAlloc(&inputs, static_cast<size_t>(layout_.inputs_bytes), kHostPortable));
  inputs_ = static_cast<uint8_t*>(inputs);
  return STRATA_OK;
}

// Everything but slots begins as zeros; then the dense tensors and the rotary frequencies.
Status GpuDevice::upload(Error& error) {
  const Plan& plan = setup_->model.plan;
  const Weights& weights = setup_->model.weights;
  STRATA_CU(driver_, error, cuMemsetD32(arena_, 0, static_cast<size_t>(layout_.bytes / 4)));
  for (int32_t t = 0; t < plan.tensors.size(); ++t) {
    const strata_tensor& tensor = plan.tensors[t];
    if (layout_.tensors[t] < 0) continue;
    const void* from = tensor_is_vector(tensor) ? static_cast<const void*>(weights.vector(t)) : weights.matrix(t).data;
    STRATA_CU(driver_, error, cuMemcpyHtoD(at(layout_.tensors[t]), from, static_cast<size_t>(dense_tensor_bytes(tensor))));
  }
  if (plan.freqs.size() > 0)
    STRATA_CU(driver_, error,
              cuMemcpyHtoD(at(layout_.freqs), plan.freqs.data(), static_cast<size_t>(plan.freqs.size()) * 8));
  STRATA_CU(driver_, error, cuCtxSynchronize());
  return STRATA_OK;
}

// The experts' stretch of the weights: they lie one set after the other.
Status GpuDevice::pin_experts(Error& error) {
  const Plan& plan = setup_->model.plan;
  const Weights& weights = setup_->model.weights;
  const uint8_t *begin = nullptr, *end = nullptr;
  for (int32_t s = 0; s < plan.expert_sets.size(); ++s) {
    const uint8_t* first = weights.expert_bytes(s, 0);
    if (first == nullptr) return STRATA_OK;  // they stay in files
    const uint8_t* last = first + plan.expert_sets[s].n_expert * plan.expert_sets[s].slot_bytes;
    begin = begin == nullptr ? first : std::min(begin, first);
    end = std::max(end, last);
  }
  if (begin == nullptr || setup_->slots.n_slots() == 0) return STRATA_OK;
  return pins_.open(driver_, begin, end - begin, config_.pin_limit_bytes, error);
}

// By the driver's own figure: what went away since the start, and the context, which was there before.
Status GpuDevice::check_vram(size_t free_before, Error& error) {
  size_t free_now = 0, total = 0;
  STRATA_CU(driver_, error, cuMemGetInfo(&free_now, &total));
  const int64_t context = std::min<int64_t>(static_cast<int64_t>(total - free_before), kMaxContextBytes);
  const int64_t used = static_cast<int64_t>(free_before) - static_cast<int64_t>(free_now) + context;
  if (config_.vram_limit_bytes == 0 || used <= config_.vram_limit_bytes) return STRATA_OK;
  return error.fail(
      STRATA_E_DEVICE_MEMORY, "the driver counts %lld bytes on the GPU (%lld of them its own context); %lld may be used",
      static_cast<long long>(used), static_cast<long long>(context), static_cast<long long>(config_.vram_limit_bytes));
}

void GpuDevice::close() {
  if (card_.context() == nullptr) return;
  Error ignored;
  use_context(ignored);
  end_step(ignored);
  launcher_.close();
  copier_.close();
  pins_.close();
  graphs_.close(driver_);
  modules_.close();
  if (ended_ != nullptr) driver_.cuEventDestroy(ended_);
  if (stream_ != nullptr) driver_.cuStreamDestroy(stream_);
  if (inputs_ != nullptr) driver_.cuMemFreeHost(inputs_);
  if (mailbox_locked_) driver_.cuMemHostUnregister(setup_->mailbox.data());
  if (arena_ != 0) driver_.cuMemFree(arena_);
  card_.close();
}

Status GpuDevice::use_context(Error& error) const {
  STRATA_CU(driver_, error, cuCtxSetCurrent(card_.context()));
  return STRATA_OK;
}

// The step's inputs in page-locked memory; sequences get numbers in the order of their rows.
StepShape GpuDevice::pack(const strata_step& step, uint64_t sequence) {
  int32_t n_blocks = 1, n_rows = 0;
  for (int32_t t = 0; t < step.n_tokens; ++t)
    n_blocks = std::max(n_blocks, step.pos[t] / static_cast<int32_t>(kKvBlock) + 1);
  const StepShape shape{step.n_tokens, step.n_outputs, block_bucket(n_blocks, config_.n_kv_blocks)};
  const int32_t table_rows = block_table_rows(step.n_tokens, config_.max_seqs);
  const InputPlaces places = input_places(shape.n_tokens, shape.n_outputs, table_rows, shape.n_blocks);
  const auto ints = [&](int64_t place) { return reinterpret_cast<int32_t*>(inputs_ + place); };
  const StepHeader header{sequence, static_cast<uint64_t>(handoff_wait_ns(setup_->handoff_ns, step.n_tokens)), step.n_tokens,
                          step.n_outputs};
  memcpy(inputs_, &header, sizeof header);
  std::copy_n(step.token, step.n_tokens, ints(places.token));
  std::copy_n(step.pos, step.n_tokens, ints(places.pos));
  std::copy_n(step.output_row, step.n_outputs, ints(places.output_row));
  int32_t* table = ints(places.block_table);
  std::fill_n(table, int64_t{table_rows} * shape.n_blocks, 0);
  for (int32_t t = 0; t < step.n_tokens; ++t) {
    if (t == 0 || step.seq[t] != step.seq[t - 1]) {
      const int32_t* own = step.block_table + int64_t{step.seq[t]} * step.max_blocks;
      const int32_t n = std::min(step.max_blocks, shape.n_blocks);
      for (int32_t b = 0; b < n; ++b) table[int64_t{n_rows} * shape.n_blocks + b] = std::max(own[b], 0);
      ++n_rows;
    }
    ints(places.seq)[t] = n_rows - 1;
  }
  return shape;
}

Status GpuDevice::begin_step(const strata_step& step, uint64_t sequence, Error& error) {
  if (lost_) return error.fail(STRATA_E_DEVICE, "an earlier step on the GPU has never ended");
  const int32_t n_blocks = *std::max_element(step.pos, step.pos + step.n_tokens) / static_cast<int32_t>(kKvBlock) + 1;
  if (n_blocks > config_.n_kv_blocks)
    return error.fail(STRATA_E_ARGUMENT, "a sequence names %d KV blocks; the cache has %d", n_blocks, config_.n_kv_blocks);
  STRATA_TRY(use_context(error));
  const StepShape shape = pack(step, sequence);
  running_ = true;
  if (shape.n_tokens <= kMaxGraphTokens) return graphs_.launch(gpu_, shape, inputs_, error);
  launching_ = true;
  launcher_.start(shape, inputs_, sequence);
  return STRATA_OK;
}

Status GpuDevice::end_step(Error& error) {
  if (!running_) return STRATA_OK;
  running_ = false;
  const int64_t deadline = now_ns() + kEndNs;
  Status status = STRATA_OK;
  if (launching_) {
    launching_ = false;
    if (!launcher_.wait(deadline)) {
      lost_ = true;
      return error.fail(STRATA_E_DEVICE, "the GPU did not take a step's launches within 20 s");
    }
    status = launcher_.result(error);
  }
  STRATA_TRY(use_context(error));
  const Status ended = wait_stream(deadline, error);
  return status != STRATA_OK ? status : ended;
}

// Also after a launch that failed half-way: what was launched before it must have ended.
Status GpuDevice::wait_stream(int64_t deadline_ns, Error& error) {
  STRATA_CU(driver_, error, cuEventRecord(ended_, stream_));
  for (;;) {
    const CUresult result = driver_.cuEventQuery(ended_);
    if (result == kCudaSuccess) return STRATA_OK;
    if (result != kCudaNotReady) return driver_.fail(result, "a step on the GPU", __FILE__, __LINE__, error);
    if (now_ns() > deadline_ns) {
      lost_ = true;
      return error.fail(STRATA_E_DEVICE, "the GPU did not end a step within 20 s");
    }
    sched_yield();
  }
}

Status GpuDevice::kv_copy(int32_t from, int32_t to, Error& error) {
  STRATA_TRY(use_context(error));
  for (const KvLayer& layer : layout_.kv_layers) {
    const CUdeviceptr base = at(layout_.kv + layer.offset);
    STRATA_CU(driver_, error,
              cuMemcpyDtoDAsync(base + static_cast<uint64_t>(to * layer.block_bytes),
                                base + static_cast<uint64_t>(from * layer.block_bytes),
                                static_cast<size_t>(layer.block_bytes), stream_));
  }
  return STRATA_OK;  // later steps come after it on the stream
}

Status GpuDevice::state_copy(int32_t, int32_t, Error& error) {
  return error.fail(STRATA_E_UNSUPPORTED, "the GPU holds no recurrent states");
}

Status GpuDevice::table_changed(Error& error) {
  STRATA_TRY(use_context(error));
  const Plan& plan = setup_->model.plan;
  for (int32_t s = 0; s < plan.expert_sets.size(); ++s) {
    for (int32_t e = 0; e < layout_.width; ++e) {
      const int32_t slot = setup_->slots.slot(s, e);
      addresses_[int64_t{s} * layout_.width + e] = slot < 0 ? 0 : at(layout_.slots + setup_->slots.offset(slot));
    }
  }
  // On the steps' stream, which waits for no other.
  if (addresses_.size() > 0)
    STRATA_CU(
        driver_, error,
        cuMemcpyHtoDAsync(at(layout_.addresses), addresses_.data(), static_cast<size_t>(addresses_.size()) * 8, stream_));
  return STRATA_OK;
}

}  // namespace strata::cuda

namespace strata {

Status cuda_device_bytes(const Model& model, const strata_engine_config& config, int64_t slots_bytes, int64_t* bytes,
                         Error& error) {
  const cuda::GpuConfig gpu = cuda::gpu_config(config, slots_bytes);
  STRATA_TRY(cuda::check_plan(model.plan, error));
  cuda::GpuLayout layout;
  STRATA_TRY(layout.plan_places(model.plan, gpu, error));
  *bytes = layout.bytes;
  return STRATA_OK;
}

Device* new_cuda_device() { return new (std::nothrow) cuda::GpuDevice; }

}  // namespace strata
