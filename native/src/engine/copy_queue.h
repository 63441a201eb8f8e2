// Copies of experts in the order they were asked for, made by a thread of their own so that nobody waits for them.
#pragma once
#include <pthread.h>

#include <atomic>

#include "base/arena.h"
#include "base/error.h"
#include "base/threads.h"

namespace strata {

struct ExpertCopy {
  const uint8_t* from;
  int64_t bytes, slot_offset;  // in the slot arena
  uint64_t number;             // ascending
};

class CopyQueue {
 public:
  // Makes one copy, or ends without it; on the queue's thread. A failure ends the queue: later copies are never done.
  using MakeFn = Status (*)(void* owner, const ExpertCopy& copy, Error& error);

  CopyQueue() = default;
  ~CopyQueue() { close(); }
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  Status open(MakeFn make, void* owner, Error& error);
  // Waits for the copy that is being made; the others are dropped.
  void close();
  // Never blocks. STRATA_E_BUSY: kQueue copies wait already. One caller at a time.
  Status add(const ExpertCopy& copy, Error& error);
  // Number of the newest copy that has been made with all before it.
  uint64_t done() const { return done_.load(std::memory_order_acquire); }

 private:
  static constexpr uint64_t kQueue = 4096;
  static void* thread_main(void* queue);
  void loop();

  MakeFn make_ = nullptr;
  void* owner_ = nullptr;
  Array<ExpertCopy> ring_;
  std::atomic<uint64_t> added_{0}, made_{0}, done_{0};
  EventWord changed_;
  std::atomic<bool> closing_{false}, failed_{false};
  Error failure_;  // written before failed_ is set
  pthread_t thread_{};
  bool started_ = false;
};

}  // namespace strata
