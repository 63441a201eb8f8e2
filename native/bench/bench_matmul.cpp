// Speed of the packed matrix kernels against the memory's own: bench_matmul [megabytes=256] [type name] [tier name].
//
// Every line: weight type, tier, threads, tokens, GB/s of weights, share of the read roof, GMAC/s. The weights are many
// matrices of 768 rows, as experts are, together larger than the caches, and split over the threads; the best of several
// passes counts. The roof is a vector sum over the same bytes by the same number of threads in the same run, with the
// kernels' prefetch. It is a yardstick, no bound: kernels that leave the memory more time between loads can pass it.
// On a machine with other work the figures of one run do not compare.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "cpu/act.h"
#include "cpu/kernels.h"
#include "cpu/pack.h"
#include "cpu/tiles.h"

namespace {
using namespace strata::cpu;

constexpr int64_t kCols = 2048, kRows = 768;  // one matrix of many, as experts are
constexpr int kPasses = 5;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Bytes {
  explicit Bytes(int64_t n)
      : n_bytes(n), data(static_cast<uint8_t*>(std::aligned_alloc(4096, static_cast<size_t>((n + 4095) / 4096 * 4096)))) {}
  ~Bytes() { std::free(data); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  int64_t n_bytes;
  uint8_t* data;
};

uint32_t next_random(uint32_t& state) {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state;
}

// Seconds of the best pass of work(thread) on n_threads threads that start
// together.
template <class Work>
double best_time(int n_threads, const Work& work) {
  double best = 1e30;
  for (int pass = 0; pass < kPasses; pass++) {
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int i = 1; i < n_threads; i++) {
      threads.emplace_back([&, i] {
        ready.fetch_add(1);
        while (ready.load() < n_threads) {
        }
        work(i);
      });
    }
    while (ready.load() < n_threads - 1) {
    }
    const double start = seconds();
    ready.fetch_add(1);
    work(0);
    for (std::thread& thread : threads) thread.join();
    best = std::min(best, seconds() - start);
  }
  return best;
}

typedef uint64_t Words __attribute__((vector_size(64)));

#if defined(__x86_64__)
__attribute__((target_clones("default", "avx2", "avx512f")))
#endif
uint64_t sum_words(const uint8_t* data, int64_t n_bytes) {
  Words sums[4] = {};
  for (int64_t i = 0; i + 256 <= n_bytes; i += 256) {
    if (i % 2048 == 0) __builtin_prefetch(data + i + kPrefetchBytes, 0, 3);
    for (int k = 0; k < 4; k++) {
      Words words;
      memcpy(&words, data + i + 64 * k, 64);
      sums[k] += words;
    }
  }
  const Words sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return sum[0] + sum[3] + sum[7];
}

double read_roof(const Bytes& bytes, int n_threads) {
  std::atomic<uint64_t> sink{0};
  const int64_t part = bytes.n_bytes / n_threads / 4096 * 4096;
  const double time = best_time(n_threads, [&](int i) { sink += sum_words(bytes.data + i * part, part); });
  return static_cast<double>(part * n_threads) / time * 1e-9;
}

// File rows with random codes and scales near 2^-6, so that no value overflows.
void make_row(const TypeKernels& kernels, int64_t n_cols, uint32_t& state, uint8_t* row) {
  for (int64_t u = 0; u < n_cols / kernels.block; u++, row += kernels.block_bytes) {
    for (int64_t i = 0; i < kernels.block_bytes; i++) row[i] = static_cast<uint8_t>(next_random(state) >> 11);
    const auto half = static_cast<uint16_t>(0x2400 + (next_random(state) >> 22));
    if (kernels.type == kTypeMXFP4) {
      row[0] = static_cast<uint8_t>(118 + (next_random(state) >> 29));
    } else {
      memcpy(row + (kernels.type == kTypeQ6_K ? 208 : 0), &half, 2);
    }
    if (kernels.type == kTypeQ4_K) memcpy(row + 2, &half, 2);
  }
}

void bench_type(int32_t type, const char* only_tier, int64_t n_megabytes) {
  const TypeKernels* facts = type_kernels(Tier::scalar, type);
  const int64_t row_bytes = kCols / facts->block * facts->block_bytes;
  const int64_t n_rows = (n_megabytes << 20) / row_bytes / (2 * kRows) * (2 * kRows);
  Bytes packed(packed_bytes(type, n_rows, kCols)), rows(16 * row_bytes);
  uint32_t state = 12345;
  for (int64_t r = 0; r < 16; r++) make_row(*facts, kCols, state, rows.data + r * row_bytes);
  const double pack_start = seconds();
  for (int64_t r = 0; r < n_rows; r += 16) pack_rows(type, rows.data, r, r + 16, n_rows, kCols, packed.data);
  std::printf("%-6s packing from cached rows, first touch: %.2f GB/s\n", facts->name,
              static_cast<double>(packed.n_bytes) / (seconds() - pack_start) * 1e-9);
  constexpr int64_t kMaxTokens = 64;
  const int64_t act_bytes = act_row_bytes(facts->act, kCols);
  Bytes acts(kMaxTokens * act_bytes);
  std::vector<float> x(static_cast<size_t>(kMaxTokens * kCols)), y(static_cast<size_t>(2 * kMaxTokens * kRows));
  for (float& value : x) value = static_cast<float>(static_cast<int32_t>(next_random(state))) * 0x1p-31f;
  act_quantize(Tier::scalar, facts->act, x.data(), kCols, kCols, kMaxTokens, acts.data);
  const double roof[2] = {read_roof(packed, 1), read_roof(packed, 2)};
  std::printf(
      "%-6s %lld MiB, %lld x %lld; read roof %.1f / %.1f GB/s with 1 / "
      "2 threads\n",
      facts->name, static_cast<long long>(packed.n_bytes >> 20), static_cast<long long>(n_rows),
      static_cast<long long>(kCols), roof[0], roof[1]);
  for (const Tier tier : {Tier::avx512, Tier::avx2, Tier::neon}) {
    const TypeKernels* kernels = type_kernels(tier, type);
    if (kernels == nullptr || (only_tier != nullptr && std::strcmp(only_tier, tier_name(tier)) != 0)) continue;
    for (const int64_t n_tokens : {1, 2, 4, 8, 64}) {
      for (int n_threads = 1; n_threads <= 2; n_threads++) {
        // Few rows suffice where the arithmetic is the limit.
        const int64_t used = n_tokens >= 64 ? n_rows / 8 / (2 * kRows) * (2 * kRows) : n_rows;
        const double time = best_time(n_threads, [&](int i) {
          const int64_t part = used / n_threads / kRows * kRows;
          MatmulArgs args{};
          args.row_end = kRows;
          args.acts = acts.data;
          args.act_stride = act_bytes;
          args.n_tokens = n_tokens;
          args.y = y.data() + i * kMaxTokens * kRows;
          args.y_stride = kRows;
          for (int64_t first = i * part; first < (i + 1) * part; first += kRows) {
            const uint8_t* data = packed.data + first / kGroupRows * group_bytes(type, kCols);
            args.w = {type, Layout::packed, kRows, kCols, data};
            kernels->matmul_packed(args);
          }
        });
        const double rate =
            static_cast<double>(used) / static_cast<double>(n_rows) * static_cast<double>(packed.n_bytes) / time * 1e-9;
        std::printf(
            "%-6s %-6s threads %d tokens %2lld: %6.1f GB/s = %5.2f of "
            "the roof, %7.1f GMAC/s\n",
            facts->name, tier_name(tier), n_threads, static_cast<long long>(n_tokens), rate, rate / roof[n_threads - 1],
            static_cast<double>(used * kCols * n_tokens) / time * 1e-9);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t n_megabytes = argc > 1 ? std::atoll(argv[1]) : 256;
  const char* only_type = argc > 2 ? argv[2] : nullptr;
  const char* only_tier = argc > 3 ? argv[3] : nullptr;
  for (const int32_t type : {kTypeQ4_K, kTypeQ6_K, kTypeQ8_0, kTypeMXFP4}) {
    if (only_type != nullptr && std::strcmp(only_type, type_kernels(Tier::scalar, type)->name) != 0) continue;
    bench_type(type, only_tier, n_megabytes);
  }
  return 0;
}
