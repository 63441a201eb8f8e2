// One engine: a thread that runs submitted steps in order, and the rings on both sides of it.
//
// A slot holds one step from submit until its completion has been polled; tickets count up from 1 and ticket % n_slots is
// the slot. One mutex guards slots and counters; the engine thread waits on `submitted_`, callers on the eventfd.
//
//   FREE --submit--> QUEUED --engine thread--> RUNNING --walk ends--> DONE --poll--> FREE
//
// When a worker is lost (base/threads.h) the running step and all queued ones become DONE with STRATA_E_INTERNAL, from
// the pool's callback, and the engine is dead. Its memory is freed only if its thread can be joined.
#pragma once
#include <pthread.h>

#include <atomic>

#include "base/arena.h"
#include "base/threads.h"
#include "engine/check_step.h"
#include "engine/experts.h"
#include "engine/kv.h"
#include "engine/state.h"
#include "engine/tiered.h"
#include "model/model.h"

namespace strata {

class Engine {
 public:
  static Status measure(const Model& model, const strata_engine_config& config, strata_engine_bytes& bytes, Error& error);

  Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Status open(Model& model, const strata_engine_config& config, Error& error);
  // Aborts everything and joins the thread. False: a worker is lost for good and the object must not be freed.
  bool close();

  int32_t eventfd() const { return eventfd_; }
  Status submit(const strata_step& step, uint64_t* ticket, Error& error);
  Status poll(strata_completion* completions, int32_t capacity, int32_t* n, Error& error);
  Status abort(uint64_t ticket, Error& error);
  Status error_text(uint64_t ticket, char* text, int32_t capacity, Error& error);
  void stats(strata_engine_stats& stats);
  Status kv_copy(int32_t from, int32_t to, Error& error);
  Status state_copy(int32_t from, int32_t to, Error& error);
  Status experts_copy(int32_t set, int32_t expert, int32_t slot, uint64_t* number, Error& error);
  Status experts_copied(uint64_t* number, Error& error);
  Status experts_commit(const strata_slot_entry* entries, int32_t n, Error& error);
  Status handoffs(int32_t kind, int64_t* bins, Error& error) const;
  Pool& pool() { return pool_; }

 private:
  enum class State { free, queued, running, done };
  struct Slot {
    State state;
    bool abort;
    uint64_t ticket;
    int64_t submitted_ns;
    strata_step step;
    strata_completion completion;
  };
  struct Text {
    uint64_t ticket;
    char text[sizeof(Error::text)];
  };
  static constexpr int32_t kMaxSlots = 64;  // texts outlive their slots by so many steps

  Status start(Error& error);
  Status open_memory(Error& error);
  Status check_idle(Error& error) const;
  Status check_copy(int32_t from, int32_t to, int32_t n, Error& error) const;
  static void* thread_main(void* argument);
  void loop();
  Slot* take();
  void run(Slot& slot);
  void finish(Slot& slot, Status status, const char* text, int64_t queued_ns, int64_t run_ns, int64_t sample_ns,
              const StepCounters& counters);
  static void on_broken(void* engine);
  void die(const char* why);
  void signal() const;

  Model* model_ = nullptr;
  strata_engine_config config_{};
  cpu::Tier tier_ = cpu::Tier::scalar;
  Pool pool_;
  KvStore kv_;
  StateStore states_;
  Arena activations_, scratch_, tables_;
  StepChecker checker_;
  WalkPlace place_;
  DeviceSide side_;  // with a device: KV cache and states are there, activations_ is empty
  pthread_t thread_{};
  bool thread_started_ = false;
  int32_t eventfd_ = -1;

  EventWord submitted_;
  std::atomic<bool> closing_{false};
  std::atomic<bool> ended_{false};  // the thread has left its loop
  std::atomic<bool> stop_{false};   // of the running step
  std::atomic<bool> dead_{false};
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  int32_t n_slots_ = 0;
  Slot slots_[kMaxSlots] = {};
  Text texts_[kMaxSlots] = {};
  uint64_t next_ticket_ = 1;  // of the next submit
  uint64_t run_ticket_ = 1;   // of the next step to run
  uint64_t poll_ticket_ = 1;  // of the next completion to hand out
  int64_t steps_ = 0, tokens_ = 0, failed_ = 0, aborted_ = 0, weight_bytes_ = 0, run_ns_ = 0;
  char dead_text_[sizeof(Error::text)] = {};
};

}  // namespace strata
