// The worker pool of one engine: regions in which every worker runs the same function, with barriers inside.
//
// The engine thread opens regions and takes part as worker 0; n_workers - 1 threads of the pool are workers 1 and up.
// Between regions workers spin for a while, then yield, then sleep on a futex, so that idle costs no CPU. Nothing
// allocates after open. Every wait is bounded: when a worker does not arrive before the region's deadline the pool is
// broken for good, every barrier and region returns STRATA_E_DEADLINE, and the engine above it dies (contract C4).
#pragma once
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

  // Starts n_workers - 1 threads. spin_us < 0 takes the default. On failure nothing is left running.
  Status open(int32_t n_workers, int32_t spin_us, Error& error);
  // Joins the workers. False: a worker is stuck, and everything that it may still touch must stay allocated.
  bool close();

  int32_t n_workers() const { return n_workers_; }
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  // Waits of the following regions end at this time of the monotonic clock.
  void set_deadline_ns(int64_t deadline_ns) { deadline_ns_ = deadline_ns; }

  // Runs fn on every worker and returns when all have returned. STRATA_E_DEADLINE: the pool is broken.
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
  [[nodiscard]] bool barrier();

  // Inside a region: shared work counters. counter(k) is a cursor that take() advances; all cursors are zero when a
  // region starts. Cursors are used once in a region: take another k for the next phase.
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

  int64_t sleeps() const { return start_.sleeps() + phase_.sleeps(); }
  int64_t wakes() const { return start_.wakes() + phase_.wakes(); }

  // Tests: from the next region on, worker `worker` (>= 1) stays away until release or close. 0 releases.
  void test_block(int32_t worker) { blocked_.store(worker, std::memory_order_release); }

 private:
  struct Worker;
  static void* worker_main(void* argument);
  void worker_loop(int32_t index);
  bool held_back(int32_t index);
  bool arrive();

  struct alignas(64) Cursor { std::atomic<int64_t> next{0}; };

  int32_t n_workers_ = 1;
  int64_t spin_ns_ = 0;
  bool yield_ = false;
  Worker* workers_ = nullptr;
  int32_t n_started_ = 0;

  alignas(64) EventWord start_;               // one more for every region
  RegionFn fn_ = nullptr;
  void* context_ = nullptr;
  int64_t deadline_ns_ = 0;
  std::atomic<int32_t> blocked_{0};
  std::atomic<bool> closing_{false};
  std::atomic<bool> broken_{false};
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) EventWord phase_;               // one more whenever all workers have arrived
  Cursor cursors_[kCursors];
};

}  // namespace strata
