// The attention kernels against the CPU's cache rows and attention steps, bit for bit: all cache types, head sizes, groups,
// windows, sinks, latent heads, several sequences, chunks, passes, and a captured graph whose inputs change.
//
// test_cuda_attention [NVRTC library or folder] [cache folder] [short]; exit code 77: no GPU here.
#include <algorithm>
#include <numeric>

#include "cpu/attention.h"
#include "cuda/attention.h"
#include "cuda_kit.h"
#include "engine/kv.h"

namespace {
using namespace kit;

struct Rows {
  int32_t seq, first_pos, n_rows;
};
struct Case {
  const char* what;
  int32_t n_head, n_head_kv, head_k, head_v;
  std::vector<Rows> rows;
  int32_t v_in_k = 0, window = 0, window_kind = 0, causal = 1;
  bool sinks = false, store = true, specials = false;
  float softcap = 0.0f;
  int32_t spare_tokens = 0, max_ctx = 1024;
};

int64_t& launched_split() {
  static int64_t n = 0;
  return n;
}
int64_t& launched_whole() {
  static int64_t n = 0;
  return n;
}

std::vector<float> random_values(int64_t n, float scale, bool specials) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = random_float(scale);
  if (specials) {
    const float odd[] = {std::nanf(""), HUGE_VALF, -HUGE_VALF, 1e30f, -0.0f, 1e-30f, 70000.0f};
    for (float value : odd) x[next_random() % x.size()] = value;
  }
  return x;
}

// The step's inputs and the CPU's cache, filled with the positions before the step's.
class Step {
 public:
  Step(const Case& c, int32_t kv_type) : c_(c), kv_type_(kv_type) {
    for (const Rows& run : c.rows) {
      for (int32_t r = 0; r < run.n_rows; ++r) {
        seq.push_back(run.seq);
        pos.push_back(run.first_pos + r);
      }
      n_seqs_ = std::max(n_seqs_, run.seq + 1);
      high_ = std::max(high_, run.first_pos + run.n_rows);
    }
    max_blocks = (high_ + 63) / 64 + 1;
    open_cache();
    fill_table();
    const int64_t n = n_tokens();
    q = random_values(n * q_width(), 1.0f, c.specials);
    k = random_values(n * k_width(), 2.0f, c.specials);
    v = random_values(n * v_width(), 2.0f, c.specials);
    sinks = random_values(c.n_head, 3.0f, false);
    for (const Rows& run : c.rows) fill_context(run);
  }
  int64_t n_tokens() const { return static_cast<int64_t>(seq.size()); }
  int64_t q_width() const { return int64_t{c_.n_head} * c_.head_k; }
  int64_t k_width() const { return int64_t{c_.n_head_kv} * c_.head_k; }
  int64_t v_width() const { return int64_t{c_.n_head_kv} * c_.head_v; }
  int64_t out_width() const { return int64_t{c_.n_head} * c_.head_v; }
  const KvLayer& layer() const { return kv_.layer(0); }
  std::vector<uint8_t> cache_bytes() const { return {kv_.keys(0, 0, 0), kv_.keys(0, 0, 0) + bytes_}; }

  void store() {
    for (int64_t t = 0; t < n_tokens(); ++t) store_row(seq[at(t)], pos[at(t)], &k[at(t * k_width())], &v[at(t * v_width())]);
  }
  std::vector<float> attend() const {
    std::vector<float> out(at(n_tokens() * out_width()));
    for (int64_t t = 0; t < n_tokens(); ++t)
      for (int64_t h = 0; h < c_.n_head; ++h) attend_one(t, h, &out[at(t * out_width() + h * c_.head_v)]);
    return out;
  }

  std::vector<int32_t> seq, pos, table;
  int64_t max_blocks = 0;
  std::vector<float> q, k, v, sinks;

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  static const cpu::VecMath& vec() { return *cpu::vec_math(cpu::tier_best()); }

