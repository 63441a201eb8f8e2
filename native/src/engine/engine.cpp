#include "engine/engine.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"

namespace strata {
namespace {

constexpr int64_t kCloseLostNs = 2000000000;  // how long close waits for a thread of a dead engine

Status config_range(Error& error, const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return STRATA_OK;
  return error.fail(STRATA_E_ARGUMENT, "config.%s is %lld; accepted: %lld to %lld", field, static_cast<long long>(value),
                    static_cast<long long>(low), static_cast<long long>(high));
}

Status check_config(const strata_engine_config& config, Error& error) {
  STRATA_TRY(config_range(error, "n_threads", config.n_threads, 1, kMaxWorkers));
  STRATA_TRY(config_range(error, "n_kv_blocks", config.n_kv_blocks, 1, 1 << 24));
  STRATA_TRY(config_range(error, "max_seqs", config.max_seqs, 1, 1 << 16));
  STRATA_TRY(config_range(error, "n_state_slots", config.n_state_slots, 0, 1 << 20));
  STRATA_TRY(config_range(error, "poison", config.poison, 0, 1));
  STRATA_TRY(config_range(error, "tier", config.tier, -1, static_cast<int32_t>(cpu::Tier::neon)));
  STRATA_TRY(config_range(error, "spin_us", config.spin_us, -1, 1000000));
  STRATA_TRY(config_range(error, "queue_steps", config.queue_steps, 1, 64));
  STRATA_TRY(config_range(error, "step_deadline_us", config.step_deadline_us, 0, INT64_MAX / 4000));
  STRATA_TRY(DeviceSide::check(config, error));
  if ((config.queue_steps & (config.queue_steps - 1)) != 0) {
    return error.fail(STRATA_E_ARGUMENT, "config.queue_steps is %d; a power of two is needed", config.queue_steps);
  }
  if (config.tier >= 0 && !cpu::tier_supported(static_cast<cpu::Tier>(config.tier))) {
    return error.fail(STRATA_E_UNSUPPORTED, "config.tier is %d, %s, which this processor lacks", config.tier,
                      cpu::tier_name(static_cast<cpu::Tier>(config.tier)));
  }
  return STRATA_OK;
}

cpu::Tier config_tier(const strata_engine_config& config) {
  return config.tier < 0 ? cpu::tier_best() : static_cast<cpu::Tier>(config.tier);
}

ScratchQuery scratch_query(const Model& model, const strata_engine_config& config) {
  return {model,           model.plan.n_batch, model.plan.n_outputs_max, config.n_threads, config.n_kv_blocks,
          config.max_seqs, config_tier(config)};
}

}  // namespace

Status Engine::measure(const Model& model, const strata_engine_config& config, strata_engine_bytes& bytes, Error& error) {
  STRATA_TRY(check_config(config, error));
  const ScratchQuery query = scratch_query(model, config);
  bytes.activations = model.plan.activations_bytes;
  bytes.kv = KvStore::measure_bytes(model.plan, config.kv_type, config.n_kv_blocks);
  if (bytes.kv < 0)
    return error.fail(STRATA_E_ARGUMENT, "config.kv_type is %d with %d blocks; not possible with this model's heads",
                      config.kv_type, config.n_kv_blocks);
  bytes.state = StateStore::measure_bytes(model.plan, config.n_state_slots);
  if (bytes.state < 0)
    return error.fail(STRATA_E_ARGUMENT, "config.n_state_slots is %d; their states have no size", config.n_state_slots);
  bytes.scratch = walk_scratch_bytes(query) + walk_tables_bytes(query);
  // The device holds cache and states; the CPU's activations are part of the mailbox.
  if (config.device != STRATA_DEVICE_CPU) bytes.activations = bytes.kv = bytes.state = 0;
  return DeviceSide::measure(model, config, bytes, error);
}

Status Engine::open(Model& model, const strata_engine_config& config, Error& error) {
  if (!model.weights.ready()) return error.fail(STRATA_E_STATE, "the model's weights are not loaded");
  strata_engine_bytes bytes{};
  STRATA_TRY(measure(model, config, bytes, error));
  model_ = &model;
  config_ = config;
  tier_ = config_tier(config);
  n_slots_ = config.queue_steps;
  STRATA_TRY(side_.open(model, config, tier_, error));
  STRATA_TRY(open_memory(error));
  eventfd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (eventfd_ < 0) return error.fail(STRATA_E_MEMORY, "no eventfd: %s", strerror(errno));
  const Status status = start(error);
  if (status != STRATA_OK) {
    ::close(eventfd_);
    eventfd_ = -1;
  }
  return status;
}

Status Engine::open_memory(Error& error) {
  const ScratchQuery query = scratch_query(*model_, config_);
  const Plan& plan = model_->plan;
  const int64_t activations_bytes = side_.used() ? 0 : plan.activations_bytes;
  if (!activations_.open(activations_bytes) || !scratch_.open(walk_scratch_bytes(query)) ||
      !tables_.open(walk_tables_bytes(query)) || !checker_.open(plan, config_)) {
    return error.fail(STRATA_E_MEMORY, "no memory for %lld bytes of activations and %lld of scratch",
                      static_cast<long long>(activations_bytes), static_cast<long long>(walk_scratch_bytes(query)));
  }
  if (!side_.used()) {
    STRATA_TRY(kv_.open(plan, config_.kv_type, config_.n_kv_blocks, error));
    STRATA_TRY(states_.open(plan, config_.n_state_slots, error));
  }
  // Touched now, so that memory that is missing shows at start and no step pays for page faults.
  for (Arena* arena : {&activations_, &scratch_, &tables_}) {
    if (arena->data() != nullptr) memset(arena->data(), 0, static_cast<size_t>(arena->bytes()));
  }
  return STRATA_OK;
}

Status Engine::start(Error& error) {
  Pool::Config config;
  config.n_workers = config_.n_threads;
  config.spin_us = config_.spin_us;
  config.stall_ns = config_.step_deadline_us * 1000;
  config.on_broken = on_broken;
  config.owner = this;
  STRATA_TRY(pool_.open(config, error));
  place_.heartbeat_ns.store(now_ns(), std::memory_order_relaxed);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the caller's threads
  const int failed = pthread_create(&thread_, nullptr, thread_main, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) {
    pool_.close();
    return error.fail(STRATA_E_MEMORY, "the engine thread could not be started: %s", strerror(failed));
  }
  thread_started_ = true;
  return STRATA_OK;
}

bool Engine::close() {
  if (thread_started_) {
    Error ignored;
    abort(0, ignored);
    closing_.store(true, std::memory_order_release);
    pool_.begin_close();
    submitted_.advance();
    // The running op ends by itself, or the pool finds a worker lost; then the thread may never come back.
    for (int64_t dead_since = 0; !ended_.load(std::memory_order_acquire);) {
      const int64_t now = now_ns();
      if (dead_.load(std::memory_order_acquire) && dead_since == 0) dead_since = now;
      if (dead_since != 0 && now - dead_since > kCloseLostNs) {
        model_->lost.store(true, std::memory_order_release);
        pthread_detach(thread_);
        return false;
      }
      usleep(200);
    }
    pthread_join(thread_, nullptr);
    thread_started_ = false;
  }
  pool_.close();
  if (eventfd_ >= 0) ::close(eventfd_);
  eventfd_ = -1;
  return true;
}

void* Engine::thread_main(void* argument) {
  Engine* engine = static_cast<Engine*>(argument);
  pthread_setname_np(pthread_self(), "strata-engine");
  set_float_mode();
  engine->loop();
  engine->ended_.store(true, std::memory_order_release);
  return nullptr;
}

void Engine::loop() {
  while (!closing_.load(std::memory_order_acquire)) {
    const uint32_t seen = submitted_.load();
    Slot* slot = take();
    if (slot == nullptr) {
      if (!closing_.load(std::memory_order_acquire)) submitted_.wait(seen, pool_.spin_ns(), pool_.yields(), 0);
      continue;
    }
    run(*slot);
  }
}

// The next queued step, now running; null when there is none.
Engine::Slot* Engine::take() {
  Lock lock(mutex_);
  if (run_ticket_ == next_ticket_ || dead_.load(std::memory_order_relaxed)) return nullptr;
  Slot& slot = slots_[run_ticket_ % static_cast<uint64_t>(n_slots_)];
  ++run_ticket_;
  slot.state = State::running;
  stop_.store(slot.abort, std::memory_order_relaxed);
  return &slot;
}

void Engine::run(Slot& slot) {
  const int64_t start = now_ns();
  place_.heartbeat_ns.store(start, std::memory_order_relaxed);
  StepContext ctx{*model_,
                  slot.step,
                  pool_,
                  kv_,
                  states_,
                  tier_,
                  side_.used() ? side_.mailbox().activations() : activations_.data(),
                  scratch_.data(),
                  scratch_.bytes(),
                  stop_,
                  0,
                  tables_.data(),
                  {},
                  {}};
  WalkConfig walk;
  walk.poison = config_.poison != 0;
  walk.deadline_ns = config_.step_deadline_us > 0 ? start + config_.step_deadline_us * 1000 : 0;
  int64_t sample_ns = 0;
  Status status;
  if (side_.used()) {
    ctx.slots = &side_.slots();
    ctx.side = ExpertSide::missed;
    status = walk_tiered(ctx, walk, place_, side_.next_step(slot.step.n_tokens), &sample_ns);
  } else {
    status = walk_step(ctx, walk, place_, &sample_ns);
  }
  const int64_t end = now_ns();
  place_.heartbeat_ns.store(end, std::memory_order_relaxed);
  if (status != STRATA_OK && ctx.error.status == STRATA_OK) ctx.error.fail(status, "the step failed between two ops");
  if (pool_.broken()) return;  // on_broken has answered
  Lock lock(mutex_);
  finish(slot, status, ctx.error.text, start - slot.submitted_ns, end - start - sample_ns, sample_ns, ctx.counters);
}

// Under the mutex.
void Engine::finish(Slot& slot, Status status, const char* text, int64_t queued_ns, int64_t run_ns, int64_t sample_ns,
                    const StepCounters& counters) {
  if (slot.state == State::done) return;
  slot.completion = {sizeof(strata_completion),
                     status,
                     slot.ticket,
                     queued_ns,
                     run_ns,
                     sample_ns,
                     counters.weight_bytes,
                     counters.kv_bytes,
                     counters.expert_rows,
                     counters.experts_touched,
                     counters.expert_hits,
                     counters.handoff_wait_ns};
  slot.state = State::done;
  if (status != STRATA_OK) {
    Text& kept = texts_[slot.ticket % kMaxSlots];
    kept.ticket = slot.ticket;
    snprintf(kept.text, sizeof kept.text, "%s", text);
  }
  ++steps_;
  if (status == STRATA_OK) tokens_ += slot.step.n_tokens;
  if (status == STRATA_E_CANCELLED)
    ++aborted_;
  else if (status != STRATA_OK)
    ++failed_;
  weight_bytes_ += counters.weight_bytes;
  run_ns_ += run_ns;
  signal();
}

void Engine::signal() const {
  const uint64_t one = 1;
  // Non-blocking: a full counter already makes the descriptor readable.
  const ssize_t written = write(eventfd_, &one, sizeof one);
  (void)written;
}

// From worker 0, inside a region that a worker did not leave.
void Engine::on_broken(void* engine) {
  Engine& self = *static_cast<Engine*>(engine);
  const int32_t index = self.place_.op.load(std::memory_order_relaxed);
  char text[sizeof(Error::text)];
  snprintf(text, sizeof text, "a worker did not come back from op %d %s, layer %d, within %lld ms; the engine is dead",
           index, index >= 0 ? op_name(self.model_->plan.ops[index].kind) : "?",
           self.place_.layer.load(std::memory_order_relaxed), static_cast<long long>(self.pool_.stall_ns() / 1000000));
  self.die(text);
}

void Engine::die(const char* why) {
  Lock lock(mutex_);
  snprintf(dead_text_, sizeof dead_text_, "%s", why);
  dead_.store(true, std::memory_order_release);
  stop_.store(true, std::memory_order_relaxed);
  side_.give_up();
  for (uint64_t ticket = poll_ticket_; ticket != next_ticket_; ++ticket) {
    Slot& slot = slots_[ticket % static_cast<uint64_t>(n_slots_)];
    finish(slot, STRATA_E_INTERNAL, why, now_ns() - slot.submitted_ns, 0, 0, StepCounters{});
  }
  run_ticket_ = next_ticket_;
}

Status Engine::submit(const strata_step& step, uint64_t* ticket, Error& error) {
  Lock lock(mutex_);
  if (dead_.load(std::memory_order_relaxed)) return error.fail(STRATA_E_STATE, "the engine is dead: %s", dead_text_);
  if (next_ticket_ - poll_ticket_ == static_cast<uint64_t>(n_slots_)) {
    return error.fail(STRATA_E_BUSY, "%d steps are submitted and not yet polled, as many as queue_steps allows", n_slots_);
  }
  STRATA_TRY(checker_.check(step, error));
  Slot& slot = slots_[next_ticket_ % static_cast<uint64_t>(n_slots_)];
  slot = Slot{State::queued, false, next_ticket_, now_ns(), step, {}};
  *ticket = next_ticket_++;
  submitted_.advance();
  return STRATA_OK;
}

Status Engine::poll(strata_completion* completions, int32_t capacity, int32_t* n, Error& error) {
  *n = 0;
  if (capacity < 0 || (capacity > 0 && completions == nullptr))
    return error.fail(STRATA_E_ARGUMENT, "capacity is %d", capacity);
  Lock lock(mutex_);
  uint64_t count;
  const ssize_t cleared = read(eventfd_, &count, sizeof count);
  (void)cleared;  // nothing to clear is fine
  while (poll_ticket_ != next_ticket_) {
    Slot& slot = slots_[poll_ticket_ % static_cast<uint64_t>(n_slots_)];
    if (slot.state != State::done) break;
    if (*n == capacity) {
      signal();
      break;
    }
    completions[(*n)++] = slot.completion;
    slot.state = State::free;
    ++poll_ticket_;
  }
  return STRATA_OK;
}

Status Engine::abort(uint64_t ticket, Error& error) {
  Lock lock(mutex_);
  if (ticket >= next_ticket_)
    return error.fail(STRATA_E_ARGUMENT, "ticket is %llu, which no submit has returned",
                      static_cast<unsigned long long>(ticket));
  for (uint64_t t = poll_ticket_; t != next_ticket_; ++t) {
    if (ticket != 0 && t != ticket) continue;
    Slot& slot = slots_[t % static_cast<uint64_t>(n_slots_)];
    slot.abort = true;
    if (slot.state == State::running) stop_.store(true, std::memory_order_relaxed);
  }
  return STRATA_OK;
}

Status Engine::error_text(uint64_t ticket, char* text, int32_t capacity, Error& error) {
  if (text == nullptr || capacity < 1) return error.fail(STRATA_E_ARGUMENT, "capacity is %d", capacity);
  Lock lock(mutex_);
  const Text& kept = texts_[ticket % kMaxSlots];
  if (ticket == 0 || kept.ticket != ticket) {
    return error.fail(STRATA_E_ARGUMENT, "ticket is %llu, which has no text of a failure",
                      static_cast<unsigned long long>(ticket));
  }
  snprintf(text, static_cast<size_t>(capacity), "%s", kept.text);
  return STRATA_OK;
}

void Engine::stats(strata_engine_stats& stats) {
  Lock lock(mutex_);
  const bool running =
      run_ticket_ != poll_ticket_ && slots_[(run_ticket_ - 1) % static_cast<uint64_t>(n_slots_)].state == State::running;
  stats.phase = dead_.load(std::memory_order_relaxed) ? 2 : running ? 1 : 0;
  stats.layer = place_.layer.load(std::memory_order_relaxed);
  stats.op = place_.op.load(std::memory_order_relaxed);
  stats.heartbeat_age_ns = now_ns() - place_.heartbeat_ns.load(std::memory_order_relaxed);
  if (stats.phase == 0) stats.heartbeat_age_ns = 0;  // an idle thread sleeps; it owes no progress
  stats.steps = steps_;
  stats.tokens = tokens_;
  stats.failed_steps = failed_;
  stats.pinned_bytes = side_.used() ? side_.device().pinned_bytes() : 0;
  stats.aborted_steps = aborted_;
  stats.weight_bytes = weight_bytes_;
  stats.run_ns = run_ns_;
  stats.sleeps = pool_.sleeps();
  stats.wakes = pool_.wakes();
}

}  // namespace strata
