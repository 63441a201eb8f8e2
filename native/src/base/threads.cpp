#include "base/threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "base/clock.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace strata {
namespace {

constexpr int64_t kDefaultSpinNs = 3000000;       // a few milliseconds: covers the gap between two decode steps
constexpr int64_t kDefaultStallNs = 30000000000;  // far above the slowest chunk of work, far below a user's patience
constexpr int64_t kBusySpinNs = 20000;            // before a thread without a core of its own yields

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "futex words are plain 32-bit");

// Returns when woken, when the word differs, on a signal, or after timeout_ns (< 0: none).
void futex_wait(std::atomic<uint32_t>* word, uint32_t seen, int64_t timeout_ns) {
  timespec timeout{timeout_ns / 1000000000, timeout_ns % 1000000000};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, timeout_ns < 0 ? nullptr : &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

void set_float_mode() {
#if defined(__x86_64__)
  _mm_setcsr(0x1f80);  // all exceptions masked, round to nearest, FTZ and DAZ clear
#elif defined(__aarch64__)
  uint64_t zero = 0;  // round to nearest, FZ clear
  __asm__ __volatile__("msr fpcr, %0" ::"r"(zero));
#endif
}

void EventWord::advance() {
  // Sequentially consistent against wait(): either this side sees the sleeper, or the sleeper's futex sees the new value.
  value_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    wakes_.fetch_add(1, std::memory_order_relaxed);
    futex_wake_all(&value_);
  }
}

bool EventWord::wait(uint32_t seen, int64_t spin_ns, bool yield, int64_t deadline_ns) {
  for (int32_t i = 0; i < 64; ++i) {
    if (load() != seen) return true;
    cpu_pause();
  }
  const int64_t start = now_ns();
  for (int64_t now = start; now - start < spin_ns; now = now_ns()) {
    if (yield && now - start > kBusySpinNs) sched_yield();
    for (int32_t i = 0; i < 32; ++i) {
      if (load() != seen) return true;
      cpu_pause();
    }
    if (deadline_ns != 0 && now >= deadline_ns) return false;
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  bool changed = true;
  while (load() == seen) {
    int64_t timeout_ns = -1;
    if (deadline_ns != 0) {
      timeout_ns = deadline_ns - now_ns();
      if (timeout_ns <= 0) {
        changed = false;
        break;
      }
    }
    futex_wait(&value_, seen, timeout_ns);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return changed;
}

struct Pool::Worker {
  Pool* pool;
  int32_t index;
  pthread_t thread;
};

Status Pool::open(const Config& config, Error& error) {
  if (config.n_workers < 1 || config.n_workers > kMaxWorkers) {
    return error.fail(STRATA_E_ARGUMENT, "n_threads is %d; accepted: 1 to %d", config.n_workers, kMaxWorkers);
  }
  n_workers_ = config.n_workers;
  spin_ns_ = config.spin_us < 0 ? kDefaultSpinNs : int64_t{config.spin_us} * 1000;
  stall_ns_ = config.stall_ns > 0 ? config.stall_ns : kDefaultStallNs;
  // Equal counts yield too: the caller's own thread needs a core between steps.
  yield_ = n_workers_ >= cpu_count();
  on_broken_ = config.on_broken;
  owner_ = config.owner;
  workers_ = static_cast<Worker*>(calloc(static_cast<size_t>(n_workers_), sizeof(Worker)));
  if (workers_ == nullptr) return error.fail(STRATA_E_MEMORY, "no memory for %d workers", n_workers_);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the caller's threads
  int failed = 0;
  for (int32_t i = 1; i < n_workers_ && failed == 0; ++i) {
    workers_[i].pool = this;
    workers_[i].index = i;
    failed = pthread_create(&workers_[i].thread, nullptr, worker_main, &workers_[i]);
    if (failed == 0) n_started_ = i;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) {
    close();
    return error.fail(STRATA_E_MEMORY, "thread %d of %d could not be started: %s", n_started_ + 1, config.n_workers,
                      strerror(failed));
  }
  return STRATA_OK;
}

void Pool::close() {
  closing_.store(true, std::memory_order_release);
  start_.advance();
  for (int32_t i = 1; i <= n_started_; ++i) pthread_join(workers_[i].thread, nullptr);
  n_started_ = 0;
  free(workers_);
  workers_ = nullptr;
}

void* Pool::worker_main(void* argument) {
  Worker* worker = static_cast<Worker*>(argument);
  char name[16];
  snprintf(name, sizeof name, "strata-w%d", worker->index);
  pthread_setname_np(pthread_self(), name);
  set_float_mode();
  worker->pool->worker_loop(worker->index);
  return nullptr;
}

void Pool::hold_back(int32_t index) const {
  for (;;) {
    const int32_t blocked = blocked_.load(std::memory_order_acquire);
    if (blocked != -index && (blocked != index || closing_.load(std::memory_order_acquire))) return;
    usleep(500);
  }
}

void Pool::worker_loop(int32_t index) {
  uint32_t seen = 0;
  for (;;) {
    start_.wait(seen, spin_ns_, yield_, 0);
    ++seen;
    if (blocked_.load(std::memory_order_relaxed) != 0) hold_back(index);
    // Closing opens no region: start_ was advanced only to wake this thread. A region left open by a broken pool is
    // counted as left below.
    if (fn_ == nullptr) return;
    if (!broken()) fn_(context_, index);
    if (left_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_workers_ - 1) done_.advance();
  }
}

void Pool::break_up() {
  broken_.store(true, std::memory_order_release);
  phase_.advance();
  if (on_broken_ != nullptr) on_broken_(owner_);
}

Status Pool::parallel(RegionFn fn, void* context) {
  if (broken()) return STRATA_E_DEADLINE;
  if (n_workers_ == 1) {
    for (Cursor& cursor : cursors_) cursor.next.store(0, std::memory_order_relaxed);
    fn(context, 0);
    return STRATA_OK;
  }
  fn_ = fn;
  context_ = context;
  left_.store(0, std::memory_order_relaxed);
  for (Cursor& cursor : cursors_) cursor.next.store(0, std::memory_order_relaxed);
  const uint32_t done_seen = done_.load();
  start_.advance();
  fn(context, 0);
  if (!done_.wait(done_seen, spin_ns_, yield_, now_ns() + stall_ns_)) {
    if (!broken()) break_up();
  }
  done_.wait(done_seen, 0, false, 0);
  fn_ = nullptr;
  return broken() ? STRATA_E_DEADLINE : STRATA_OK;
}

bool Pool::barrier(int32_t worker) {
  if (n_workers_ == 1) return true;
  const uint32_t seen = phase_.load();
  if (broken()) return false;
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_workers_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.advance();
    return !broken();
  }
  // Worker 0 judges who is lost; the others wait for its verdict.
  if (!phase_.wait(seen, spin_ns_, yield_, worker == 0 ? now_ns() + stall_ns_ : 0)) break_up();
  return !broken();
}

}  // namespace strata