  void open_cache() {
    Plan plan;
    Error error;
    const auto n_blocks = static_cast<int32_t>(n_seqs_ * max_blocks);
    if (!plan.kv_layers.resize(1)) std::exit(1);
    plan.kv_layers[0] = {c_.n_head_kv, c_.head_k, c_.head_v, c_.v_in_k};
    bytes_ = KvStore::measure_bytes(plan, kv_type_, n_blocks);
    if (kv_.open(plan, kv_type_, n_blocks, error) != STRATA_OK) {
      std::printf("FAILED %s: %s\n", c_.what, error.text);
      std::exit(1);
    }
    std::memset(kv_.keys(0, 0, 0), 0xff, at(bytes_));  // NaN in F32, F16 and in the scales: rows that nobody may count
  }
  void fill_table() {
    table.resize(at(n_seqs_ * max_blocks));
    std::iota(table.begin(), table.end(), 0);
    for (size_t i = table.size(); i > 1; --i) std::swap(table[i - 1], table[next_random() % i]);
  }
  void fill_context(const Rows& run) {
    const int32_t end = c_.store ? run.first_pos : run.first_pos + run.n_rows;
    for (int32_t p = 0; p < end; ++p)
      store_row(run.seq, p, random_values(k_width(), 2.0f, false).data(), random_values(v_width(), 2.0f, false).data());
  }
  void store_row(int32_t s, int32_t p, const float* keys, const float* values) {
    const int32_t block = table[at(s * max_blocks + p / 64)];
    const cpu::VecMath& scalar = *cpu::vec_math(cpu::Tier::scalar);
    for (int64_t h = 0; h < c_.n_head_kv; ++h) {
      scalar.kv_store(kv_type_, keys + h * c_.head_k, kv_.keys(0, block, h) + p % 64 * layer().k_row_bytes, c_.head_k);
      if (c_.v_in_k != 0) continue;
      scalar.kv_store(kv_type_, values + h * c_.head_v, kv_.values(0, block, h) + p % 64 * layer().v_row_bytes, c_.head_v);
    }
  }
  // Visible keys by asking for each position, unlike the kernels.
  void visible(int64_t t, int64_t& low, int64_t& high) const {
    int64_t last = t;
    while (last + 1 < n_tokens() && seq[at(last + 1)] == seq[at(t)]) ++last;
    const int32_t p = pos[at(t)], w = c_.window, end = c_.causal != 0 ? p + 1 : pos[at(last)] + 1;
    const auto sees = [&](int32_t j) {
      if (w == 0) return true;
      if (c_.window_kind == STRATA_WINDOW_STANDARD) return p - j < w;
      if (c_.window_kind == STRATA_WINDOW_CHUNKED) return j >= p / w * w;
      return std::abs(p - j) <= w / 2;
    };
    low = 0;
    while (!sees(static_cast<int32_t>(low))) ++low;
    high = low;
    while (high < end && sees(static_cast<int32_t>(high))) ++high;
  }
  void attend_one(int64_t t, int64_t h, float* out) const {
    int64_t low, high;
    visible(t, low, high);
    const int64_t h_kv = h / (c_.n_head / c_.n_head_kv), first = low / 64, n = (high + 63) / 64 - first;
    std::vector<float> s(at(n * 64)), tile_max(at(n)), tile_sum(at(n));
    cpu::AttnJob job{};
    job.vec = &vec();
    job.kv_type = kv_type_;
    job.n_dim_k = c_.head_k;
    job.n_dim_v = c_.head_v;
    job.k = kv_.keys(0, 0, h_kv);
    job.v = kv_.values(0, 0, h_kv);
    job.block_bytes = layer().block_bytes;
    job.k_row_bytes = layer().k_row_bytes;
    job.v_row_bytes = layer().v_row_bytes;
    job.blocks = &table[at(seq[at(t)] * max_blocks)];
    job.n_rows = job.n_heads = 1;
    job.low = &low;
    job.high = &high;
    job.first_tile = first;
    job.n_tiles = n;
    job.key_low = low;
    job.key_high = high;
    job.scale = 0.0883f;
    job.softcap = c_.softcap;
    job.sinks = c_.sinks ? &sinks[at(h)] : nullptr;
    job.q = &q[at(t * q_width() + h * c_.head_k)];
    job.s = s.data();
    job.tile_max = tile_max.data();
    job.tile_sum = tile_sum.data();
    job.out = out;
    cpu::attn_scores_step(job, 0, n);
    cpu::attn_softmax_step(job, 0, n);
    cpu::attn_values_step(job, 0, c_.head_v);
  }

