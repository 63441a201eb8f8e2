#include "engine/sim_device.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "base/clock.h"
#include "engine/kv.h"
#include "engine/ops.h"
#include "engine/sim_slots.h"
#include "engine/state.h"
#include "engine/tiered.h"
#include "engine/walk.h"

namespace strata {

SimFaults sim_faults;

namespace {

constexpr int32_t kSimWorkers = 2;
constexpr int64_t kEndNs = int64_t{60} * 1000000000;  // an op of the sim is a CPU's and may be slow

cpu::Tier device_tier(const strata_engine_config& config) {
  return config.tier < 0 ? cpu::tier_best() : static_cast<cpu::Tier>(config.tier);
}

ScratchQuery sim_query(const Model& model, const strata_engine_config& config, cpu::Tier tier) {
  return {model,
          model.plan.n_batch,
          model.plan.n_outputs_max,
          std::min(config.n_threads, kSimWorkers),
          config.n_kv_blocks,
          config.max_seqs,
          tier};
}

class SimDevice final : public Device {
 public:
  ~SimDevice() override { close(); }
  Status open(const DeviceSetup& setup, Error& error) override;
  Status begin_step(const strata_step& step, uint64_t sequence, Error& error) override;
  Status end_step(Error& error) override;
  Status kv_copy(int32_t from, int32_t to, Error&) override {
    kv_.copy_block(from, to);
    return STRATA_OK;
  }
  Status state_copy(int32_t from, int32_t to, Error&) override {
    states_.copy_slot(from, to);
    return STRATA_OK;
  }
  Status copy_expert(const uint8_t* from, int64_t bytes, int64_t slot_offset, uint64_t number, Error& error) override {
    return slots_.copies().add({from, bytes, slot_offset, number}, error);
  }
  uint64_t copies_done() override { return slots_.copies().done(); }
  Status table_changed(Error&) override { return STRATA_OK; }  // the ops read the one table

 private:
  void close();
  static void* thread_main(void* device);
  void loop();
  void run();
  Status run_ops(StepContext& ctx, const WalkConfig& walk);
  Status run_job(StepContext& ctx, const WalkConfig& walk, int32_t index);
  int64_t dispatch(StepContext& ctx, const strata_op& op);
  void collect(StepContext& ctx, const strata_op& op);
  void combine_wrongly(StepContext& ctx, const strata_op& op);
  bool aborted() const { return setup_->mailbox.load(kMailboxAbort) >= sequence_; }
  Status wait_done();
  void pause();

