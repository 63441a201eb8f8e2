// The mailbox's kernels against this thread: a job's payload and rows over and back, a job without misses, abort, deadline.
//
// test_cuda_mailbox [NVRTC library or folder] [cache folder]; exit code 77: no GPU here.
#include <algorithm>
#include <atomic>

#include "base/clock.h"
#include "cuda/gpu_args.h"
#include "cuda_kit.h"
#include "mailbox/mailbox.h"

namespace {
using namespace kit;

size_t at(int64_t i) { return static_cast<size_t>(i); }

std::vector<int32_t> random_words(int64_t n) {
  std::vector<int32_t> words(at(n));
  for (int32_t& word : words) word = static_cast<int32_t>(next_random());
  return words;
}

// One job and the step's end, played by the kernels on one side and by this thread on the other.
class JobTest {
 public:
  static constexpr int64_t kUsed = 3, kIn = 200, kOut = 300, kTokens = 5, kVocab = 777;
  static constexpr int64_t kInStride = 208, kOutStride = 912, kLogitStride = 784, kSelection = 8;
  static constexpr int64_t kWords = 1 << 16;  // of host memory: control words, then the parts below
  static constexpr int64_t kRouting = 1024, kHostX = 2048, kHostSelection = 4096, kHostOut = 8192, kHostLogits = 16384;

  explicit JobTest(Gpu& gpu)
      : gpu_(gpu),
        rows_(random_words(kTokens * kSelection)),
        x_(random_row(kTokens * kInStride)),
        logits_(random_row(2 * kLogitStride)),
        gpu_rows_(gpu, rows_),
        missed_(gpu, kTokens * kUsed),
        gpu_x_(gpu, x_),
        gpu_logits_(gpu, logits_),
        out_(gpu, kTokens * kOutStride),
        header_(gpu, 1),
        state_(gpu, 1),
        counts_(gpu, 1) {
    void* memory = nullptr;
    gpu.CU(gpu.driver.cuMemHostAlloc(&memory, kWords * 4, cuda::kHostPortable | cuda::kHostMapped));
    std::memset(memory, 0, kWords * 4);
    host_ = static_cast<uint32_t*>(memory);
    gpu.CU(gpu.driver.cuMemHostGetDevicePointer(&base_, memory, 0));
    put(state_, cuda::StepState{});
  }
  ~JobTest() { gpu_.driver.cuMemFreeHost(host_); }
  JobTest(const JobTest&) = delete;
  JobTest& operator=(const JobTest&) = delete;

  enum class Host { answers, aborts, sleeps };
  void run(uint64_t sequence, const std::vector<int32_t>& missed, Host host) {
    start(sequence, missed);
    const bool waits = !missed.empty();
    same<bool>("doorbell", {wait(mailbox_doorbell(0), sequence << kDoorbellShift | missed.size())}, {true});
    check_payload(waits);
    const std::vector<float> answer = random_row(kTokens * kOutStride);
    std::memcpy(host_ + kHostOut, answer.data(), answer.size() * 4);
    if (waits && host == Host::answers) word(mailbox_done(0)).store(sequence, std::memory_order_release);
    if (waits && host == Host::aborts) word(kMailboxAbort).store(sequence, std::memory_order_release);
    gpu_.wait();
    const bool goes_on = !waits || host == Host::answers;
    same<uint64_t>("step_done", {word(kMailboxStepDone).load()}, {goes_on ? sequence : sequence - 1});
    const bool late = waits && host == Host::sleeps;
    same<bool>("failure", {word(kMailboxFailure).load() == (sequence << kFailureShift | 1)}, {late});
    if (!goes_on) return word(kMailboxStepDone).store(sequence);
    same<bool>("timing", {word(mailbox_timing(0)).load() > 0}, {true});
    check_rows(missed, answer);
  }

 private:
  std::atomic<uint64_t>& word(int32_t w) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(reinterpret_cast<uint8_t*>(host_) + mailbox_line(w));
  }
  template <class T>
  T* shared(int64_t words) const {
    return reinterpret_cast<T*>(base_ + static_cast<uint64_t>(words) * 4);
  }
  uint64_t* control(int32_t w) const { return reinterpret_cast<uint64_t*>(base_ + static_cast<uint64_t>(mailbox_line(w))); }
  template <class T>
  void put(const Device<T>& device, const T& value) {
    gpu_.CU(gpu_.driver.cuMemcpyHtoD(reinterpret_cast<cuda::CUdeviceptr>(device.get()), &value, sizeof value));
    gpu_.CU(gpu_.driver.cuCtxSynchronize());
  }
  bool wait(int32_t w, uint64_t value) const {
    const int64_t start = now_ns();
    while (word(w).load(std::memory_order_acquire) != value && now_ns() - start < 2000000000) {
    }
    return word(w).load(std::memory_order_acquire) == value;
  }

