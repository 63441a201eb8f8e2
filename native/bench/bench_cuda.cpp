// Speed of the CUDA decode kernels against the card's read bandwidth.
//
// bench_cuda [NVRTC library or folder] [cache folder]; exit code 77: no GPU here. Each line is a captured graph of launches
// that walk through more than a gigabyte of random weights, so that no cache holds them: median of nine replays. GB/s count
// weight bytes only; the share is of the rate at which k_test_read reads a gigabyte.
#include <algorithm>

#include "../tests/cuda_kit.h"

namespace {
using namespace kit;

constexpr int kLaunches = 64, kReplays = 9;

// Seconds of one replay of the launches that f(i) records for i < kLaunches.
template <class F>
double time_graph(Gpu& gpu, F&& f) {
  const cuda::Driver& d = gpu.driver;
  f(0);  // compiled and loaded before the capture
  gpu.wait();
  cuda::CUgraph graph;
  cuda::CUgraphExec exec;
  cuda::CUevent start, end;
  gpu.CU(d.cuStreamBeginCapture(gpu.stream, cuda::kCaptureThreadLocal));
  for (int i = 0; i < kLaunches; ++i) f(i);
  gpu.CU(d.cuStreamEndCapture(gpu.stream, &graph));
  gpu.CU(d.cuGraphInstantiate(&exec, graph, 0));
  gpu.CU(d.cuEventCreate(&start, 0));
  gpu.CU(d.cuEventCreate(&end, 0));
  std::vector<float> times;
  for (int r = 0; r < kReplays; ++r) {
    gpu.CU(d.cuEventRecord(start, gpu.stream));
    gpu.CU(d.cuGraphLaunch(exec, gpu.stream));
    gpu.CU(d.cuEventRecord(end, gpu.stream));
    gpu.CU(d.cuEventSynchronize(end));
    float ms = 0.0f;
    gpu.CU(d.cuEventElapsedTime(&ms, start, end));
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  d.cuEventDestroy(start);
  d.cuEventDestroy(end);
  d.cuGraphExecDestroy(exec);
  d.cuGraphDestroy(graph);
  return static_cast<double>(times[kReplays / 2]) * 1e-3;
}

double g_read_bandwidth = 0.0;

void measure_read(Gpu& gpu) {
  const int64_t bytes = int64_t{1} << 30;
  const Device<uint8_t> from(gpu, bytes);
  const Device<uint32_t> out(gpu, 1);
  const uint8_t* memory = from.get();
  int64_t n = bytes / 16;
  uint32_t* to = out.get();
  const auto blocks = static_cast<uint32_t>(gpu.info().n_multiprocessors * 4);
  const double seconds = time_graph(gpu, [&](int) {
    void* arguments[] = {&memory, &n, &to};
    gpu.CU(gpu.driver.cuLaunchKernel(gpu.function("selftest", "k_test_read"), blocks, 1, 1, 512, 1, 1, 0, gpu.stream,
                                     arguments, nullptr));
  });
  g_read_bandwidth = static_cast<double>(bytes) * kLaunches / seconds;
  std::printf("read: %.0f GB/s\n", g_read_bandwidth * 1e-9);
}

void report(Gpu& gpu, const std::string& what, const char* module, const char* kernel, double seconds, int64_t bytes) {
  int32_t registers = 0, local_bytes = 0;
  gpu.CU(gpu.driver.cuFuncGetAttribute(&registers, cuda::kFunctionRegisters, gpu.function(module, kernel)));
  gpu.CU(gpu.driver.cuFuncGetAttribute(&local_bytes, cuda::kFunctionLocalBytes, gpu.function(module, kernel)));
  const double each = seconds / kLaunches, rate = static_cast<double>(bytes) / each;
  std::printf("%-44s %-16s %8.2f us %7.0f GB/s %5.1f %%  %3d registers, %d local bytes\n", what.c_str(), kernel, each * 1e6,
              rate * 1e-9, 100.0 * rate / g_read_bandwidth, registers, local_bytes);
}

// More than a gigabyte of copies of one random matrix.
struct Weights {
  int64_t bytes, count;
  Device<uint8_t> memory;

  Weights(Gpu& gpu, int32_t type, int64_t n_rows, int64_t n_cols)
      : bytes(cpu::packed_bytes(type, n_rows, n_cols)), count((int64_t{5} << 28) / bytes + 1), memory(gpu, bytes * count) {
    const cpu::TypeKernels& facts = *cpu::type_kernels(cpu::Tier::scalar, type);
    const std::vector<uint8_t> one = packed_matrix(type, random_rows(facts, n_rows, n_cols), n_rows, n_cols);
    gpu.CU(gpu.driver.cuMemcpyHtoD(reinterpret_cast<uint64_t>(memory.get()), one.data(), one.size()));
    for (int64_t i = 1; i < count; ++i)
      gpu.CU(gpu.driver.cuMemcpyDtoDAsync(reinterpret_cast<uint64_t>(memory.get(i * bytes)),
                                          reinterpret_cast<uint64_t>(memory.get()), static_cast<size_t>(bytes), gpu.stream));
    gpu.wait();
  }
};

// Random activation rows, rounded.
struct Acts {
  Device<float> x;
  Device<uint8_t> rounded;
  int64_t stride;
  bool floats;

  Acts(Gpu& gpu, cpu::ActForm form, int64_t n_cols, int64_t n_rows)
      : x(gpu, random_row(n_cols * n_rows)),
        rounded(gpu, gpu_act_bytes(form, n_cols) * n_rows),
        stride(form == cpu::ActForm::f32 ? n_cols * 4 : gpu_act_bytes(form, n_cols)),
        floats(form == cpu::ActForm::f32) {
    if (!floats) round_on_gpu(gpu, form, x.get(), n_cols, n_cols, n_rows, rounded.get());
  }
  const uint8_t* get() const { return floats ? reinterpret_cast<const uint8_t*>(x.get()) : rounded.get(); }
};

void bench_linear(Gpu& gpu, int32_t type, int64_t n_rows, int64_t n_cols, int32_t n_tokens) {
  const cpu::TypeKernels& facts = *cpu::type_kernels(cpu::Tier::scalar, type);
  const cuda::TypeKernels& kernels = *cuda::type_kernels(type);
  const Weights w(gpu, type, n_rows, n_cols);
  const Acts acts(gpu, facts.act, n_cols, n_tokens);
  Device<float> y(gpu, n_rows * n_tokens);
  cuda::LinearArgs args{};
  args.n_parts = 1;
  args.n_tokens = n_tokens;
  args.n_cols = n_cols;
  args.acts = acts.get();
  args.act_stride = acts.stride;
  args.factor = 1.0f;
  const char* kernel = cuda::linear_kernel(kernels, n_tokens);
  const double seconds = time_graph(gpu, [&](int i) {
    args.part[0] = {w.memory.get(i % w.count * w.bytes), y.get(), nullptr, nullptr, n_rows, static_cast<int32_t>(n_rows), 0};
    gpu.launch(kernels.linear, kernel, (n_rows + kernels.rows_per_block - 1) / kernels.rows_per_block, 1,
               cuda::linear_threads(kernels, n_tokens), 0, args);
  });
  report(gpu,
         std::string(facts.name) + " " + std::to_string(n_rows) + " x " + std::to_string(n_cols) + ", tokens " +
             std::to_string(n_tokens),
         kernels.linear, kernel, seconds, w.bytes);
}

// One launch: n_used experts, each with n_pairs tokens; gate and up fused, or one matrix (down).
void bench_experts(Gpu& gpu, int32_t type, int64_t n_rows, int64_t n_cols, int32_t n_used, int32_t n_pairs, bool fused) {
  const cpu::TypeKernels& facts = *cpu::type_kernels(cpu::Tier::scalar, type);
  const cuda::TypeKernels& kernels = *cuda::type_kernels(type);
  const Weights w(gpu, type, n_rows * (fused ? 2 : 1), n_cols);  // one above the other: n_rows is a multiple of 16
  const Acts acts(gpu, facts.act, n_cols, n_used * n_pairs);
  std::vector<cuda::ExpertTask> all;
  for (int32_t i = 0; i < kLaunches * n_used; ++i)
    all.push_back({w.memory.get(i % w.count * w.bytes), i % n_used * n_pairs, n_pairs});
  Device<cuda::ExpertTask> tasks(gpu, all);
  Device<float> out(gpu, n_used * n_pairs * n_rows);
  cuda::ExpertArgs args{};
  args.acts = acts.get();
  args.act_stride = acts.stride;
  args.n_cols = n_cols;
  args.out = out.get();
  args.out_stride = n_rows;
  args.gate = {0, -1, -1};
  args.up = {fused ? w.bytes / 2 : 0, -1, -1};
  args.n_rows = static_cast<int32_t>(n_rows);
  const char* kernel = fused ? cuda::expert_in_kernel(n_pairs) : cuda::expert_rows_kernel(kernels, n_pairs);
  const double seconds = time_graph(gpu, [&](int i) {
    args.tasks = tasks.get(int64_t{i} * n_used);
    gpu.launch(kernels.experts, kernel, (n_rows + 15) / 16, n_used, kernels.threads * (fused ? 2 : 1), 0, args);
  });
  report(gpu,
         std::string(facts.name) + " " + std::to_string(n_used) + " experts " + std::to_string(n_rows) + " x " +
             std::to_string(n_cols) + (fused ? " gate+up" : "") + ", pairs " + std::to_string(n_pairs),
         kernels.experts, kernel, seconds, w.bytes * n_used);
}

}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(argc, argv);
  measure_read(gpu);
  for (const int32_t n_pairs : {1, 2, 8}) {
    bench_experts(gpu, 39, 2880, 2880, 4, n_pairs, true);
    bench_experts(gpu, 39, 2880, 2880, 4, n_pairs, false);
    bench_experts(gpu, 12, 768, 2048, 8, n_pairs, true);
    bench_experts(gpu, 12, 2048, 768, 8, n_pairs, false);
    bench_experts(gpu, 14, 2048, 768, 8, n_pairs, false);
    bench_experts(gpu, 8, 2048, 2048, 8, n_pairs, true);
  }
  for (const int32_t n_tokens : {1, 8}) {
    bench_linear(gpu, 8, 5120, 2880, n_tokens);
    bench_linear(gpu, 8, 201088, 2880, n_tokens);
    bench_linear(gpu, 12, 4096, 2048, n_tokens);
    bench_linear(gpu, 14, 151936, 2048, n_tokens);
    bench_linear(gpu, 0, 128, 2880, n_tokens);
    bench_linear(gpu, 30, 4096, 4096, n_tokens);
    bench_linear(gpu, 13, 4096, 4096, n_tokens);
    bench_linear(gpu, 2, 4096, 4096, n_tokens);
    bench_linear(gpu, 21, 4096, 4096, n_tokens);
  }
  return 0;
}
