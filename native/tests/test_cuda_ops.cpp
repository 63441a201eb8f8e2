// The CUDA kernels without weights, against the CPU's row functions and naive loops, bit for bit; and the prelude's
// instructions: conversions, matrix instruction, system-scope words shared with a host thread.
//
// test_cuda_ops [NVRTC library or folder] [cache folder] [short]; exit code 77: no GPU here.
#include <atomic>

#include "base/clock.h"
#include "base/ieee_math.h"
#include "cuda_kit.h"

namespace {
using namespace kit;

const cpu::VecMath& vec() { return *cpu::vec_math(cpu::Tier::scalar); }
std::string name(const char* kernel, int64_t a, int64_t b) {
  return std::string(kernel) + " " + std::to_string(a) + " " + std::to_string(b);
}

void test_norm(Gpu& gpu, int32_t kind, int64_t width, bool has_gain, bool has_bias) {
  const int64_t n_rows = 3, n_vec = 2, stride = 2 * width + 5;
  const std::vector<float> x = random_row(n_rows * stride), gain = random_row(2 * width), bias = random_row(2 * width);
  Device<float> gpu_x(gpu, x), gpu_gain(gpu, gain), gpu_bias(gpu, bias), out(gpu, n_rows * stride);
  const float eps = 1e-5f;
  const cuda::NormArgs args{gpu_x.get(),
                            out.get(),
                            has_gain ? gpu_gain.get() : nullptr,
                            has_bias ? gpu_bias.get() : nullptr,
                            stride,
                            width,
                            stride,
                            width,
                            width,
                            static_cast<int32_t>(width),
                            kind,
                            eps};
  gpu.launch("norm", "k_norm", n_vec, n_rows, 256, 0, args);
  std::vector<float> want(x.size(), std::nanf(""));
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t v = 0; v < n_vec; ++v) {
      const float *in = x.data() + r * stride + v * width, *g = has_gain ? gain.data() + v * width : nullptr;
      const float* b = has_bias ? bias.data() + v * width : nullptr;
      float* y = want.data() + r * stride + v * width;
      if (kind == STRATA_NORM_LAYER) {
        vec().layer_norm(in, g, b, eps, y, width);
        continue;
      }
      if (kind == STRATA_NORM_RMS) vec().rms_norm(in, g, eps, y, width);
      if (kind == STRATA_NORM_L2) {
        vec().l2_norm(in, eps, y, width);
        if (g != nullptr) vec().mul(y, g, y, width);
      }
      if (b != nullptr) vec().add(y, b, y, width);
    }
  }
  same_floats(name("k_norm", kind, width), out.read(), want);
}

void test_rope(Gpu& gpu, int32_t style, int64_t n_rot, bool has_factors) {
  const int64_t n_rows = 4, n_head = 3, head = n_rot + 2, half = n_rot / 2;
  std::vector<float> x = random_row(n_rows * n_head * head), factors(static_cast<size_t>(half)), table;
  std::vector<double> freqs(static_cast<size_t>(half));
  const std::vector<int32_t> pos{0, 1, 12345, 1048575};
  const float magnitude = 1.0963f;
  for (int32_t p = 0; p < half; ++p) {
    freqs[static_cast<size_t>(p)] = m_rope_freq(150000.0, p, static_cast<int32_t>(n_rot));
    factors[static_cast<size_t>(p)] = 1.0f + static_cast<float>(p) / 7.0f;
  }
  for (const int32_t at : pos) {
    std::vector<float> sines;
    for (int64_t p = 0; p < half; ++p) {
      double angle = at * freqs[static_cast<size_t>(p)], s, c;
      if (has_factors) angle /= static_cast<double>(factors[static_cast<size_t>(p)]);
      m_sincos(angle, s, c);
      table.push_back(static_cast<float>(c * static_cast<double>(magnitude)));
      sines.push_back(static_cast<float>(s * static_cast<double>(magnitude)));
    }
    table.insert(table.end(), sines.begin(), sines.end());
  }
  Device<int32_t> gpu_pos(gpu, pos);
  Device<double> gpu_freqs(gpu, freqs);
  Device<float> gpu_factors(gpu, factors), gpu_table(gpu, n_rows * n_rot), gpu_x(gpu, x);
  const cuda::RopeTableArgs table_args{gpu_pos.get(),
                                       gpu_freqs.get(),
                                       has_factors ? gpu_factors.get() : nullptr,
                                       gpu_table.get(),
                                       static_cast<int32_t>(n_rot),
                                       magnitude};
  gpu.launch("rope", "k_rope_table", (half + 127) / 128, n_rows, 128, 0, table_args);
  same_floats(name("k_rope_table", n_rot, has_factors), gpu_table.read(), table);
  const cuda::RopeArgs args{
      gpu_x.get(), gpu_table.get(), n_head * head, head, static_cast<int32_t>(n_rot), static_cast<int32_t>(n_head), style};
  gpu.launch("rope", "k_rope", n_head, n_rows, 128, 0, args);
  for (int64_t v = 0; v < n_rows * n_head; ++v) {
    const float* row = table.data() + v / n_head * n_rot;
    vec().rope(style, x.data() + v * head, row, row + half, n_rot);
  }
  same_floats(name("k_rope", style, n_rot), gpu_x.read(), x);
}

