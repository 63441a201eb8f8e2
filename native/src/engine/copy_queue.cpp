#include "engine/copy_queue.h"

#include <cstring>

namespace strata {

Status CopyQueue::open(MakeFn make, void* owner, Error& error) {
  make_ = make;
  owner_ = owner;
  if (!ring_.resize(static_cast<int64_t>(kQueue))) return error.fail(STRATA_E_MEMORY, "no memory for a queue of copies");
  const int failed = pthread_create(&thread_, nullptr, thread_main, this);
  if (failed != 0) return error.fail(STRATA_E_MEMORY, "the copying thread could not be started: %s", strerror(failed));
  started_ = true;
  return STRATA_OK;
}

void CopyQueue::close() {
  if (!started_) return;
  closing_.store(true, std::memory_order_release);
  changed_.advance();
  pthread_join(thread_, nullptr);
  started_ = false;
}

Status CopyQueue::add(const ExpertCopy& copy, Error& error) {
  if (failed_.load(std::memory_order_acquire)) return error.fail(failure_.status, "%s", failure_.text);
  const uint64_t added = added_.load(std::memory_order_relaxed);
  if (added - made_.load(std::memory_order_acquire) == kQueue)
    return error.fail(STRATA_E_BUSY, "%llu copies of experts wait already", static_cast<unsigned long long>(kQueue));
  ring_[static_cast<int64_t>(added % kQueue)] = copy;
  added_.store(added + 1, std::memory_order_release);
  changed_.advance();
  return STRATA_OK;
}

void* CopyQueue::thread_main(void* queue) {
  pthread_setname_np(pthread_self(), "strata-copies");
  static_cast<CopyQueue*>(queue)->loop();
  return nullptr;
}

void CopyQueue::loop() {
  while (!closing_.load(std::memory_order_acquire)) {
    const uint32_t seen = changed_.load();
    const uint64_t made = made_.load(std::memory_order_relaxed);
    if (made == added_.load(std::memory_order_acquire)) {
      changed_.wait(seen, 0, false, 0);
      continue;
    }
    const ExpertCopy& copy = ring_[static_cast<int64_t>(made % kQueue)];
    const uint64_t number = copy.number;
    if (make_(owner_, copy, failure_) != STRATA_OK) {
      failed_.store(true, std::memory_order_release);
      return;
    }
    done_.store(number, std::memory_order_release);
    made_.store(made + 1, std::memory_order_release);
  }
}

}  // namespace strata
