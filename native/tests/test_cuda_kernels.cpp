// The CUDA kernels that read weights, against the scalar CPU kernels, bit for bit: every type, odd row counts, 1 to 8
// tokens; more with the batched kernels of the packed types.
//
// test_cuda_kernels [NVRTC library or folder] [cache folder] [short | all] [GGML type number]; exit code 77: no GPU here.
#include <algorithm>

#include "cuda_kit.h"

namespace {
using namespace kit;

const cpu::VecMath& vec() { return *cpu::vec_math(cpu::Tier::scalar); }

struct Case {
  const cpu::TypeKernels* facts;
  const cuda::TypeKernels* kernels;
  int64_t n_rows, n_cols, n_tokens;

  std::string name(const char* kernel) const {
    return std::string(kernel) + " " + facts->name + " rows " + std::to_string(n_rows) + " cols " + std::to_string(n_cols) +
           " tokens " + std::to_string(n_tokens);
  }
};

// x and its rounded rows: on the CPU, and on the GPU by the kernel (floats are used as they are).
struct Inputs {
  std::vector<float> x;
  std::vector<uint8_t> acts;
  Device<float> gpu_x;
  Device<uint8_t> gpu_acts;
  int64_t stride, gpu_stride;
  bool floats;

  Inputs(Gpu& gpu, const Case& c, std::vector<float> values)
      : x(std::move(values)),
        acts(static_cast<size_t>(c.n_tokens * cpu::act_row_bytes(c.facts->act, c.n_cols))),
        gpu_x(gpu, x),
        gpu_acts(gpu, c.n_tokens * gpu_act_bytes(c.facts->act, c.n_cols)),
        stride(cpu::act_row_bytes(c.facts->act, c.n_cols)),
        gpu_stride(gpu_act_bytes(c.facts->act, c.n_cols)),
        floats(c.facts->act == cpu::ActForm::f32) {
    cpu::act_quantize(cpu::Tier::scalar, c.facts->act, x.data(), c.n_cols, c.n_cols, c.n_tokens, acts.data());
    if (floats)
      gpu_stride = c.n_cols * 4;
    else
      round_on_gpu(gpu, c.facts->act, gpu_x.get(), c.n_cols, c.n_cols, c.n_tokens, gpu_acts.get());
  }
  // What the weights' kernels read.
  const uint8_t* on_gpu() const { return floats ? reinterpret_cast<const uint8_t*>(gpu_x.get()) : gpu_acts.get(); }
};

std::vector<float> multiply(const Case& c, const std::vector<uint8_t>& packed, const Inputs& in) {
  std::vector<float> y(static_cast<size_t>(c.n_tokens * c.n_rows));
  cpu::MatmulArgs args{};
  args.w = {c.facts->type, cpu::Layout::packed, c.n_rows, c.n_cols, packed.data()};
  args.row_end = c.n_rows;
  args.acts = in.acts.data();
  args.act_stride = in.stride;
  args.n_tokens = c.n_tokens;
  args.y = y.data();
  args.y_stride = c.n_rows;
  c.facts->matmul_packed(args);
  return y;
}

// Every section that the CPU's row has; the padding between them is nobody's.
void compare_acts(const Case& c, const Inputs& in) {
  if (c.facts->act == cpu::ActForm::f32) return;
  const std::vector<uint8_t> rows = in.gpu_acts.read();
  const int64_t unit = c.facts->act == cpu::ActForm::a32 ? 32 : 256;
  for (int64_t t = 0; t < c.n_tokens; ++t) {
    const uint8_t *got = rows.data() + t * in.gpu_stride, *want = in.acts.data() + t * in.stride;
    const auto part = [&](const char* what, int64_t offset, int64_t bytes) {
      same(c.name(what), std::vector<uint8_t>(got + offset, got + offset + bytes),
           std::vector<uint8_t>(want + offset, want + offset + bytes));
    };
    part("codes", 0, c.n_cols);
    if (unit == 32) {
      part("scales", cpu::a32_d_offset(c.n_cols), c.n_cols / 32 * 4);
      part("sums", cpu::a32_sum_offset(c.n_cols), c.n_cols / 32 * 4);
    } else {
      part("scales", cpu::a256_d_offset(c.n_cols), c.n_cols / 256 * 4);
      part("sums of 16", cpu::a256_sum16_offset(c.n_cols), c.n_cols / 16 * 2);
      part("sums of 32", cpu::a256_sum32_offset(c.n_cols), c.n_cols / 32 * 2);
    }
  }
}

bool is_batched(const Case& c) { return c.n_tokens > cuda::kFewTokens; }
int64_t tiles_of(const Case& c, int64_t tokens) { return (c.n_tokens + tokens - 1) / tokens; }
int64_t blocks_of(const Case& c) {
  const int64_t rows = is_batched(c) ? cuda::kTileRows : c.kernels->rows_per_block;
  return (c.n_rows + rows - 1) / rows;
}

// Two matrices in one launch, the second with scale, bias and softcap off and on.
void test_linear(Gpu& gpu, const Case& c, const Inputs& in, const std::vector<uint8_t>& packed,
                 const std::vector<float>& plain) {
  const std::vector<float> bias = random_row(c.n_rows), scale{0.37f};
  Device<uint8_t> w(gpu, packed);
  Device<float> y(gpu, c.n_tokens * c.n_rows + 3), z(gpu, c.n_tokens * c.n_rows), gpu_bias(gpu, bias), gpu_scale(gpu, scale);
  cuda::LinearArgs args{};
  args.part[0] = {w.get(), y.get(), nullptr, nullptr, c.n_rows, static_cast<int32_t>(c.n_rows), 0};
  args.part[1] = {w.get(),
                  z.get(),
                  gpu_bias.get(),
                  gpu_scale.get(),
                  c.n_rows,
                  static_cast<int32_t>(c.n_rows),
                  static_cast<int32_t>(blocks_of(c))};
  args.n_parts = 2;
  args.n_tokens = static_cast<int32_t>(c.n_tokens);
  args.n_cols = c.n_cols;
  args.acts = in.on_gpu();
  args.act_stride = in.gpu_stride;
  args.factor = 1.0f;
  args.softcap = c.n_tokens % 2 == 0 ? 30.0f : 0.0f;
  if (is_batched(c)) {
    gpu.launch(c.kernels->batch, "k_linear_batch", 2 * blocks_of(c), tiles_of(c, cuda::kTileTokens), cuda::kBatchThreads, 0,
               args);
  } else {
    gpu.launch(c.kernels->linear, cuda::linear_kernel(*c.kernels, args.n_tokens), 2 * blocks_of(c),
               tiles_of(c, cuda::kMaxTokens), cuda::linear_threads(*c.kernels, args.n_tokens), 0, args);
  }
  std::vector<float> got = y.read(), want = plain, want_z = plain;
  for (size_t i = want.size(); i < got.size(); ++i) {
    if (bits_of(got[i]) != 0x7fc00000u)
      ++failures(), std::printf("FAILED %s: wrote past its rows\n", c.name("k_linear").c_str());
  }
  got.resize(want.size());
  for (int64_t t = 0; t < c.n_tokens; ++t) {
    float* row = want_z.data() + t * c.n_rows;
    vec().scale(row, scale[0], row, c.n_rows);
    vec().add(row, bias.data(), row, c.n_rows);
    if (args.softcap != 0.0f) vec().softcap(row, args.softcap, row, c.n_rows);
  }
  if (args.softcap != 0.0f) vec().softcap(want.data(), args.softcap, want.data(), static_cast<int64_t>(want.size()));
  same_floats(c.name("k_linear"), got, want);
  same_floats(c.name("k_linear, scale and bias"), z.read(), want_z);
}

void test_embed(Gpu& gpu, const Case& c, const std::vector<uint8_t>& packed) {
  const std::vector<int32_t> tokens{static_cast<int32_t>(c.n_rows - 1), 0, static_cast<int32_t>(c.n_rows / 2)};
  const auto n = static_cast<int64_t>(tokens.size());
  for (const float scale : {1.0f, 1.7f}) {
    Device<uint8_t> w(gpu, packed);
    Device<int32_t> ids(gpu, tokens);
    Device<float> out(gpu, n * c.n_cols);
    const cuda::EmbedArgs args{w.get(), ids.get(), out.get(), c.n_cols, c.n_cols, scale};
    const int64_t blocks = (c.n_cols + c.kernels->embed_columns - 1) / c.kernels->embed_columns;
    gpu.launch(c.kernels->linear, "k_embed", blocks, n, c.kernels->embed_threads, 0, args);
    std::vector<float> want(static_cast<size_t>(n * c.n_cols));
    for (int64_t t = 0; t < n; ++t) {
      float* row = want.data() + t * c.n_cols;
      cpu::row_dequantize({c.facts->type, cpu::Layout::packed, c.n_rows, c.n_cols, packed.data()},
                          tokens[static_cast<size_t>(t)], row);
      if (scale != 1.0f) vec().scale(row, scale, row, c.n_cols);
    }
    same_floats(c.name("k_embed"), out.read(), want);
  }
}

// Tasks of one expert, cut as k_gpu_group cuts them.
std::vector<cuda::ExpertTask> tasks_of(const Case& c, const uint8_t* slot) {
  const int64_t most = is_batched(c) ? cuda::kTileTokens : cuda::kMaxTokens;
  std::vector<cuda::ExpertTask> tasks;
  for (int64_t first = 0; first < c.n_tokens; first += most)
    tasks.push_back({slot, static_cast<int32_t>(first), static_cast<int32_t>(std::min(most, c.n_tokens - first))});
  return tasks;
}

// Tokens of a task share the expert; its pairs are tokens in reverse order, written to rows of their own.
void test_expert_rows(Gpu& gpu, const Case& c, const Inputs& in, const std::vector<uint8_t>& packed,
                      const std::vector<float>& plain) {
  const auto matrix_bytes = static_cast<int64_t>(packed.size()), bias_bytes = cpu::align64(c.n_rows * 4);
  std::vector<uint8_t> slot(static_cast<size_t>(matrix_bytes + bias_bytes + 64));
  const std::vector<float> bias = random_row(c.n_rows);
  const float scale = 1.3f;
  std::memcpy(slot.data(), packed.data(), packed.size());
  std::memcpy(slot.data() + matrix_bytes, bias.data(), bias.size() * 4);
  std::memcpy(slot.data() + matrix_bytes + bias_bytes, &scale, 4);
  const auto n = static_cast<int32_t>(c.n_tokens);
  std::vector<int32_t> pair_in, pair_out;
  for (int32_t t = 0; t < n; ++t) pair_in.push_back(n - 1 - t), pair_out.push_back(2 * t);
  Device<uint8_t> gpu_slot(gpu, slot);
  const std::vector<cuda::ExpertTask> host_tasks = tasks_of(c, gpu_slot.get());
  const auto n_host_tasks = static_cast<int32_t>(host_tasks.size());
  Device<int32_t> gpu_in(gpu, pair_in), gpu_out(gpu, pair_out), n_tasks(gpu, std::vector<int32_t>{n_host_tasks});
  Device<cuda::ExpertTask> tasks(gpu, host_tasks);
  Device<float> out(gpu, 2 * c.n_tokens * c.n_rows);
  cuda::ExpertArgs args{};
  args.tasks = tasks.get();
  args.n_tasks = n_tasks.get();
  args.pair_in = gpu_in.get();
  args.pair_out = gpu_out.get();
  args.acts = in.on_gpu();
  args.act_stride = in.gpu_stride;
  args.n_cols = c.n_cols;
  args.out = out.get();
  args.out_stride = c.n_rows;
  args.up = {0, matrix_bytes, matrix_bytes + bias_bytes};
  args.n_rows = static_cast<int32_t>(c.n_rows);
  // The last task of the grid is past n_tasks.
  if (is_batched(c)) {
    gpu.launch(c.kernels->batch, "k_expert_rows_batch", blocks_of(c), n_host_tasks + 1, cuda::kBatchThreads, 0, args);
  } else {
    gpu.launch(c.kernels->experts, cuda::expert_rows_kernel(*c.kernels, n), blocks_of(c), n_host_tasks + 1,
               c.kernels->threads, 0, args);
  }
  const std::vector<float> got = out.read();
  std::vector<float> want(got.size(), std::nanf(""));
  for (int32_t t = 0; t < n; ++t) {
    float* row = want.data() + int64_t{2} * t * c.n_rows;
    vec().scale(plain.data() + int64_t{n - 1 - t} * c.n_rows, scale, row, c.n_rows);
    vec().add(row, bias.data(), row, c.n_rows);
  }
  same_floats(c.name("k_expert_rows"), got, want);
}

// gate, up, activation, rounding and down of two experts; expert 1 serves every token, expert 0 the first one.
void test_expert_ffn(Gpu& gpu, const Case& c, const Inputs& in, int32_t glu, bool has_gate) {
  const int64_t n_ff = c.n_rows, matrix_bytes = cpu::packed_bytes(c.facts->type, n_ff, c.n_cols),
                bias_bytes = cpu::align64(n_ff * 4);
  const int64_t slot_bytes = 2 * (matrix_bytes + bias_bytes) + 128;
  const auto n = static_cast<int32_t>(c.n_tokens);
  std::vector<uint8_t> slots(static_cast<size_t>(2 * slot_bytes));
  std::vector<float> want(static_cast<size_t>((n + 1) * n_ff));
  for (int64_t e = 0; e < 2; ++e) {
    uint8_t* slot = slots.data() + e * slot_bytes;
    std::vector<float> rows[2];
    for (int64_t m = 0; m < 2; ++m) {  // gate, up
      const std::vector<uint8_t> packed =
          packed_matrix(c.facts->type, random_rows(*c.facts, n_ff, c.n_cols), n_ff, c.n_cols);
      const std::vector<float> bias = random_row(n_ff);
      const float scale = 0.5f + static_cast<float>(m);
      std::memcpy(slot + m * matrix_bytes, packed.data(), packed.size());
      std::memcpy(slot + 2 * matrix_bytes + m * bias_bytes, bias.data(), bias.size() * 4);
      std::memcpy(slot + 2 * (matrix_bytes + bias_bytes) + 64 * m, &scale, 4);
      rows[m] = multiply(c, packed, in);
      for (int32_t t = 0; t < n; ++t) {
        float* row = rows[m].data() + t * n_ff;
        vec().scale(row, scale, row, n_ff);
        vec().add(row, bias.data(), row, n_ff);
      }
    }
    for (int32_t t = 0; t < (e == 0 ? 1 : n); ++t) {
      vec().glu(glu, rows[0].data() + t * n_ff, rows[1].data() + t * n_ff, 1.702f, 7.0f, want.data() + (e + t) * n_ff, n_ff);
    }
  }
  std::vector<int32_t> pair_in{0};
  for (int32_t t = 0; t < n; ++t) pair_in.push_back(t);
  Device<uint8_t> gpu_slots(gpu, slots);
  Device<int32_t> gpu_in(gpu, pair_in);
  Device<cuda::ExpertTask> tasks(gpu,
                                 std::vector<cuda::ExpertTask>{{gpu_slots.get(), 0, 1}, {gpu_slots.get(slot_bytes), 1, n}});
  Device<float> hidden(gpu, (n + 1) * n_ff);
  cuda::ExpertArgs args{};
  args.tasks = tasks.get();
  args.pair_in = gpu_in.get();
  args.acts = in.on_gpu();
  args.act_stride = in.gpu_stride;
  args.n_cols = c.n_cols;
  args.out = hidden.get();
  args.out_stride = n_ff;
  const int64_t biases = 2 * matrix_bytes, scales = 2 * (matrix_bytes + bias_bytes);
  args.gate = {has_gate ? 0 : -1, biases, scales};
  args.up = {matrix_bytes, biases + bias_bytes, scales + 64};
  args.n_rows = static_cast<int32_t>(n_ff);
  args.glu = glu;
  args.p0 = 1.702f;
  args.p1 = 7.0f;
  gpu.launch(c.kernels->experts, cuda::expert_in_kernel(n), blocks_of(c), 2, 2 * c.kernels->threads, 0, args);
  same_floats(c.name("k_expert_in"), hidden.read(), want);
}

std::vector<float> inputs_of(const Case& c, bool poisoned) {
  std::vector<float> x = random_row(c.n_tokens * c.n_cols);
  if (!poisoned) return x;
  x[1] = INFINITY;                                                 // the first token's first unit
  if (c.n_tokens > 1) x[static_cast<size_t>(c.n_cols) + 2] = NAN;  // the second one's
  for (int64_t i = 0; i < c.n_cols && c.n_tokens > 2; ++i)
    x[static_cast<size_t>(2 * c.n_cols + i)] *= 1e-41f;  // subnormal scales
  for (int64_t i = 0; i < c.n_cols && c.n_tokens > 3; ++i) x[static_cast<size_t>(3 * c.n_cols + i)] = 0.0f;
  return x;
}

void test_case(Gpu& gpu, const Case& c, bool poisoned) {
  Inputs in(gpu, c, inputs_of(c, poisoned));
  compare_acts(c, in);
  const std::vector<uint8_t> packed =
      packed_matrix(c.facts->type, random_rows(*c.facts, c.n_rows, c.n_cols), c.n_rows, c.n_cols);
  const std::vector<float> plain = multiply(c, packed, in);
  test_linear(gpu, c, in, packed, plain);
  test_expert_rows(gpu, c, in, packed, plain);
  if (c.n_tokens == 1) test_embed(gpu, c, packed);
  if (!c.kernels->packed() || c.n_tokens > cuda::kMaxTokens) return;
  const int32_t glu = static_cast<int32_t>(next_random() % 10);
  test_expert_ffn(gpu, c, in, glu, glu < STRATA_GLU_UP_SILU);
}

}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(argc, argv);
  const bool is_short = argc > 3 && std::strcmp(argv[3], "short") == 0;  // under compute-sanitizer
  for (const int32_t type :
       {8, 39, 12, 14, 0, 1, 30, 2, 3, 6, 7, 20, 40, 10, 11, 13, 23, 34, 35, 16, 17, 22, 18, 21, 19, 29}) {
    if (argc > 4 && std::atoi(argv[4]) != type) continue;
    Case c{cpu::type_kernels(cpu::Tier::scalar, type), cuda::type_kernels(type), 0, 0, 0};
    const int64_t block = c.facts->block;
    std::vector<int64_t> cols{block, 3 * block, 7 * block, 37 * block};  // units end inside a bundle and an unrolled round
    if (block == 32) cols.push_back(101 * block);                        // more than one pass of the one-token kernels
    if (block == 1) cols = {1, 15, 33, 2048 + 77};
    for (const int64_t n_cols : cols) {
      if (is_short && n_cols > 7 * block && block > 1) continue;
      for (const int64_t n_rows : {1, 17, 70}) {
        for (const int64_t n_tokens : {1, 2, 3, 5, 8, 12, 33, 64, 150}) {
          if (is_short && (n_rows == 1 || n_tokens == 3 || n_tokens == 5 || n_tokens > 33)) continue;
          if (n_tokens > cuda::kFewTokens && !c.kernels->packed()) continue;
          c.n_rows = n_rows, c.n_cols = n_cols, c.n_tokens = n_tokens;
          test_case(gpu, c, (n_tokens == 5 || n_tokens == 33) && n_rows == 17);
        }
      }
    }
    std::printf("%s done\n", c.facts->name);
  }
  return finish();
}