  const Case& c_;
  const int32_t kv_type_;
  KvStore kv_;
  int64_t bytes_ = 0;
  int32_t n_seqs_ = 1, high_ = 1;
};

cuda::AttentionFunctions functions_of(Gpu& gpu, int32_t kv_type) {
  const char* module = cuda::attention_module(kv_type);
  return {gpu.function(module, "k_kv_store"), gpu.function(module, "k_attn_scores"), gpu.function(module, "k_attn_max"),
          gpu.function(module, "k_attn_values"), gpu.function(module, "k_attn_finish")};
}

// All that a launch reads and writes, on the device; rows have room for `spare_tokens` more, whose output stays untouched.
struct OnGpu {
  OnGpu(Gpu& gpu, const Case& c, const Step& step)
      : q(gpu, step.q),
        k(gpu, step.k),
        v(gpu, step.v),
        sinks(gpu, step.sinks),
        out(gpu, step.n_tokens() * step.out_width()),
        pos(gpu, step.pos),
        seq(gpu, step.seq),
        table(gpu, step.table),
        n_tokens(gpu, std::vector<int32_t>{static_cast<int32_t>(step.n_tokens())}),
        cache(gpu, step.cache_bytes()) {
    args.shape = {c.n_head,  c.n_head_kv, c.head_k,      c.head_v, static_cast<int32_t>(step.n_tokens()) + c.spare_tokens,
                  c.max_ctx, c.window,    c.window_kind, c.causal};
    args.q = q.get();
    args.k = c.store ? k.get() : nullptr;
    args.v = c.store && c.v_in_k == 0 ? v.get() : nullptr;
    args.out = out.get();
    args.q_stride = step.q_width();
    args.k_stride = step.k_width();
    args.v_stride = step.v_width();
    args.out_stride = step.out_width();
    args.kv = cache.get();
    args.k_row_bytes = step.layer().k_row_bytes;
    args.v_row_bytes = step.layer().v_row_bytes;
    args.v_offset = step.layer().v_offset;
    args.v_head_bytes = step.layer().v_head_bytes;
    args.block_bytes = step.layer().block_bytes;
    args.sinks = c.sinks ? sinks.get() : nullptr;
    args.pos = pos.get();
    args.seq = seq.get();
    args.block_table = table.get();
    args.n_tokens = n_tokens.get();
    args.max_blocks = step.max_blocks;
    args.scale = 0.0883f;
    args.softcap = c.softcap;
  }
  Device<float> q, k, v, sinks, out;
  Device<int32_t> pos, seq, table, n_tokens;
  Device<uint8_t> cache;
  cuda::AttentionArgs args{};
};

void launch(Gpu& gpu, int32_t kv_type, const cuda::AttentionArgs& args, const Device<uint8_t>& scratch) {
  Error error;
  const cuda::AttentionFunctions functions = functions_of(gpu, kv_type);
  const auto address = reinterpret_cast<cuda::CUdeviceptr>(scratch.get());
  if (cuda::launch_attention(gpu.driver, functions, gpu.stream, args, address, error) == STRATA_OK) return;
  std::printf("FAILED: %s\n", error.text);
  std::exit(1);
}

void test_case(Gpu& gpu, const Case& c, int32_t kv_type) {
  Step step(c, kv_type);
  OnGpu on(gpu, c, step);
  Device<uint8_t> scratch(gpu, cuda::attention_scratch_bytes(on.args.shape));
  launch(gpu, kv_type, on.args, scratch);
  if (c.store) step.store();
  const std::string name = std::string(c.what) + " kv " + std::to_string(kv_type);
  ++(cuda::attention_cut(on.args.shape).split ? launched_split() : launched_whole());
  same(name + " cache", on.cache.read(), step.cache_bytes());
  same_floats(name, on.out.read(), step.attend());
}