void test_elements(Gpu& gpu, int64_t width) {
  const int64_t n_rows = 3, blocks = (width + 255) / 256;
  const std::vector<float> x = random_row(n_rows * width), y = random_row(n_rows * width);
  Device<float> gpu_x(gpu, x), gpu_y(gpu, y);
  const auto w = static_cast<int32_t>(width);
  std::vector<float> want(x.size());
  const auto run = [&](const char* kernel, const float* first, const float* second, int32_t kind, int32_t n_vec, float a,
                       float b) {
    Device<float> out(gpu, n_rows * width);
    const cuda::ElementArgs args{first, second, out.get(), width, width, width, w, kind, n_vec, a, b};
    gpu.launch("element", kernel, blocks, n_rows, 256, 0, args);
    same_floats(name(kernel, width, kind), out.read(), want);
  };
  const auto n = static_cast<int64_t>(x.size());
  for (int32_t kind = 0; kind < 10; ++kind) {
    for (const float p1 : {7.0f, 0.0f}) {
      vec().glu(kind, x.data(), y.data(), 1.702f, p1, want.data(), n);
      run("k_glu", kind < STRATA_GLU_UP_SILU ? gpu_x.get() : nullptr, gpu_y.get(), kind, 0, 1.702f, p1);
    }
  }
  vec().add(x.data(), y.data(), want.data(), n);
  run("k_add", gpu_x.get(), gpu_y.get(), 0, 0, 1.0f, 1.0f);
  vec().add_scaled(0.7f, x.data(), 1.3f, y.data(), want.data(), n);
  run("k_add", gpu_x.get(), gpu_y.get(), 0, 0, 0.7f, 1.3f);
  vec().scale(x.data(), 0.7f, want.data(), n);
  run("k_add", gpu_x.get(), nullptr, 0, 0, 0.7f, 0.0f);
  vec().clamp(x.data(), 0.5f, want.data(), n);
  run("k_clamp", gpu_x.get(), nullptr, 0, 0, 0.5f, 0.0f);
  for (const int32_t act : {STRATA_ACT_NONE, STRATA_ACT_SIGMOID, STRATA_ACT_SILU, STRATA_ACT_SOFTPLUS}) {
    std::vector<float> factors = y;
    const auto unary = act == STRATA_ACT_SIGMOID ? cpu::Unary::sigmoid
                       : act == STRATA_ACT_SILU  ? cpu::Unary::silu
                                                 : cpu::Unary::softplus;
    if (act != STRATA_ACT_NONE) vec().unary(unary, y.data(), factors.data(), n);
    vec().mul(x.data(), factors.data(), want.data(), n);
    run("k_mul", gpu_x.get(), gpu_y.get(), act, 0, 0.0f, 0.0f);
    if (width % 4 != 0) continue;
    for (int64_t r = 0; r < n_rows; ++r) {
      for (int64_t v = 0; v < 4; ++v) {
        const int64_t at = r * width + v * (width / 4);
        vec().scale(x.data() + at, factors[static_cast<size_t>(r * width + v)], want.data() + at, width / 4);
      }
    }
    run("k_mul", gpu_x.get(), gpu_y.get(), act, 4, 0.0f, 0.0f);
  }
}