  std::optional<DeviceSetup> setup_;
  SimSlots slots_;
  Pool pool_;
  KvStore kv_;
  StateStore states_;
  Arena activations_, scratch_, tables_;
  pthread_t thread_{};
  bool started_ = false, poison_ = false;
  EventWord begun_, ended_;
  std::atomic<bool> closing_{false}, stop_{false};
  std::atomic<uint64_t> finished_{0};  // sequence of the newest step that has ended
  strata_step step_{};
  uint64_t sequence_ = 0;
  int32_t job_ = 0;  // of the running step
  uint64_t random_ = 0x9e3779b97f4a7c15u;
  Error failure_;
};

Status SimDevice::open(const DeviceSetup& setup, Error& error) {
  setup_.emplace(setup);
  const Plan& plan = setup.model.plan;
  const strata_engine_config& config = setup.config;
  poison_ = config.poison != 0;
  const ScratchQuery query = sim_query(setup.model, config, setup.tier);
  if (!activations_.open(plan.activations_bytes) || !scratch_.open(walk_scratch_bytes(query)) ||
      !tables_.open(walk_tables_bytes(query)))
    return error.fail(STRATA_E_MEMORY, "no memory for the sim device's %lld bytes of activations",
                      static_cast<long long>(plan.activations_bytes));
  STRATA_TRY(kv_.open(plan, config.kv_type, config.n_kv_blocks, error));
  STRATA_TRY(states_.open(plan, config.n_state_slots, error));
  STRATA_TRY(slots_.open(setup.model, setup.slots, error));
  Pool::Config pool;
  pool.n_workers = query.n_workers;
  pool.spin_us = config.spin_us;
  STRATA_TRY(pool_.open(pool, error));
  const int failed = pthread_create(&thread_, nullptr, thread_main, this);
  if (failed != 0) return error.fail(STRATA_E_MEMORY, "the sim device's thread could not be started: %s", strerror(failed));
  started_ = true;
  return STRATA_OK;
}

void SimDevice::close() {
  if (started_) {
    closing_.store(true, std::memory_order_release);
    stop_.store(true, std::memory_order_relaxed);
    begun_.advance();
    pthread_join(thread_, nullptr);
    started_ = false;
  }
  pool_.close();
  slots_.close();
}

Status SimDevice::begin_step(const strata_step& step, uint64_t sequence, Error&) {
  step_ = step;
  step_.routing_out = nullptr;  // the host fills them
  step_.routing_weights_out = nullptr;
  sequence_ = sequence;
  failure_.clear();
  stop_.store(false, std::memory_order_relaxed);
  begun_.advance();
  return STRATA_OK;
}

Status SimDevice::end_step(Error& error) {
  if (aborted()) stop_.store(true, std::memory_order_relaxed);
  const int64_t deadline = now_ns() + kEndNs;
  for (;;) {
    const uint32_t seen = ended_.load();
    if (finished_.load(std::memory_order_acquire) >= sequence_) break;
    if (!ended_.wait(seen, pool_.spin_ns(), pool_.yields(), deadline))
      return error.fail(STRATA_E_DEADLINE, "the sim device did not end step %llu",
                        static_cast<unsigned long long>(sequence_));
  }
  return failure_.status == STRATA_OK ? STRATA_OK : error.fail(failure_.status, "%s", failure_.text);
}

void* SimDevice::thread_main(void* device) {
  pthread_setname_np(pthread_self(), "strata-sim");
  set_float_mode();
  static_cast<SimDevice*>(device)->loop();
  return nullptr;
}

void SimDevice::loop() {
  for (uint32_t seen = 0; !closing_.load(std::memory_order_acquire);) {
    if (begun_.load() == seen) {
      begun_.wait(seen, pool_.spin_ns(), pool_.yields(), 0);
      continue;
    }
    ++seen;
    if (closing_.load(std::memory_order_acquire)) return;
    run();
    finished_.store(sequence_, std::memory_order_release);
    ended_.advance();
  }
}

// A random pause of at most the fault's length.
void SimDevice::pause() {
  const int64_t most = sim_faults.delay_ns.load(std::memory_order_relaxed);
  if (most <= 0) return;
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  const auto ns = static_cast<int64_t>(random_ % static_cast<uint64_t>(most));
  const timespec time{ns / 1000000000, ns % 1000000000};
  nanosleep(&time, nullptr);
}

void SimDevice::run() {
  StepContext ctx{setup_->model,
                  step_,
                  pool_,
                  kv_,
                  states_,
                  setup_->tier,
                  activations_.data(),
                  scratch_.data(),
                  scratch_.bytes(),
                  stop_,
                  0,
                  tables_.data(),
                  {},
                  {}};
  ctx.slots = &setup_->slots;
  ctx.side = ExpertSide::resident;
  ctx.source = &slots_;
  WalkConfig walk;
  walk.poison = poison_;
  job_ = 0;
  Status status = walk_begin(ctx, walk);
  if (status == STRATA_OK) status = run_ops(ctx, walk);
  if (status == STRATA_OK) {
    states_.end_step(step_);
    pause();
    if (sim_faults.lost_done.load(std::memory_order_relaxed) == 0) setup_->mailbox.store(kMailboxStepDone, sequence_);
    return;
  }
  if (status == STRATA_E_CANCELLED) return;  // the host has said so, or reads it in the failure word
  failure_ = ctx.error;
  if (failure_.status == STRATA_OK) failure_.fail(status, "the sim device's step failed");
  // The host must not wait for the next doorbell in vain: whichever job it waits for, this is the answer.
  setup_->mailbox.store(kMailboxFailure, sequence_ << kFailureShift | static_cast<uint64_t>(job_ + 1));
}

Status SimDevice::run_ops(StepContext& ctx, const WalkConfig& walk) {
  WalkPlace place;
  const Plan& plan = setup_->model.plan;
  for (int32_t i = 0; i < plan.ops.size(); ++i) {
    if (aborted()) return STRATA_E_CANCELLED;
    if (plan.ops[i].kind == STRATA_OP_EXPERTS) {
      STRATA_TRY(run_job(ctx, walk, i));
      continue;
    }
    if (plan.ops[i].kind == STRATA_OP_COMBINE && job_ - 1 == sim_faults.swapped_pair.load(std::memory_order_relaxed))
      combine_wrongly(ctx, plan.ops[i]);
    STRATA_TRY(walk_op(ctx, walk, place, i));
  }
  const int32_t logits = plan.ops[plan.ops.size() - 1].out[0];
  for (int64_t t = 0; t < step_.n_outputs; ++t)
    memcpy(setup_->mailbox.activations() + (reinterpret_cast<uint8_t*>(ctx.row(logits, t)) - activations_.data()),
           ctx.row(logits, t), static_cast<size_t>(plan.n_vocab) * 4);
  return STRATA_OK;
}

// The order of a GPU: the selection and the misses' payload leave first, resident experts are computed meanwhile, then the
// host's rows are taken in.
Status SimDevice::run_job(StepContext& ctx, const WalkConfig& walk, int32_t index) {
  const strata_op& op = setup_->model.plan.ops[index];
  Mailbox& mailbox = setup_->mailbox;
  const int64_t start = now_ns();
  const int64_t n_missed = dispatch(ctx, op);
  pause();
  if (job_ != sim_faults.lost_doorbell.load(std::memory_order_relaxed))
    mailbox.store(mailbox_doorbell(job_), sequence_ << kDoorbellShift | static_cast<uint64_t>(n_missed));
  ctx.scratch_used = 0;
  if (poison_) poison_fill(ctx.scratch, ctx.scratch_bytes);
  STRATA_TRY(op_function(op.kind)->run(ctx, op));
  if (ctx.stopped()) return STRATA_E_CANCELLED;
  if (n_missed > 0) {
    STRATA_TRY(wait_done());
    collect(ctx, op);
    mailbox.store(mailbox_timing(job_), static_cast<uint64_t>(now_ns() - start));
  }
  STRATA_TRY(walk_check_op(ctx, walk, index));
  ++job_;
  return STRATA_OK;
}

// Writes the selection, and with misses the inputs; returns the number of missed pairs.
int64_t SimDevice::dispatch(StepContext& ctx, const strata_op& op) {
  const int32_t set_id = op.i[STRATA_EXPERTS_I_SET];
  const strata_expert_set& set = ctx.expert_set(set_id);
  const int64_t selection_bytes = int64_t{set.n_used} * 8;
  uint8_t* host = setup_->mailbox.activations();
  const auto send = [&](int32_t buffer, int64_t t, int64_t bytes) {
    memcpy(host + (reinterpret_cast<uint8_t*>(ctx.row(buffer, t)) - activations_.data()), ctx.row(buffer, t),
           static_cast<size_t>(bytes));
  };
  int64_t n_missed = 0;
  for (int64_t t = 0; t < step_.n_tokens; ++t) {
    const int32_t* ids = ctx.selection_ids(op.in[1], t);
    memcpy(setup_->mailbox.routing(job_, t), ids, static_cast<size_t>(selection_bytes));
    for (int32_t k = 0; k < set.n_used; ++k) n_missed += setup_->slots.slot(set_id, ids[k]) < 0 ? 1 : 0;
  }
  for (int64_t t = 0; t < step_.n_tokens && n_missed > 0; ++t) {
    send(op.in[0], t, int64_t{set.n_in} * 4);
    send(op.in[1], t, selection_bytes);
  }
  return n_missed;
}

void SimDevice::collect(StepContext& ctx, const strata_op& op) {
  const int32_t set_id = op.i[STRATA_EXPERTS_I_SET];
  const strata_expert_set& set = ctx.expert_set(set_id);
  bool stale = job_ == sim_faults.stale_row.load(std::memory_order_relaxed);
  for (int64_t t = 0; t < step_.n_tokens; ++t) {
    const int32_t* ids = ctx.selection_ids(op.in[1], t);
    for (int32_t k = 0; k < set.n_used; ++k) {
      if (setup_->slots.slot(set_id, ids[k]) >= 0) continue;
      float* row = ctx.row(op.out[0], t) + int64_t{k} * set.n_out;
      const uint8_t* from = setup_->mailbox.activations() + (reinterpret_cast<uint8_t*>(row) - activations_.data());
      if (!stale) memcpy(row, from, static_cast<size_t>(set.n_out) * 4);
      if (stale) std::fill_n(row, set.n_out, 0.0f);  // what a row of an earlier step would be: other numbers
      stale = false;
    }
  }
}

// Exchanges the rows and weights of the first token's first two experts: the same sum in another order.
void SimDevice::combine_wrongly(StepContext& ctx, const strata_op& op) {
  const int32_t n_used = op.i[STRATA_COMBINE_I_N_USED], width = op.i[STRATA_COMBINE_I_WIDTH];
  float* rows = ctx.row(op.in[0], 0);
  for (int64_t i = 0; i < width; ++i) std::swap(rows[i], rows[int64_t{n_used - 1} * width + i]);
  float* weights = ctx.selection_weights(op.in[1], 0, n_used);
  std::swap(weights[0], weights[n_used - 1]);
}

Status SimDevice::wait_done() {
  const int64_t deadline = now_ns() + handoff_wait_ns(setup_->handoff_ns, step_.n_tokens);
  for (int64_t i = 0; setup_->mailbox.load(mailbox_done(job_)) < sequence_; ++i) {
    cpu_pause();
    if (i % 64 != 0) continue;
    if (aborted()) return STRATA_E_CANCELLED;
    if (now_ns() > deadline) {
      setup_->mailbox.store(kMailboxFailure, sequence_ << kFailureShift | static_cast<uint64_t>(job_ + 1));
      return STRATA_E_CANCELLED;
    }
    sched_yield();
  }
  return STRATA_OK;
}

}  // namespace

Status sim_device_bytes(const Model& model, const strata_engine_config& config, int64_t slots_bytes, int64_t* bytes,
                        Error& error) {
  const int64_t kv = KvStore::measure_bytes(model.plan, config.kv_type, config.n_kv_blocks);
  const int64_t state = StateStore::measure_bytes(model.plan, config.n_state_slots);
  if (kv < 0 || state < 0) return error.fail(STRATA_E_ARGUMENT, "the KV cache or the states have no size");
  const ScratchQuery query = sim_query(model, config, device_tier(config));
  *bytes = kv + state + model.plan.activations_bytes + walk_scratch_bytes(query) + walk_tables_bytes(query) + slots_bytes;
  return STRATA_OK;
}

Device* new_sim_device() { return new (std::nothrow) SimDevice; }

}  // namespace strata
