// The worker pool of one engine: regions in which every worker runs the same function, with barriers inside.
//
// The engine thread opens regions and takes part as worker 0; n_workers - 1 threads of the pool are workers 1 and up.
// Between regions workers spin for a while, then yield, then sleep on a futex, so that idle costs no CPU. Nothing
// allocates after open.
//
// Lost workers (contract C4). Worker 0 waits for the others at most `stall_ns` at a barrier and at a region's end. Then the
// pool is broken for good: the owner is told through its callback, every barrier returns false, and worker 0 stays in
// the region until the lost worker is back, because that one may still use what the region was given. The owner's
// callers get their answer from the callback, so nobody waits for the engine thread.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "base/error.h"

namespace strata {

constexpr int32_t kMaxWorkers = 256;

// Sets round-to-nearest and clears FTZ and DAZ on this thread (contract C1: other libraries may have set them).
void set_float_mode();
// Processors this process may use: affinity mask and cgroup quota (v1, v2), at least 1.
int32_t cpu_count();
// Whole processors that the quotas of the groups named in `proc_cgroup` (a /proc/self/cgroup) allow, at least 1; 0: no
// quota. `root` is where the group file systems are mounted, normally /sys/fs/cgroup.
int32_t cgroup_cpus(const char* root, const char* proc_cgroup);

// Holds a mutex in a scope.
struct Lock {
  explicit Lock(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~Lock() { pthread_mutex_unlock(&mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  pthread_mutex_t& mutex_;
};

// A counter that threads wait on: spin, then yield, then futex.
class EventWord {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }
  // Adds one and wakes every sleeper.
  void advance();
  // Returns true once the counter differs from `seen`; false when deadline_ns (0: none) passed first.
  bool wait(uint32_t seen, int64_t spin_ns, bool yield, int64_t deadline_ns);
  int64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }
  int64_t wakes() const { return wakes_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<int32_t> sleepers_{0};
  std::atomic<int64_t> sleeps_{0}, wakes_{0};
};

class Pool {
 public:
  // fn(context, worker): worker is 0 .. n_workers() - 1.
  using RegionFn = void (*)(void* context, int32_t worker);

  Pool() = default;
  ~Pool() { close(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Told once, by worker 0, that a worker is lost.
  using BrokenFn = void (*)(void* owner);
  struct Config {
    int32_t n_workers = 1;
    int32_t spin_us = -1;  // -1: default
    int64_t stall_ns = 0;  // 0: default
    BrokenFn on_broken = nullptr;
    void* owner = nullptr;
  };
  // Starts n_workers - 1 threads. On failure nothing is left running.
  Status open(const Config& config, Error& error);
  // Joins the workers; no region may be open.
  void close();
  // From any thread: lets workers held back by test_block go on, so that worker 0 can leave the region.
  void begin_close() { closing_.store(true, std::memory_order_release); }

  int32_t n_workers() const { return n_workers_; }
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  int64_t spin_ns() const { return spin_ns_; }
  int64_t stall_ns() const { return stall_ns_; }
  bool yields() const { return yield_; }

  // Runs fn on every worker and returns when all have returned. STRATA_E_DEADLINE: the pool is broken. Worker 0 only.
  [[nodiscard]] Status parallel(RegionFn fn, void* context);
  // The same with a callable f(worker); a reference to it is passed, nothing is copied.
  template <class F>
  [[nodiscard]] Status parallel(F&& f) {
    using Callable = std::remove_reference_t<F>;
    return parallel([](void* context, int32_t worker) { (*static_cast<Callable*>(context))(worker); },
                    const_cast<void*>(static_cast<const void*>(&f)));
  }

  // Inside a region: waits until every worker is here; everything written before is then visible to all. Every worker
  // must make the same calls. False: the pool is broken, return from the region at once.
  [[nodiscard]] bool barrier(int32_t worker);

  // Inside a region: shared work cursors, all zero when a region starts. take() advances one. A cursor serves one phase
  // of a region: the next phase takes another.
  static constexpr int32_t kCursors = 8;
  // Takes the next `chunk` items of [0, n): sets [begin, end), false when none are left.
  bool take(int32_t cursor, int64_t n, int64_t chunk, int64_t* begin, int64_t* end) {
    *begin = cursors_[cursor].next.fetch_add(chunk, std::memory_order_relaxed);
    if (*begin >= n) return false;
    *end = *begin + chunk < n ? *begin + chunk : n;
    return true;
  }
  // This worker's static share of [0, n) in whole multiples of `grain` (the last one may be cut).
  void share(int32_t worker, int64_t n, int64_t grain, int64_t* begin, int64_t* end) const {
    const int64_t grains = (n + grain - 1) / grain;
    *begin = grains * worker / n_workers_ * grain;
    *end = grains * (worker + 1) / n_workers_ * grain;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
  }

  // A region of its own: f(item, worker) for every item of [0, n), taken `chunk` at a time. Few items run on the caller.
  template <class F>
  [[nodiscard]] Status run(int64_t n, int64_t chunk, F&& f) {
    if (n <= chunk || n_workers_ == 1) {
      for (int64_t item = 0; item < n; ++item) f(item, 0);
      return broken() ? STRATA_E_DEADLINE : STRATA_OK;
    }
    return parallel([&](int32_t worker) {
      int64_t begin, end;
      while (take(0, n, chunk, &begin, &end)) {
        for (int64_t item = begin; item < end; ++item) f(item, worker);
      }
    });
  }

  int64_t sleeps() const { return start_.sleeps() + phase_.sleeps() + done_.sleeps(); }
  int64_t wakes() const { return start_.wakes() + phase_.wakes() + done_.wakes(); }

  // Tests: from the next region on worker `worker` (>= 1) stays away until test_block(0); if not `hard`, until the pool
  // closes too.
  void test_block(int32_t worker, bool hard) { blocked_.store(hard ? -worker : worker, std::memory_order_release); }

 private:
  struct Worker;
  static void* worker_main(void* argument);
  void worker_loop(int32_t index);
  void hold_back(int32_t index) const;
  void break_up();

  struct alignas(64) Cursor {
    std::atomic<int64_t> next{0};
  };

  int32_t n_workers_ = 1;
  int32_t n_started_ = 0;
  bool yield_ = false;
  int64_t spin_ns_ = 0;
  int64_t stall_ns_ = 0;
  BrokenFn on_broken_ = nullptr;
  void* owner_ = nullptr;
  Worker* workers_ = nullptr;

  alignas(64) EventWord start_;  // advanced for every region
  RegionFn fn_ = nullptr;
  void* context_ = nullptr;
  std::atomic<int32_t> blocked_{0};
  std::atomic<bool> closing_{false};
  std::atomic<bool> broken_{false};
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) EventWord phase_;  // advanced whenever all workers have arrived at a barrier
  alignas(64) std::atomic<int32_t> left_{0};
  alignas(64) EventWord done_;  // advanced whenever all threads have left a region
  Cursor cursors_[kCursors];
};

}  // namespace strata
