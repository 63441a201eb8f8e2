// The CUDA kernels without weights, against the CPU's row functions and naive loops, bit for bit; and the prelude's
// instructions: conversions, matrix instruction, system-scope words shared with a host thread.
//
// test_cuda_ops [NVRTC library or folder] [cache folder] [short]; exit code 77: no GPU here.
#include <algorithm>
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
  for (const int32_t act : {STRATA_ACT_NONE, STRATA_ACT_SIGMOID, STRATA_ACT_SILU}) {
    std::vector<float> factors = y;
    if (act != STRATA_ACT_NONE)
      vec().unary(act == STRATA_ACT_SIGMOID ? cpu::Unary::sigmoid : cpu::Unary::silu, y.data(), factors.data(), n);
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

// ---- router ---------------------------------------------------------------------------------------------------------

// The ids of the n best values, largest first; the lower id wins ties.
std::vector<int32_t> best_of(const std::vector<float>& values, int64_t n) {
  std::vector<int32_t> ids(values.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)]; });
  ids.resize(static_cast<size_t>(n));
  return ids;
}

void naive_router(const cuda::RouterArgs& a, const float* x, const float* bias, int32_t* ids, float* weights) {
  const int64_t n = a.n_expert;
  std::vector<float> scores(x, x + n), choice;
  const float largest = vec().max(x, n);
  if (a.scores == STRATA_SCORES_SOFTMAX) {
    const float sum = vec().exp_sub(x, largest, scores.data(), n);
    for (float& s : scores) s = s / sum;
  } else if (a.scores == STRATA_SCORES_SIGMOID) {
    vec().unary(cpu::Unary::sigmoid, x, scores.data(), n);
  } else if (a.scores == STRATA_SCORES_SQRT_SOFTPLUS) {
    vec().unary(cpu::Unary::softplus, x, scores.data(), n);
    vec().unary(cpu::Unary::sqrt, scores.data(), scores.data(), n);
  }
  choice = a.select_logits != 0 ? std::vector<float>(x, x + n) : scores;
  for (int64_t e = 0; e < n; ++e) {
    float& value = choice[static_cast<size_t>(e)];
    if (bias != nullptr) value = value + bias[e];
    if (std::isnan(value)) value = -INFINITY;
  }
  std::vector<float> allowed = choice;
  if (a.n_group > 1) {
    const int64_t size = n / a.n_group;
    std::vector<float> group_scores;
    for (int64_t g = 0; g < a.n_group; ++g) {
      std::vector<float> members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      std::sort(members.begin(), members.end(), std::greater<float>());
      group_scores.push_back(size > 1 ? members[0] + members[1] : members[0]);
    }
    const std::vector<int32_t> kept = best_of(group_scores, a.n_group_used);
    for (int64_t e = 0; e < n; ++e)
      if (std::find(kept.begin(), kept.end(), e / size) == kept.end()) allowed[static_cast<size_t>(e)] = -INFINITY;
  }
  const std::vector<int32_t> chosen = best_of(allowed, a.n_used);
  std::copy(chosen.begin(), chosen.end(), ids);
  float sum = 0.0f, top = -INFINITY;
  for (int64_t k = 0; k < a.n_used; ++k) top = std::max(top, x[ids[k]]);
  for (int64_t k = 0; k < a.n_used; ++k) {
    weights[k] = a.scores == STRATA_SCORES_SOFTMAX_WEIGHT ? m_exp(x[ids[k]] - top) : scores[static_cast<size_t>(ids[k])];
    sum += weights[k];
  }
  for (int64_t k = 0; k < a.n_used && a.scores == STRATA_SCORES_SOFTMAX_WEIGHT; ++k) weights[k] = weights[k] / sum;
  sum = 0.0f;
  for (int64_t k = 0; k < a.n_used; ++k) sum += weights[k];
  for (int64_t k = 0; k < a.n_used; ++k) {
    if (a.normalize != 0) weights[k] = weights[k] / std::max(sum, a.norm_min);
    if (a.scale != 1.0f) weights[k] = weights[k] * a.scale;
    if (std::isnan(largest)) weights[k] = largest;
  }
}

void test_router(Gpu& gpu, int32_t n_expert, int32_t n_used, int32_t scores, int32_t n_group, bool has_bias,
                 bool by_logits) {
  const int64_t n_rows = 5, stride = n_expert + 1, out_stride = 2 * n_used + 2;
  std::vector<float> logits = random_row(n_rows * stride), bias = random_row(n_expert);
  for (int64_t e = 0; e < n_expert; ++e) {
    logits[static_cast<size_t>(stride + e)] = static_cast<float>(next_random() % 3);  // ties everywhere
    logits[static_cast<size_t>(2 * stride + e)] = e % 2 == 0 ? 0.0f : -0.0f;
  }
  logits[static_cast<size_t>(3 * stride)] = NAN;
  Device<float> gpu_logits(gpu, logits), gpu_bias(gpu, bias);
  Device<int32_t> selection(gpu, n_rows * out_stride);
  const cuda::RouterArgs args{gpu_logits.get(),
                              has_bias ? gpu_bias.get() : nullptr,
                              selection.get(),
                              stride,
                              out_stride,
                              n_expert,
                              n_used,
                              scores,
                              n_group,
                              n_group / 2,
                              n_used % 2,
                              by_logits,
                              n_used % 3 == 0 ? 2.5f : 1.0f,
                              1e-20f};
  gpu.launch("router", "k_router", n_rows, 1, 32, int64_t{8} * n_expert, args);
  const std::vector<int32_t> got = selection.read();
  std::vector<int32_t> want_ids(static_cast<size_t>(n_used)), ids(want_ids.size());
  std::vector<float> want_weights(want_ids.size()), weights(want_ids.size());
  for (int64_t r = 0; r < n_rows; ++r) {
    naive_router(args, logits.data() + r * stride, has_bias ? bias.data() : nullptr, want_ids.data(), want_weights.data());
    std::memcpy(ids.data(), got.data() + r * out_stride, ids.size() * 4);
    std::memcpy(weights.data(), got.data() + r * out_stride + n_used, ids.size() * 4);
    same(name("k_router ids", n_expert, scores), ids, want_ids);
    same_floats(name("k_router weights", n_expert, scores), weights, want_weights);
  }
}