// One capture for up to 8 rows and 1,024 positions, replayed for steps of other rows, positions and sequences.
void test_graph(Gpu& gpu, int32_t kv_type) {
  const std::vector<std::vector<Rows>> steps{
      {{0, 700, 8}}, {{0, 0, 1}}, {{1, 130, 1}, {0, 999, 1}, {2, 63, 3}}, {{2, 64, 5}}};
  Case c{"graph", 8, 2, 64, 64, steps[0]};
  Step first(c, kv_type);
  Device<uint8_t> cache(gpu, int64_t{4} << 20);
  Device<int32_t> table(gpu, 4096);
  Device<float> q(gpu, 8 * first.q_width()), k(gpu, 8 * first.k_width()), v(gpu, 8 * first.v_width());
  OnGpu on(gpu, c, first);
  on.args.kv = cache.get();
  on.args.block_table = table.get();
  on.args.max_blocks = 20;
  on.args.q = q.get(), on.args.k = k.get(), on.args.v = v.get();
  Device<uint8_t> scratch(gpu, cuda::attention_scratch_bytes(on.args.shape));
  cuda::CUgraph graph = nullptr;
  cuda::CUgraphExec exec = nullptr;
  functions_of(gpu, kv_type);  // loading a module is no part of a capture
  gpu.CU(gpu.driver.cuStreamBeginCapture(gpu.stream, cuda::kCaptureThreadLocal));
  launch(gpu, kv_type, on.args, scratch);
  gpu.CU(gpu.driver.cuStreamEndCapture(gpu.stream, &graph));
  gpu.CU(gpu.driver.cuGraphInstantiate(&exec, graph, 0));
  for (const std::vector<Rows>& rows : steps) {
    c.rows = rows;
    Step step(c, kv_type);
    const auto put = [&](const auto* device, const auto& host) {
      gpu.CU(
          gpu.driver.cuMemcpyHtoD(reinterpret_cast<cuda::CUdeviceptr>(device), host.data(), host.size() * sizeof host[0]));
    };
    std::vector<int32_t> wide(4096, 0);  // the capture's max_blocks
    for (size_t i = 0; i < step.table.size(); ++i) {
      const auto width = static_cast<size_t>(step.max_blocks);
      wide[i / width * 20 + i % width] = step.table[i];
    }
    put(table.get(), wide), put(cache.get(), step.cache_bytes()), put(q.get(), step.q), put(k.get(), step.k);
    put(v.get(), step.v), put(on.pos.get(), step.pos), put(on.seq.get(), step.seq);
    put(on.n_tokens.get(), std::vector<int32_t>{static_cast<int32_t>(step.n_tokens())});
    gpu.CU(gpu.driver.cuCtxSynchronize());
    gpu.CU(gpu.driver.cuGraphLaunch(exec, gpu.stream));
    step.store();
    std::vector<float> out = on.out.read();
    out.resize(static_cast<size_t>(step.n_tokens() * step.out_width()));
    same_floats("graph kv " + std::to_string(kv_type), out, step.attend());
  }
  gpu.CU(gpu.driver.cuGraphExecDestroy(exec));
  gpu.CU(gpu.driver.cuGraphDestroy(graph));
}

