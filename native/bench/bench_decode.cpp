// Where a step's time goes: bench_decode [layers=4] [threads=2] [tokens=1] [position=0] [steps=32] [shape=qwen3-30b].
//
// Builds a plan of a public model's shape (random weights, routing chosen by the random router), runs steps of `tokens`
// rows that start at `position`, and prints for every op kind: calls, microseconds per step, share, and for the step:
// bytes of weights and GB/s. The cache before `position` holds equal keys and values.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/arena.h"
#include "base/clock.h"
#include "engine/kv.h"
#include "engine/ops.h"
#include "engine/state.h"
#include "model/model.h"

namespace {
using namespace strata;

constexpr int32_t kF32 = 0, kQ8 = 8, kQ4K = 12, kQ6K = 14, kMxfp4 = 39;

struct Shape {
  const char* name;
  int32_t n_embd, n_head, n_head_kv, head, n_expert, n_used, n_ff, n_vocab;
  int32_t dense_type, value_type, up_type, down_type, head_type;
  int32_t glu;
};
const Shape kShapes[] = {
    {"qwen3-30b", 2048, 32, 4, 128, 128, 8, 768, 151936, kQ4K, kQ6K, kQ4K, kQ6K, kQ6K, STRATA_GLU_SILU},
    {"tiny", 256, 8, 2, 32, 8, 2, 256, 512, kQ4K, kQ6K, kQ4K, kQ6K, kQ6K, STRATA_GLU_SILU},  // for sanitizers
    {"gpt-oss-20b", 2880, 64, 8, 64, 32, 4, 2880, 201088, kQ8, kQ8, kMxfp4, kMxfp4, kQ8, STRATA_GLU_SWIGLU_OAI},
};

// The plan under construction.
struct Tables {
  const Shape& shape;
  int32_t n_batch;
  std::vector<strata_tensor> tensors;
  std::vector<strata_buffer> buffers;
  std::vector<strata_expert_set> sets;
  std::vector<strata_kv_layer> kv_layers;
  std::vector<strata_op> ops;
  int64_t weights = 0, activations = 0;

