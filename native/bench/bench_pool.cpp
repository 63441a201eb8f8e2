// What waking the pool costs: an empty region, and a region with ten barriers, in microseconds.
//
//   bench_pool [n_workers]
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "base/threads.h"

namespace {

constexpr int kRounds = 20000;
constexpr int kBarriers = 10;

// Median and 99th percentile of `kRounds` runs.
template <class F>
void measure(const char* what, F&& f) {
  std::vector<double> us(kRounds);
  for (double& value : us) {
    const int64_t start = strata::now_ns();
    f();
    value = static_cast<double>(strata::now_ns() - start) * 1e-3;
  }
  std::sort(us.begin(), us.end());
  printf("%-24s median %8.2f us, 99 %% %8.2f us\n", what, us[kRounds / 2], us[kRounds * 99 / 100]);
}

}  // namespace

int main(int argc, char** argv) {
  strata::Pool pool;
  strata::Pool::Config config;
  config.n_workers = argc > 1 ? atoi(argv[1]) : strata::cpu_count();
  strata::Error error;
  if (pool.open(config, error) != STRATA_OK) {
    printf("%s\n", error.text);
    return 1;
  }
  printf("%d workers on %d processors\n", config.n_workers, strata::cpu_count());
  int32_t failed = 0;
  measure("empty region", [&] { failed |= pool.parallel([](int32_t) {}); });
  measure("region with 10 barriers", [&] {
    failed |= pool.parallel([&](int32_t worker) {
      for (int i = 0; i < kBarriers; ++i) {
        if (!pool.barrier(worker)) return;
      }
    });
  });
  return failed == 0 ? 0 : 1;
}