std::vector<Case> short_cases() {
  std::vector<Case> cases;
  cases.push_back({"decode", 8, 2, 128, 128, {{0, 300, 1}}});
  cases.push_back({"first token", 4, 4, 64, 64, {{0, 0, 1}}});
  cases.push_back({"prompt", 6, 2, 64, 64, {{0, 30, 40}}});
  cases.push_back({"192 + 128", 4, 1, 192, 128, {{0, 190, 3}, {1, 5, 1}}});
  cases.push_back({"many heads", 64, 64, 32, 32, {{0, 130, 70}, {1, 64, 1}}});  // whole: enough blocks without splitting
  Case c{"sinks and window", 8, 1, 64, 64, {{0, 250, 5}, {1, 60, 1}}};
  c.window = 128, c.sinks = true, c.spare_tokens = 3;
  cases.push_back(c);
  c = {"latent", 16, 1, 576, 512, {{0, 130, 2}}};
  c.v_in_k = 1;
  cases.push_back(c);
  c = {"special values", 4, 2, 64, 64, {{0, 70, 3}, {1, 2, 2}}};
  c.specials = true;
  cases.push_back(c);
  c = {"no store, softcap", 4, 2, 64, 64, {{0, 100, 2}}};
  c.store = false, c.softcap = 5.0f;
  cases.push_back(c);
  return cases;
}

void add_masks(std::vector<Case>& cases) {
  for (const int32_t kind : {STRATA_WINDOW_STANDARD, STRATA_WINDOW_CHUNKED, STRATA_WINDOW_SYMMETRIC}) {
    for (const int32_t causal : {0, 1}) {
      for (const int32_t window : {0, 1, 50, 64, 129, 4096}) {
        Case c{"mask", 4, 2, 64, 64, {{0, 200, 33}, {2, 0, 7}, {1, 511, 1}, {3, 640, 20}}};
        c.window = window, c.window_kind = kind, c.causal = causal, c.sinks = window == 50;
        cases.push_back(c);
      }
    }
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = short_cases();
  add_masks(cases);
  for (int32_t group = 1; group <= 16; ++group) cases.push_back({"group", 2 * group, 2, 64, 64, {{0, 450, 1}, {1, 77, 3}}});
  for (const int32_t n : {1, 2, 3, 7, 16, 17, 64, 70}) {
    cases.push_back({"rows", 8, 2, 128, 128, {{0, 930, n}}});
    cases.push_back({"192 + 128 rows", 4, 4, 192, 128, {{0, 500, n}, {1, 0, 2}}});
  }
  Case c{"latent rows", 32, 1, 576, 512, {{0, 300, 9}, {1, 640, 1}, {2, 0, 3}}};
  c.v_in_k = 1;
  cases.push_back(c);
  c = {"two passes", 128, 1, 576, 512, {{0, 2497, 7}}};
  c.v_in_k = 1, c.max_ctx = 2560;
  cases.push_back(c);
  c = {"chunks of rows", 64, 4, 64, 64, {{1, 100, 1}, {0, 700, 20}, {2, 64, 1}}};
  c.max_ctx = 32768;
  cases.push_back(c);
  c = {"chunks of packs", 64, 32, 64, 64, {{0, 700, 11}, {1, 64, 12}}};
  c.max_ctx = 32768, c.spare_tokens = 9, c.sinks = true;
  cases.push_back(c);
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(argc, argv);
  const bool is_short = argc > 3 && std::strcmp(argv[3], "short") == 0;
  std::vector<Case> cases = is_short ? short_cases() : all_cases();
  for (const int32_t kv_type : {STRATA_KV_F32, STRATA_KV_F16, STRATA_KV_Q8_0}) {
    for (const Case& c : cases) test_case(gpu, c, kv_type);
    if (kv_type == STRATA_KV_Q8_0) continue;
    // Heads that no vector load fits; Q8_0 has none such.
    test_case(gpu, {"odd heads", 6, 3, 75, 45, {{0, 140, 5}, {1, 0, 1}}}, kv_type);
    test_case(gpu, {"heads of 4", 6, 3, 20, 12, {{0, 140, 5}, {1, 0, 1}}}, kv_type);
  }
  for (const int32_t kv_type : {STRATA_KV_F32, STRATA_KV_F16, STRATA_KV_Q8_0}) test_graph(gpu, kv_type);
  std::printf("%lld cases with split tiles, %lld without\n", static_cast<long long>(launched_split()),
              static_cast<long long>(launched_whole()));
  return finish();
}
