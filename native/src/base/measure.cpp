// Measures how fast memory is read, for the prediction of token rates.
#include "base/measure.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/threads.h"

namespace strata {
namespace {

constexpr int64_t kMinBytes = 1 << 20, kMaxBytes = int64_t{1} << 40;
constexpr int64_t kBudgetNs = 1000000000;
constexpr int32_t kMinPasses = 3;

// Sum of n 64-byte lines; eight independent sums keep the loads apart.
uint64_t read_lines(const uint64_t* words, int64_t n_lines) {
  uint64_t sums[8] = {};
  for (int64_t line = 0; line < n_lines; ++line) {
    for (int32_t k = 0; k < 8; ++k) sums[k] += words[line * 8 + k];
  }
  uint64_t sum = 0;
  for (uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

Status measure_read(int32_t n_threads, int64_t bytes, double* bytes_per_s, Error& error) {
  if (bytes < kMinBytes || bytes > kMaxBytes) {
    return error.fail(STRATA_E_ARGUMENT, "bytes is %lld; accepted: %lld to %lld", static_cast<long long>(bytes),
                      static_cast<long long>(kMinBytes), static_cast<long long>(kMaxBytes));
  }
  Pool::Config config;
  config.n_workers = n_threads;
  Pool pool;
  STRATA_TRY(pool.open(config, error));
  Arena arena;
  if (!arena.open(bytes))
    return error.fail(STRATA_E_MEMORY, "no memory for %lld bytes to read", static_cast<long long>(bytes));
  uint64_t* words = reinterpret_cast<uint64_t*>(arena.data());
  const int64_t n_lines = bytes / 64;
  STRATA_TRY(pool.parallel([&](int32_t worker) {
    int64_t begin, end;
    pool.share(worker, n_lines, 64, &begin, &end);
    for (int64_t i = begin * 8; i < end * 8; ++i) words[i] = static_cast<uint64_t>(i);
  }));
  std::atomic<uint64_t> sum{0};  // keeps the reads alive
  double best = 0;
  const int64_t first = now_ns();
  for (int32_t pass = 0; pass < kMinPasses || now_ns() - first < kBudgetNs; ++pass) {
    const int64_t start = now_ns();
    STRATA_TRY(pool.parallel([&](int32_t worker) {
      int64_t begin, end;
      pool.share(worker, n_lines, 64, &begin, &end);
      sum.fetch_add(read_lines(words + begin * 8, end - begin), std::memory_order_relaxed);
    }));
    const double rate = static_cast<double>(n_lines * 64) / (static_cast<double>(now_ns() - start) * 1e-9);
    if (rate > best) best = rate;
  }
  *bytes_per_s = best;
  return STRATA_OK;
}

}  // namespace strata