void test_group(Gpu& gpu, int32_t n_tokens, int32_t n_used, int32_t n_expert, int resident_percent) {
  const int64_t stride = 2 * n_used, n_pairs = n_tokens * n_used;
  std::vector<int32_t> ids(static_cast<size_t>(n_tokens * stride), -1);
  std::vector<uint64_t> slots(static_cast<size_t>(n_expert));
  for (uint64_t& slot : slots)
    slot = static_cast<int>(next_random() % 100) < resident_percent ? 64 * (1 + next_random() % 1000) : 0;
  for (int64_t t = 0; t < n_tokens; ++t) {
    std::vector<float> draw = random_row(n_expert / 2 + n_used);  // the upper experts are never chosen
    const std::vector<int32_t> chosen = best_of(draw, n_used);
    std::copy(chosen.begin(), chosen.end(), ids.begin() + t * stride);
  }
  std::vector<int32_t> tokens, outs, missed;
  std::vector<uint64_t> tasks;  // slot, first, count
  for (int32_t e = 0; e < n_expert; ++e) {
    const size_t first = tokens.size();
    for (int32_t p = 0; p < n_pairs; ++p) {
      if (ids[static_cast<size_t>(p / n_used * stride + p % n_used)] != e || slots[static_cast<size_t>(e)] == 0) continue;
      tokens.push_back(p / n_used);
      outs.push_back(p);
    }
    if (tokens.size() > first) tasks.insert(tasks.end(), {slots[static_cast<size_t>(e)], first, tokens.size() - first});
  }
  for (int32_t p = 0; p < n_pairs; ++p)
    if (slots[static_cast<size_t>(ids[static_cast<size_t>(p / n_used * stride + p % n_used)])] == 0) missed.push_back(p);
  Device<int32_t> gpu_ids(gpu, ids), pair_token(gpu, n_pairs), pair_out(gpu, n_pairs), gpu_missed(gpu, n_pairs),
      counts(gpu, 3);
  Device<uint64_t> gpu_slots(gpu, slots);
  Device<cuda::ExpertTask> gpu_tasks(gpu, n_pairs);
  const cuda::GroupArgs args{gpu_ids.get(),    stride,         gpu_slots.get(), gpu_tasks.get(),  counts.get(),
                             pair_token.get(), pair_out.get(), counts.get(1),   gpu_missed.get(), counts.get(2),
                             n_tokens,         n_used,         n_expert};
  gpu.launch("router", "k_group_experts", 1, 1, 128, 0, args);
  const auto n_tasks = tasks.size() / 3;
  same(name("k_group_experts counts", n_tokens, n_expert), counts.read(),
       {static_cast<int32_t>(n_tasks), static_cast<int32_t>(tokens.size()), static_cast<int32_t>(missed.size())});
  const auto head = [](std::vector<int32_t> all, size_t n) { return all.resize(n), all; };
  same(name("k_group_experts tokens", n_tokens, n_expert), head(pair_token.read(), tokens.size()), tokens);
  same(name("k_group_experts rows", n_tokens, n_expert), head(pair_out.read(), outs.size()), outs);
  same(name("k_group_experts missed", n_tokens, n_expert), head(gpu_missed.read(), missed.size()), missed);
  std::vector<uint64_t> got;
  for (const cuda::ExpertTask& task : gpu_tasks.read()) {
    if (got.size() == tasks.size()) break;
    got.insert(got.end(), {reinterpret_cast<uint64_t>(task.slot), static_cast<uint64_t>(task.first_pair),
                           static_cast<uint64_t>(task.n_pairs)});
  }
  same(name("k_group_experts tasks", n_tokens, n_expert), got, tasks);
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
  for (int32_t scores = STRATA_SCORES_SOFTMAX; scores <= STRATA_SCORES_SQRT_SOFTPLUS; ++scores) {
    test_router(gpu, 128, 8, scores, 0, false, scores == STRATA_SCORES_SOFTMAX_WEIGHT);
    test_router(gpu, 61, 3, scores, 0, true, scores == STRATA_SCORES_SOFTMAX_WEIGHT);
    test_router(gpu, 256, 9, scores, 8, true, scores == STRATA_SCORES_SOFTMAX_WEIGHT);
    test_router(gpu, 512, 10, scores, 0, false, true);
    test_router(gpu, 4, 4, scores, 0, true, false);
  }
  for (const int32_t n_tokens : {1, 3, 8}) {
    for (const int percent : {0, 45, 100}) {
      test_group(gpu, n_tokens, 4, 128, percent);
      test_group(gpu, n_tokens, 10, 512, percent);
      test_group(gpu, n_tokens, 2, 8, percent);
    }
  }
  return finish();
}