void test_combine(Gpu& gpu, int64_t width, int32_t n_used, bool unit, bool shared, bool gated) {
  const int64_t n_rows = 3;
  const std::vector<float> y = random_row(n_rows * n_used * width), shared_rows = random_row(n_rows * width),
                           gates = random_row(n_rows);
  std::vector<int32_t> selection(static_cast<size_t>(n_rows * 2 * n_used));
  std::vector<float> weights = random_row(n_rows * n_used), want(static_cast<size_t>(n_rows * width));
  for (int64_t r = 0; r < n_rows; ++r) {
    std::memcpy(&selection[static_cast<size_t>((2 * r + 1) * n_used)], &weights[static_cast<size_t>(r * n_used)],
                static_cast<size_t>(n_used) * 4);
    float* out = want.data() + r * width;
    for (int64_t k = 0; k < n_used; ++k)
      vec().axpy(unit ? 1.0f : weights[static_cast<size_t>(r * n_used + k)], y.data() + (r * n_used + k) * width, out,
                 width);
    const float* row = shared_rows.data() + r * width;
    if (shared && gated) vec().add_scaled(1.0f, out, m_sigmoid(gates[static_cast<size_t>(r)]), row, out, width);
    if (shared && !gated) vec().add(out, row, out, width);
  }
  Device<float> gpu_y(gpu, y), gpu_shared(gpu, shared_rows), gpu_gates(gpu, gates), out(gpu, n_rows * width);
  Device<int32_t> gpu_selection(gpu, selection);
  const cuda::CombineArgs args{gpu_y.get(),
                               gpu_selection.get(),
                               shared ? gpu_shared.get() : nullptr,
                               gated ? gpu_gates.get() : nullptr,
                               out.get(),
                               n_used * width,
                               2 * n_used,
                               width,
                               1,
                               width,
                               n_used,
                               static_cast<int32_t>(width),
                               unit};
  gpu.launch("element", "k_combine", (width + 255) / 256, n_rows, 256, 0, args);
  same_floats(name("k_combine", width, n_used), out.read(), want);
}

// ---- the prelude ----------------------------------------------------------------------------------------------------

void launch_raw(Gpu& gpu, const char* kernel, uint32_t grid, uint32_t threads, void** arguments) {
  gpu.CU(gpu.driver.cuLaunchKernel(gpu.function("selftest", kernel), grid, 1, 1, threads, 1, 1, 0, gpu.stream, arguments,
                                   nullptr));
}

void test_math(Gpu& gpu) {
  std::vector<float> x;
  for (int i = 0; i < 20000; ++i) x.push_back(v_from_bits(static_cast<int32_t>(next_random())));  // every kind of float
  for (int i = 0; i < 20000; ++i) x.push_back(random_float(90.0f));
  int32_t n = static_cast<int32_t>(x.size());
  Device<float> gpu_x(gpu, x), out(gpu, int64_t{7} * n);
  const float* in = gpu_x.get();
  float* to = out.get();
  void* arguments[] = {&in, &to, &n};
  launch_raw(gpu, "k_test_math", static_cast<uint32_t>(n + 255) / 256, 256, arguments);
  std::vector<float> want;
  for (const float v : x) want.push_back(m_exp(v));
  for (const float v : x) want.push_back(m_silu(v));
  for (const float v : x) want.push_back(m_tanh(v));
  for (const float v : x) want.push_back(m_softplus(v));
  for (const float v : x) want.push_back(v_sqrt(v_abs(v)));
  for (const float v : x) want.push_back(1.0f / v);
  for (const float v : x) want.push_back(v * 0x1p-126f + v * v);
  same_floats("k_test_math", out.read(), want);
}

void test_half(Gpu& gpu) {
  Device<float> floats(gpu, 65536);
  Device<uint16_t> halves(gpu, 65536);
  float* f = floats.get();
  uint16_t* h = halves.get();
  void* arguments[] = {&f, &h};
  launch_raw(gpu, "k_test_half", 256, 256, arguments);
  std::vector<float> want;
  for (int i = 0; i < 65536; ++i) want.push_back(m_half_to_float(static_cast<uint16_t>(i)));
  same_floats("k_test_half floats", floats.read(), want);
  std::vector<uint16_t> got = halves.read(), back;
  for (int i = 0; i < 65536; ++i) {
    const bool nan = (i & 0x7fff) > 0x7c00;
    if (nan && (got[static_cast<size_t>(i)] & 0x7fff) > 0x7c00) got[static_cast<size_t>(i)] = static_cast<uint16_t>(i);
    back.push_back(static_cast<uint16_t>(i));
  }
  same("k_test_half halves", got, back);
}