  int32_t tensor(int32_t type, int32_t role, int64_t n_cols, int64_t n_rows, int64_t n_mats, int64_t offset,
                 int64_t stride) {
    strata_tensor t{};
    t.type = type;
    t.role = role;
    t.n_cols = n_cols;
    t.n_rows = n_rows;
    t.n_mats = n_mats;
    t.source_first = -1;
    t.arena_offset = offset;
    t.mat_stride_bytes = stride;
    tensors.push_back(t);
    return static_cast<int32_t>(tensors.size()) - 1;
  }
  int32_t matrix(int32_t type, int64_t n_rows, int64_t n_cols) {
    const int64_t bytes = cpu::packed_bytes(type, n_rows, n_cols), offset = weights;
    weights += bytes;
    return tensor(type, STRATA_ROLE_MATRIX, n_cols, n_rows, 1, offset, bytes);
  }
  int32_t vector(int64_t n) {
    const int64_t offset = weights;
    weights += (n * 4 + 63) / 64 * 64;
    return tensor(kF32, STRATA_ROLE_VECTOR, n, 1, 1, offset, n * 4);
  }
  int32_t buffer(int32_t width, int32_t rows = STRATA_ROWS_TOKENS) {
    buffers.push_back({activations, width, width, rows, 0});
    activations += (int64_t{n_batch} * width * 4 + 63) / 64 * 64;
    return static_cast<int32_t>(buffers.size()) - 1;
  }
  strata_op& op(int32_t kind, std::vector<int32_t> in, std::vector<int32_t> out, std::vector<int32_t> weight = {}) {
    strata_op op{};
    op.kind = kind;
    const auto fill = [](int32_t* to, int32_t n, const std::vector<int32_t>& from) {
      for (int32_t k = 0; k < n; ++k) to[k] = k < static_cast<int32_t>(from.size()) ? from[static_cast<size_t>(k)] : -1;
    };
    fill(op.in, STRATA_OP_N_IN, in);
    fill(op.out, STRATA_OP_N_OUT, out);
    fill(op.weight, STRATA_OP_N_WEIGHT, weight);
    ops.push_back(op);
    return ops.back();
  }
  void norm(int32_t buffer_in, int32_t buffer_out, int32_t n_vec, int32_t width) {
    strata_op& o = op(STRATA_OP_NORM, {buffer_in}, {buffer_out}, {vector(width)});
    o.i[STRATA_NORM_I_N_VEC] = n_vec;
    o.i[STRATA_NORM_I_WIDTH] = o.i[STRATA_NORM_I_IN_STRIDE] = o.i[STRATA_NORM_I_OUT_STRIDE] = width;
    o.f[STRATA_NORM_F_EPS] = 1e-6f;
  }
  void rope(int32_t b, int32_t n_head) {
    strata_op& o = op(STRATA_OP_ROPE, {b}, {b});
    o.i[STRATA_ROPE_I_N_HEAD] = n_head;
    o.i[STRATA_ROPE_I_STRIDE] = shape.head;
  }
  void add(int32_t a, int32_t b) {
    strata_op& o = op(STRATA_OP_ADD, {a, b}, {a});
    o.i[STRATA_ADD_I_WIDTH] = shape.n_embd;
    o.f[STRATA_ADD_F_A] = o.f[STRATA_ADD_F_B] = 1.0f;
  }
  int32_t experts() {
    strata_expert_set set{};
    set.n_expert = shape.n_expert;
    set.n_used = shape.n_used;
    set.glu = shape.glu;
    set.n_in = set.n_out = shape.n_embd;
    set.n_ff = shape.n_ff;
    set.p0 = 1.702f;
    set.p1 = 7.0f;
    set.gate_bias = set.up_bias = set.down_bias = set.gate_scale = set.up_scale = set.down_scale = -1;
    set.arena_offset = weights;
    const int64_t up = cpu::packed_bytes(shape.up_type, shape.n_ff, shape.n_embd);
    const int64_t down = cpu::packed_bytes(shape.down_type, shape.n_embd, shape.n_ff);
    set.slot_bytes = 2 * up + down;
    const auto part = [&](int32_t type, int64_t n_cols, int64_t n_rows, int64_t at) {
      return tensor(type, STRATA_ROLE_EXPERT_MATRIX, n_cols, n_rows, shape.n_expert, weights + at, set.slot_bytes);
    };
    set.gate = part(shape.up_type, shape.n_embd, shape.n_ff, 0);
    set.up = part(shape.up_type, shape.n_embd, shape.n_ff, up);
    set.down = part(shape.down_type, shape.n_ff, shape.n_embd, 2 * up);
    weights += set.slot_bytes * shape.n_expert;
    sets.push_back(set);
    return static_cast<int32_t>(sets.size()) - 1;
  }
};

struct Buffers {
  int32_t x, normed, q, k, v, attn, projected, logits, selection, rows, combined;
};

void add_layer(Tables& t, const Buffers& b) {
  const Shape& s = t.shape;
  t.norm(b.x, b.normed, 1, s.n_embd);
  const int32_t q = t.matrix(s.dense_type, s.n_head * s.head, s.n_embd),
                k = t.matrix(s.dense_type, s.n_head_kv * s.head, s.n_embd);
  t.op(STRATA_OP_LINEAR, {b.normed}, {b.q, b.k, b.v}, {q, k, t.matrix(s.value_type, s.n_head_kv * s.head, s.n_embd)}).i[0] =
      3;
  t.norm(b.q, b.q, s.n_head, s.head);
  t.norm(b.k, b.k, s.n_head_kv, s.head);
  t.rope(b.q, s.n_head);
  t.rope(b.k, s.n_head_kv);
  strata_op& a = t.op(STRATA_OP_ATTENTION, {b.q, b.k, b.v}, {b.attn});
  a.i[STRATA_ATTENTION_I_KV_LAYER] = static_cast<int32_t>(t.kv_layers.size());
  a.i[STRATA_ATTENTION_I_N_HEAD] = s.n_head;
  a.i[STRATA_ATTENTION_I_CAUSAL] = 1;
  a.f[STRATA_ATTENTION_F_SCALE] = 0.1f;
  t.kv_layers.push_back({s.n_head_kv, s.head, s.head, 0});
  t.op(STRATA_OP_LINEAR, {b.attn}, {b.projected}, {t.matrix(s.dense_type, s.n_embd, s.n_head * s.head)}).i[0] = 1;
  t.add(b.x, b.projected);
  t.norm(b.x, b.normed, 1, s.n_embd);
  t.op(STRATA_OP_LINEAR, {b.normed}, {b.logits}, {t.matrix(kF32, s.n_expert, s.n_embd)}).i[0] = 1;
  strata_op& r = t.op(STRATA_OP_ROUTER, {b.logits}, {b.selection});
  r.i[STRATA_ROUTER_I_N_EXPERT] = s.n_expert;
  r.i[STRATA_ROUTER_I_N_USED] = s.n_used;
  r.i[STRATA_ROUTER_I_SCORES] = STRATA_SCORES_SOFTMAX;
  r.i[STRATA_ROUTER_I_NORMALIZE] = 1;
  r.f[STRATA_ROUTER_F_SCALE] = 1.0f;
  t.op(STRATA_OP_EXPERTS, {b.normed, b.selection}, {b.rows}).i[0] = t.experts();
  strata_op& c = t.op(STRATA_OP_COMBINE, {b.rows, b.selection}, {b.combined});
  c.i[STRATA_COMBINE_I_N_USED] = s.n_used;
  c.i[STRATA_COMBINE_I_WIDTH] = s.n_embd;
  t.add(b.x, b.combined);
}

void build(Tables& t, int32_t n_layer) {
  const Shape& s = t.shape;
  const Buffers b{t.buffer(s.n_embd),
                  t.buffer(s.n_embd),
                  t.buffer(s.n_head * s.head),
                  t.buffer(s.n_head_kv * s.head),
                  t.buffer(s.n_head_kv * s.head),
                  t.buffer(s.n_head * s.head),
                  t.buffer(s.n_embd),
                  t.buffer(s.n_expert),
                  t.buffer(2 * s.n_used),
                  t.buffer(s.n_used * s.n_embd),
                  t.buffer(s.n_embd)};
  t.op(STRATA_OP_EMBED, {}, {b.x}, {t.matrix(s.head_type, s.n_vocab, s.n_embd)}).f[0] = 1.0f;
  for (int32_t l = 0; l < n_layer; ++l) add_layer(t, b);
  const int32_t last = t.buffer(s.n_embd, STRATA_ROWS_OUTPUTS), logits = t.buffer(s.n_vocab, STRATA_ROWS_OUTPUTS);
  t.op(STRATA_OP_GATHER, {b.x}, {last}).i[0] = s.n_embd;
  t.op(STRATA_OP_HEAD, {last}, {logits}, {t.matrix(s.head_type, s.n_vocab, s.n_embd)}).f[0] = 1.0f;
}

// File rows with random codes and small scales, the same for every group of rows.
std::vector<uint8_t> random_rows(const strata_tensor& tensor, int64_t n_rows) {
  const cpu::TypeKernels& facts = *cpu::type_kernels(cpu::Tier::scalar, tensor.type);
  const int64_t n_blocks = tensor.n_cols / facts.block * n_rows;
  std::vector<uint8_t> bytes(static_cast<size_t>(n_blocks * facts.block_bytes));
  uint32_t state = 12345;
  for (uint8_t& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
  }
  const uint16_t half = 0x1400;  // 2^-10
  for (int64_t i = 0; i < n_blocks; ++i) {
    uint8_t* block = bytes.data() + i * facts.block_bytes;
    if (tensor.type == kF32) {
      const float value = static_cast<float>(static_cast<int>(block[1]) - 128) / 1024.0f;
      memcpy(block, &value, 4);
    } else if (tensor.type == kMxfp4) {
      block[0] = 118;
    } else {
      memcpy(tensor.type == kQ6K ? block + 208 : block, &half, 2);
      if (tensor.type == kQ4K) memcpy(block + 2, &half, 2);
    }
  }
  return bytes;
}

bool fill(Model& model, Error& error) {
  if (model.weights.reserve(error) != STRATA_OK) return false;
  for (int32_t id = 0; id < model.plan.tensors.size(); ++id) {
    const strata_tensor& tensor = model.plan.tensors[id];
    const int64_t step = tensor.n_rows < 256 ? tensor.n_rows : 256;
    const std::vector<uint8_t> rows = random_rows(tensor, step);
    for (int64_t m = 0; m < tensor.n_mats; ++m) {
      for (int64_t row = 0; row < tensor.n_rows; row += step) {
        const int64_t n = tensor.n_rows - row < step ? tensor.n_rows - row : step;
        const int64_t bytes = static_cast<int64_t>(rows.size()) / step * n;
        if (model.weights.fill(id, m, row, n, rows.data(), bytes, error) != STRATA_OK) return false;
      }
    }
  }
  return true;
}

struct Timing {
  int64_t calls = 0, ns = 0;
};

struct Options {
  int32_t layers, threads, tokens, position, steps;
};

int run(const Tables& t, Model& model, const Options& o) {
  Error error;
  Pool pool;
  KvStore kv;
  StateStore states;  // the shapes here have none
  const int32_t n_blocks = (o.position + o.tokens + o.steps) / 64 + 1;
  Pool::Config config;
  config.n_workers = o.threads;
  if (pool.open(config, error) != STRATA_OK || kv.open(model.plan, STRATA_KV_F16, n_blocks, error) != STRATA_OK) return 1;
  for (int32_t l = 0; l < model.plan.kv_layers.size(); ++l) {
    for (int32_t b = 0; b < n_blocks; ++b) memset(kv.keys(l, b, 0), 0x2c, static_cast<size_t>(kv.layer(l).block_bytes));
  }
  const ScratchQuery query{model, o.tokens, o.tokens, o.threads, n_blocks, 1, cpu::tier_best()};
  int64_t scratch_bytes = 0;
  for (const strata_op& op : model.plan.ops) {
    const OpEntry& entry = *op_function(op.kind);
    if (entry.scratch_bytes != nullptr) scratch_bytes = std::max(scratch_bytes, entry.scratch_bytes(query, op));
  }
  Arena activations, scratch, tables;
  if (!activations.open(t.activations) || !scratch.open(scratch_bytes) || !tables.open(step_tables_bytes(query))) return 1;
  const size_t n_rows = static_cast<size_t>(o.tokens);
  std::vector<int32_t> token(n_rows), pos(n_rows), seq(n_rows), blocks(static_cast<size_t>(n_blocks));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  const std::atomic<bool> stop{false};
  Timing by_kind[STRATA_OP_TEMPERATURE + 1];
  int64_t total = 0;
  StepCounters counters;
  for (int32_t s = -2; s < o.steps; ++s) {  // two to warm up
    const int32_t output = o.tokens - 1;
    for (int32_t i = 0; i < o.tokens; ++i) {
      token[static_cast<size_t>(i)] = static_cast<int32_t>((static_cast<uint32_t>(s * 977 + i) * 2654435761u >> 8) %
                                                           static_cast<uint32_t>(t.shape.n_vocab));
      pos[static_cast<size_t>(i)] = o.position + i + (o.tokens == 1 && s > 0 ? s : 0);
    }
    strata_step step{};
    step.n_tokens = o.tokens;
    step.n_seqs = step.n_outputs = 1;
    step.max_blocks = n_blocks;
    step.token = token.data();
    step.pos = pos.data();
    step.seq = seq.data();
    step.block_table = blocks.data();
    step.output_row = &output;
    StepContext ctx{
        model, step, pool,          kv, states, cpu::tier_best(), activations.data(), scratch.data(), scratch_bytes,
        stop,  0,    tables.data(), {}, {}};
    const int64_t start = now_ns();
    if (step_tables_fill(ctx) != STRATA_OK) return 1;
    for (const strata_op& op : model.plan.ops) {
      const int64_t before = now_ns();
      ctx.scratch_used = 0;
      if (op_function(op.kind)->run(ctx, op) != STRATA_OK) {
        printf("%s: %s\n", op_name(op.kind), ctx.error.text);
        return 1;
      }
      if (s < 0) continue;
      by_kind[op.kind].ns += now_ns() - before;
      ++by_kind[op.kind].calls;
    }
    if (s >= 0) total += now_ns() - start;
    counters = ctx.counters;
  }
  for (int32_t kind = 1; kind <= STRATA_OP_TEMPERATURE; ++kind) {
    const Timing& timing = by_kind[kind];
    if (timing.calls == 0) continue;
    printf("%-12s %4" PRId64 " a step %10.1f us %5.1f %% %8.2f us a call\n", op_name(kind), timing.calls / o.steps,
           static_cast<double>(timing.ns) / 1e3 / o.steps,
           100.0 * static_cast<double>(timing.ns) / static_cast<double>(total),
           static_cast<double>(timing.ns) / 1e3 / static_cast<double>(timing.calls));
  }
  const double step_ns = static_cast<double>(total) / o.steps;
  printf("%s, %d layers, %d threads, %d tokens at %d: %.3f ms a step, %.1f tok/s, %.1f MB of weights, %.2f GB/s\n",
         t.shape.name, o.layers, o.threads, o.tokens, o.position, step_ns / 1e6, o.tokens * 1e9 / step_ns,
         static_cast<double>(counters.weight_bytes) / 1e6, static_cast<double>(counters.weight_bytes) / step_ns);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int k, int32_t otherwise) { return argc > k ? atoi(argv[k]) : otherwise; };
  const Options options{number(1, 4), number(2, 2), number(3, 1), number(4, 0), number(5, 32)};
  const Shape* shape = &kShapes[0];
  for (const Shape& s : kShapes) shape = argc > 6 && strcmp(argv[6], s.name) == 0 ? &s : shape;
  strata::set_float_mode();
  Tables t{*shape, options.tokens, {}, {}, {}, {}, {}};
  build(t, options.layers);
  std::vector<double> freqs(static_cast<size_t>(shape->head / 2), 0.5);
  const strata_rope rope{STRATA_ROPE_NEOX, shape->head, 0, -1, 1.0f, 0};
  strata_model_desc desc{};
  desc.struct_size = sizeof desc;
  desc.abi_version = STRATA_ABI_VERSION;
  desc.n_tensors = static_cast<int32_t>(t.tensors.size());
  desc.n_buffers = static_cast<int32_t>(t.buffers.size());
  desc.n_ropes = 1;
  desc.n_freqs = static_cast<int32_t>(freqs.size());
  desc.n_kv_layers = static_cast<int32_t>(t.kv_layers.size());
  desc.n_expert_sets = static_cast<int32_t>(t.sets.size());
  desc.n_ops = static_cast<int32_t>(t.ops.size());
  desc.n_layer = options.layers;
  desc.n_vocab = shape->n_vocab;
  desc.n_embd = shape->n_embd;
  desc.n_batch = desc.n_outputs_max = options.tokens;
  desc.weights_bytes = t.weights;
  desc.activations_bytes = t.activations;
  desc.tensors = t.tensors.data();
  desc.buffers = t.buffers.data();
  desc.ropes = &rope;
  desc.freqs = freqs.data();
  desc.kv_layers = t.kv_layers.data();
  desc.expert_sets = t.sets.data();
  desc.ops = t.ops.data();
  strata::Model model;
  strata::Error error;
  if (strata::plan_open(desc, model.plan, error) != STRATA_OK || !fill(model, error)) {
    printf("%s\n", error.text);
    return 1;
  }
  return run(t, model, options);
}