  void start(uint64_t sequence, const std::vector<int32_t>& missed) {
    put(header_, cuda::StepHeader{sequence, 50000000, kTokens, 2});
    put(counts_, cuda::PairCounts{1, 1, static_cast<int32_t>(missed.size())});
    std::vector<int32_t> room(missed);
    room.resize(kTokens * kUsed);
    gpu_.CU(gpu_.driver.cuMemcpyHtoD(reinterpret_cast<cuda::CUdeviceptr>(missed_.get()), room.data(), room.size() * 4));
    gpu_.CU(gpu_.driver.cuMemsetD32(reinterpret_cast<cuda::CUdeviceptr>(out_.get()), 0, kTokens * kOutStride));
    gpu_.CU(gpu_.driver.cuCtxSynchronize());
    std::memset(host_ + kRouting, 0, (kWords - kRouting) * 4);
    const cuda::DispatchArgs dispatch{header_.get(),
                                      state_.get(),
                                      counts_.get(),
                                      reinterpret_cast<const uint32_t*>(gpu_x_.get()),
                                      reinterpret_cast<const uint32_t*>(gpu_rows_.get()),
                                      shared<uint32_t>(kHostX),
                                      shared<uint32_t>(kHostSelection),
                                      shared<uint32_t>(kRouting),
                                      control(mailbox_doorbell(0)),
                                      kInStride,
                                      kSelection,
                                      kTokens,
                                      kIn,
                                      kUsed};
    gpu_.launch("gpu.mailbox", "k_gpu_dispatch", 3, 1, 256, 0, dispatch);
    const cuda::WaitArgs waits{header_.get(),
                               state_.get(),
                               counts_.get(),
                               control(kMailboxAbort),
                               control(mailbox_done(0)),
                               control(kMailboxFailure),
                               0};
    gpu_.launch("gpu.mailbox", "k_gpu_wait", 1, 1, 32, 0, waits);
    const cuda::CollectArgs collect{header_.get(),
                                    state_.get(),
                                    counts_.get(),
                                    missed_.get(),
                                    shared<float>(kHostOut),
                                    out_.get(),
                                    control(mailbox_timing(0)),
                                    kOutStride,
                                    kUsed,
                                    kOut};
    gpu_.launch("gpu.mailbox", "k_gpu_collect", 2, 4, 256, 0, collect);
    const cuda::FinishArgs finish{header_.get(),
                                  state_.get(),
                                  gpu_logits_.get(),
                                  shared<float>(kHostLogits),
                                  control(kMailboxStepDone),
                                  kLogitStride,
                                  2,
                                  kVocab};
    gpu_.launch("gpu.mailbox", "k_gpu_finish", 2, 1, 256, 0, finish);
  }

  // The first `width` of `stride` words of each row; the rest of the host's is untouched.
  static std::vector<uint32_t> rows_of(const void* words, int64_t n_rows, int64_t stride, int64_t width) {
    std::vector<uint32_t> result(at(n_rows * stride), 0);
    for (int64_t r = 0; r < n_rows; ++r)
      std::memcpy(&result[at(r * stride)], static_cast<const uint32_t*>(words) + r * stride, at(width) * 4);
    return result;
  }
  std::vector<uint32_t> host_words(int64_t first, int64_t n) const { return {host_ + first, host_ + first + n}; }

  void check_payload(bool waits) const {
    std::vector<uint32_t> routing;
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t i = 0; i < 2 * kUsed; ++i) routing.push_back(static_cast<uint32_t>(rows_[at(t * kSelection + i)]));
    same("routing", host_words(kRouting, kTokens * 2 * kUsed), routing);
    same("x", host_words(kHostX, kTokens * kInStride), rows_of(x_.data(), kTokens, kInStride, waits ? kIn : 0));
    same("selection", host_words(kHostSelection, kTokens * kSelection),
         rows_of(rows_.data(), kTokens, kSelection, waits ? 2 * kUsed : 0));
  }
  void check_rows(const std::vector<int32_t>& missed, const std::vector<float>& answer) const {
    std::vector<float> want(at(kTokens * kOutStride), 0.0f);
    for (const int64_t p : missed) {
      const int64_t from = p / kUsed * kOutStride + p % kUsed * kOut;
      std::copy_n(&answer[at(from)], kOut, &want[at(from)]);
    }
    same_floats("collected rows", out_.read(), want);
    same("logits", host_words(kHostLogits, 2 * kLogitStride), rows_of(logits_.data(), 2, kLogitStride, kVocab));
  }

  Gpu& gpu_;
  const std::vector<int32_t> rows_;
  const std::vector<float> x_, logits_;
  Device<int32_t> gpu_rows_, missed_;
  Device<float> gpu_x_, gpu_logits_, out_;
  Device<cuda::StepHeader> header_;
  Device<cuda::StepState> state_;
  Device<cuda::PairCounts> counts_;
  uint32_t* host_ = nullptr;
  cuda::CUdeviceptr base_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(argc, argv);
  JobTest test(gpu);
  using Host = JobTest::Host;
  test.run(1, {0, 4, 5, 14}, Host::answers);
  test.run(2, {}, Host::answers);
  test.run(3, {7}, Host::aborts);
  test.run(4, {2, 3}, Host::answers);  // the step after an abort
  test.run(5, {1}, Host::sleeps);
  test.run(6, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, Host::answers);
  return finish();
}