void test_mma(Gpu& gpu) {
  std::vector<uint8_t> a(512), b(256);
  for (uint8_t& v : a) v = static_cast<uint8_t>(next_random());
  for (uint8_t& v : b) v = static_cast<uint8_t>(next_random());
  Device<uint8_t> gpu_a(gpu, a), gpu_b(gpu, b);
  Device<int32_t> d(gpu, 128);
  const uint8_t *pa = gpu_a.get(), *pb = gpu_b.get();
  int32_t* pd = d.get();
  void* arguments[] = {&pa, &pb, &pd};
  launch_raw(gpu, "k_test_mma", 1, 32, arguments);
  std::vector<int32_t> want;
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      int32_t sum = 0;
      for (size_t k = 0; k < 32; ++k) sum += static_cast<int8_t>(a[32 * row + k]) * static_cast<int8_t>(b[32 * column + k]);
      want.push_back(sum);
    }
  }
  same("k_test_mma", d.read(), want);
}

// Doorbell and done words in mapped host memory: the kernel answers 1,000 rings, ends on abort, and ends at its deadline.
void test_mailbox(Gpu& gpu) {
  void* memory = nullptr;
  gpu.CU(gpu.driver.cuMemHostAlloc(&memory, 4096, cuda::kHostPortable | cuda::kHostMapped));
  std::memset(memory, 0, 4096);
  cuda::CUdeviceptr words = 0;
  gpu.CU(gpu.driver.cuMemHostGetDevicePointer(&words, memory, 0));
  auto* doorbell = static_cast<std::atomic<uint64_t>*>(memory);
  std::atomic<uint64_t>*done = doorbell + 16, *abort = doorbell + 32;
  uint64_t last = 1000, deadline_ns = 2000000000;
  void* arguments[] = {&words, &last, &deadline_ns};
  launch_raw(gpu, "k_test_mailbox", 1, 32, arguments);
  uint64_t answered = 0;
  const int64_t start = now_ns();
  for (uint64_t ring = 1; ring <= last; ++ring) {
    doorbell->store(ring, std::memory_order_release);
    while (done->load(std::memory_order_acquire) != ring + 1 && now_ns() - start < 3000000000) {
    }
    answered += done->load(std::memory_order_acquire) == ring + 1 ? 1u : 0u;
  }
  gpu.wait();
  same<uint64_t>("k_test_mailbox answers", {answered}, {last});
  std::printf("mailbox: %.2f us a round trip\n", static_cast<double>(now_ns() - start) * 1e-3 / static_cast<double>(last));
  doorbell->store(0);
  last = 1;
  launch_raw(gpu, "k_test_mailbox", 1, 32, arguments);
  abort->store(1, std::memory_order_release);
  const int64_t aborted = now_ns();
  gpu.wait();
  same<bool>("k_test_mailbox ends on abort", {now_ns() - aborted < 1000000000}, {true});
  abort->store(0);
  deadline_ns = 20000000;
  launch_raw(gpu, "k_test_mailbox", 1, 32, arguments);
  gpu.wait();
  gpu.CU(gpu.driver.cuMemFreeHost(memory));
}

}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(argc, argv);
  test_math(gpu);
  test_half(gpu);
  test_mma(gpu);
  const bool is_short =
      argc > 3 && std::strcmp(argv[3], "short") == 0;  // under compute-sanitizer kernels are too slow for it
  if (!is_short) test_mailbox(gpu);
  for (const int32_t kind : {STRATA_NORM_RMS, STRATA_NORM_LAYER, STRATA_NORM_L2}) {
    for (const int64_t width : {1, 64, 255, 257, 2880}) {
      test_norm(gpu, kind, width, true, false);
      test_norm(gpu, kind, width, width % 2 == 0, true);
    }
  }
  for (const int32_t style : {STRATA_ROPE_NORM, STRATA_ROPE_NEOX}) {
    test_rope(gpu, style, 64, false);
    test_rope(gpu, style, 300, true);
  }
  for (const int64_t width : {1, 256, 1004}) test_elements(gpu, width);
  for (const bool unit : {false, true}) {
    test_combine(gpu, 77, 4, unit, false, false);
    test_combine(gpu, 512, 8, unit, true, false);
    test_combine(gpu, 300, 1, unit, true, true);
  }
  return finish();
}
