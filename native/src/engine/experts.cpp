#include "engine/experts.h"

namespace strata {
namespace {

constexpr int64_t kHandoffNs = 900 * 1000000;  // under the two seconds after which a desktop's driver ends a kernel
constexpr int64_t kDeviceWaits = 4;            // the CPU waits for the device so many times as long as the device for it

Status field_range(Error& error, const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return STRATA_OK;
  return error.fail(STRATA_E_ARGUMENT, "config.%s is %lld; accepted: %lld to %lld", field, static_cast<long long>(value),
                    static_cast<long long>(low), static_cast<long long>(high));
}

}  // namespace

Status DeviceSide::check(const strata_engine_config& config, Error& error) {
  STRATA_TRY(field_range(error, "device", config.device, STRATA_DEVICE_CPU, STRATA_DEVICE_CUDA));
  STRATA_TRY(field_range(error, "ordinal", config.ordinal, 0, 1023));
  STRATA_TRY(field_range(error, "n_classes", config.n_classes, 0, config.device == STRATA_DEVICE_CPU ? 0 : 1 << 20));
  STRATA_TRY(field_range(error, "handoff_deadline_us", config.handoff_deadline_us, 0, INT64_MAX / 4000000));
  STRATA_TRY(field_range(error, "pin_limit_bytes", config.pin_limit_bytes, 0, INT64_MAX / 2));
  return field_range(error, "vram_limit_bytes", config.vram_limit_bytes, 0, INT64_MAX / 2);
}

Status DeviceSide::measure(const Model& model, const strata_engine_config& config, strata_engine_bytes& bytes,
                           Error& error) {
  bytes.device = bytes.slots = bytes.shared = 0;
  if (config.device == STRATA_DEVICE_CPU) return STRATA_OK;
  SlotTable slots;
  STRATA_TRY(slots.open(model.plan, config.n_classes, config.class_of_set, config.n_slots, error));
  bytes.slots = slots.bytes();
  bytes.shared = Mailbox::measure_bytes(model.plan);
  return config.device == STRATA_DEVICE_SIM ? sim_device_bytes(model, config, slots.bytes(), &bytes.device, error)
                                            : cuda_device_bytes(model, config, slots.bytes(), &bytes.device, error);
}

Status DeviceSide::open(Model& model, const strata_engine_config& config, cpu::Tier tier, Error& error) {
  if (config.device == STRATA_DEVICE_CPU) return STRATA_OK;
  model_ = &model;
  STRATA_TRY(slots_.open(model.plan, config.n_classes, config.class_of_set, config.n_slots, error));
  if (slots_.n_slots() > 0 && model.weights.expert_bytes(0, 0) == nullptr)
    return error.fail(STRATA_E_UNSUPPORTED, "experts in mapped files cannot be copied into slots; load the model into RAM");
  STRATA_TRY(mailbox_.open(model.plan, error));
  if (!contents_.resize(slots_.n_slots()) || !job_ns_.resize(mailbox_.n_jobs()) ||
      !entries_.resize(model.plan.expert_sets.size() * slots_.width()))
    return error.fail(STRATA_E_MEMORY, "no memory for the expert slots' tables");
  handoff_ns_ = config.handoff_deadline_us > 0 ? config.handoff_deadline_us * 1000 : kHandoffNs;
  std::unique_ptr<Device> device(config.device == STRATA_DEVICE_SIM ? new_sim_device() : new_cuda_device());
  if (device == nullptr) return error.fail(STRATA_E_MEMORY, "no memory for a device");
  STRATA_TRY(device->open(DeviceSetup{model, config, mailbox_, slots_, tier, handoff_ns_}, error));
  STRATA_TRY(device->table_changed(error));
  device_ = std::move(device);
  return STRATA_OK;
}

TieredStep DeviceSide::next_step(int32_t n_tokens) {
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed) + 1;
  sequence_.store(sequence, std::memory_order_release);
  return {*device_, mailbox_, handoffs_, sequence, kDeviceWaits * handoff_wait_ns(handoff_ns_, n_tokens), job_ns_.data()};
}

void DeviceSide::give_up() {
  if (used()) mailbox_.store(kMailboxAbort, sequence_.load(std::memory_order_acquire));
}

Status DeviceSide::copy(int32_t set, int32_t expert, int32_t slot, uint64_t* number, Error& error) {
  STRATA_TRY(slots_.check_copy(set, expert, slot, error));
  STRATA_TRY(device_->copy_expert(model_->weights.expert_bytes(set, expert), model_->plan.expert_sets[set].slot_bytes,
                                  slots_.offset(slot), n_copies_ + 1, error));
  contents_[slot] = {set, expert, ++n_copies_};
  *number = n_copies_;
  return STRATA_OK;
}

Status DeviceSide::commit(const strata_slot_entry* entries, int32_t n, Error& error) {
  if (n < 0 || n > entries_.size() || (n > 0 && entries == nullptr))
    return error.fail(STRATA_E_ARGUMENT, "n is %d; accepted: 0 to the %lld experts, with their entries", n,
                      static_cast<long long>(entries_.size()));
  const uint64_t done = device_->copies_done();
  for (int32_t i = 0; i < n; ++i) {
    const strata_slot_entry& e = entries[i];
    entries_[i] = {e.set, e.expert, e.slot};
    if (e.slot < 0) continue;
    STRATA_TRY(slots_.check(e.set, e.expert, e.slot, error));
    const Content& content = contents_[e.slot];
    if (content.number == 0 || content.set != e.set || content.expert != e.expert)
      return error.fail(STRATA_E_STATE, "slot %d does not hold expert %d of set %d", e.slot, e.expert, e.set);
    if (content.number > done)
      return error.fail(STRATA_E_STATE, "copy %llu into slot %d has not ended",
                        static_cast<unsigned long long>(content.number), e.slot);
  }
  STRATA_TRY(slots_.commit(entries_.data(), n, error));
  return device_->table_changed(error);
}

}  // namespace strata
