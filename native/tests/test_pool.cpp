// The pool and the engine's queue, meant for ThreadSanitizer: `cmake -DSTRATA_SANITIZE=thread -DSTRATA_TESTS=ON`.
//
// Prints one line for each check and returns the number of failures.
#include <poll.h>
#include <string.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "base/threads.h"
#include "strata.h"

namespace {

int failures = 0;

void expect(bool ok, const char* what) {
  if (!ok) ++failures;
  printf("%s: %s\n", ok ? "ok" : "FAILED", what);
}

using strata::Pool;

// ---- pool -----------------------------------------------------------------------------------------------------------

// Phases of a region see all writes of the phase before.
void barriers_order_writes(int32_t n_workers, int32_t spin_us) {
  strata::Error error;
  Pool pool;
  Pool::Config config;
  config.n_workers = n_workers;
  config.spin_us = spin_us;
  if (pool.open(config, error) != STRATA_OK) return expect(false, error.text);
  std::vector<int64_t> values(static_cast<size_t>(n_workers), 0);
  bool right = true;
  for (int64_t round = 1; round <= 200; ++round) {
    const int32_t status = pool.parallel([&](int32_t worker) {
      values[static_cast<size_t>(worker)] = round;
      if (!pool.barrier(worker)) return;
      int64_t sum = 0;
      for (int64_t v : values) sum += v;
      if (!pool.barrier(worker)) return;
      values[static_cast<size_t>(worker)] = sum;
    });
    right = right && status == STRATA_OK;
    for (int64_t v : values) right = right && v == round * n_workers;
  }
  expect(right, "barriers order writes");
}

void every_item_once(int32_t n_workers) {
  strata::Error error;
  Pool pool;
  Pool::Config config;
  config.n_workers = n_workers;
  if (pool.open(config, error) != STRATA_OK) return expect(false, error.text);
  bool right = true;
  for (int64_t n : {0, 1, 7, 64, 1001}) {
    std::vector<int32_t> seen(static_cast<size_t>(n), 0);
    right = right && pool.run(n, 3, [&](int64_t item, int32_t) { ++seen[static_cast<size_t>(item)]; }) == STRATA_OK;
    for (int32_t times : seen) right = right && times == 1;
    int64_t covered = 0;
    for (int32_t worker = 0; worker < n_workers; ++worker) {
      int64_t begin, end;
      pool.share(worker, n, 16, &begin, &end);
      right = right && begin == covered && end >= begin && (end == n || end % 16 == 0);
      covered = end;
    }
    right = right && covered == n;
  }
  expect(right, "every item runs once, shares are whole");
}

struct Told {
  Pool* pool;
  int32_t times;
};

void lost_worker(bool inside_barrier) {
  strata::Error error;
  Pool pool;
  Told told{&pool, 0};
  Pool::Config config;
  config.n_workers = 3;
  config.stall_ns = 50000000;
  config.on_broken = [](void* owner) {
    Told* t = static_cast<Told*>(owner);
    ++t->times;
    t->pool->test_block(0, false);  // comes back late
  };
  config.owner = &told;
  if (pool.open(config, error) != STRATA_OK) return expect(false, error.text);
  pool.test_block(2, false);
  const int32_t status = pool.parallel([&](int32_t worker) {
    if (inside_barrier && !pool.barrier(worker)) return;
  });
  expect(status == STRATA_E_DEADLINE && told.times == 1 && pool.broken(), "a lost worker breaks the pool once");
  expect(pool.parallel([](int32_t) {}) == STRATA_E_DEADLINE, "a broken pool opens no region");
}

// ---- engine ---------------------------------------------------------------------------------------------------------

constexpr int32_t kVocab = 32, kEmbd = 32, kBatch = 8;

// embed -> gather -> head, F32.
struct TinyModel {
  strata_tensor tensors[2] = {{0, STRATA_ROLE_MATRIX, kEmbd, kVocab, 1, 0, -1, 0, 0, 0, 4096},
                              {0, STRATA_ROLE_MATRIX, kEmbd, kVocab, 1, 0, -1, 0, 0, 4096, 4096}};
  strata_buffer buffers[3] = {{0, kEmbd, kEmbd, STRATA_ROWS_TOKENS, 0},
                              {4096, kEmbd, kEmbd, STRATA_ROWS_OUTPUTS, 0},
                              {8192, kVocab, kVocab, STRATA_ROWS_OUTPUTS, 0}};
  strata_op ops[3] = {};
  strata_model* model = nullptr;

  static void absent(strata_op& op) {
    op.layer = -1;
    for (int32_t& id : op.in) id = -1;
    for (int32_t& id : op.out) id = -1;
    for (int32_t& id : op.weight) id = -1;
  }

  bool open() {
    for (strata_op& op : ops) absent(op);
    ops[0].kind = STRATA_OP_EMBED;
    ops[0].out[0] = 0;
    ops[0].weight[0] = 0;
    ops[0].f[STRATA_EMBED_F_SCALE] = 1;
    ops[1].kind = STRATA_OP_GATHER;
    ops[1].in[0] = 0;
    ops[1].out[0] = 1;
    ops[1].i[STRATA_GATHER_I_WIDTH] = kEmbd;
    ops[2].kind = STRATA_OP_HEAD;
    ops[2].in[0] = 1;
    ops[2].out[0] = 2;
    ops[2].weight[0] = 1;
    ops[2].f[STRATA_HEAD_F_SCALE] = 1;
    strata_model_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.abi_version = STRATA_ABI_VERSION;
    desc.n_tensors = 2;
    desc.n_buffers = 3;
    desc.n_ops = 3;
    desc.n_vocab = kVocab;
    desc.n_embd = kEmbd;
    desc.n_batch = desc.n_outputs_max = kBatch;
    desc.weights_bytes = 8192;
    desc.activations_bytes = 12288;
    desc.tensors = tensors;
    desc.buffers = buffers;
    desc.ops = ops;
    if (strata_model_open(&desc, &model) != STRATA_OK || strata_model_reserve(model) != STRATA_OK) return false;
    // The identity, so that the largest logit is the token itself.
    std::vector<float> rows(kVocab * kEmbd, 0.0f);
    for (int32_t i = 0; i < kVocab; ++i) rows[static_cast<size_t>(i * kEmbd + i)] = 1.0f;
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(rows.data());
    for (int32_t tensor : {0, 1}) {
      if (strata_model_fill(model, tensor, 0, 0, kVocab, bytes, kVocab * kEmbd * 4) != STRATA_OK) return false;
    }
    return true;
  }
};

struct Step {
  int32_t token = 0, pos = 0, seq = 0, row = 0, block = 0;
  strata_sample sample = {};
  strata_sampled sampled = {};
  strata_step step = {};

  void fill(int32_t next) {
    token = next;
    sample = {};
    sample.top_p = sample.typical_p = sample.repeat_penalty = 1;
    sample.mask_first = -1;
    sample.n_logprobs = -1;
    sample.min_keep = 1;
    step = {};
    step.struct_size = sizeof step;
    step.n_tokens = step.n_seqs = step.n_outputs = step.n_samples = step.max_blocks = 1;
    step.token = &token;
    step.pos = &pos;
    step.seq = &seq;
    step.block_table = &block;
    step.output_row = &row;
    step.samples = &sample;
    step.sampled_out = &sampled;
  }
};

strata_engine_config engine_config(int32_t n_threads) {
  strata_engine_config config = {};
  config.struct_size = sizeof config;
  config.n_threads = n_threads;
  config.n_kv_blocks = config.max_seqs = 1;
  config.tier = -1;
  config.spin_us = 50;
  config.queue_steps = 4;
  return config;
}

// One thread keeps four steps in flight and polls, two others abort and read the state.
void queue_under_load(TinyModel& tiny, int32_t n_threads) {
  strata_engine_config config = engine_config(n_threads);
  strata_engine* engine = nullptr;
  if (strata_engine_open(tiny.model, &config, &engine) != STRATA_OK) return expect(false, strata_last_error());
  std::atomic<bool> over{false};
  std::thread aborter([&] {
    while (!over.load()) {
      strata_engine_abort(engine, 0);
      std::this_thread::yield();
    }
  });
  std::thread reader([&] {
    while (!over.load()) {
      strata_engine_stats stats = {};
      stats.struct_size = sizeof stats;
      strata_engine_stats_read(engine, &stats);
      std::this_thread::yield();
    }
  });
  constexpr int32_t kSteps = 400;
  Step steps[4];
  bool right = true;
  int32_t submitted = 0, finished = 0, drawn = 0;
  pollfd readable = {strata_engine_eventfd(engine), POLLIN, 0};
  while (finished < kSteps) {
    while (submitted < kSteps && submitted - finished < 4) {
      uint64_t ticket;
      steps[submitted % 4].fill(submitted % kVocab);
      right = right && strata_engine_submit(engine, &steps[submitted % 4].step, &ticket) == STRATA_OK;
      ++submitted;
    }
    poll(&readable, 1, -1);
    strata_completion done[4];
    int32_t n = 0;
    right = right && strata_engine_poll(engine, done, 2, &n) == STRATA_OK;
    for (int32_t i = 0; i < n; ++i, ++finished) {
      right = right && done[i].ticket == static_cast<uint64_t>(finished + 1);
      if (done[i].status == STRATA_OK) {
        ++drawn;
        right = right && steps[finished % 4].sampled.token == finished % kVocab;
      } else {
        right = right && done[i].status == STRATA_E_CANCELLED;
      }
    }
  }
  over.store(true);
  aborter.join();
  reader.join();
  printf("    %d of %d steps were not aborted\n", drawn, kSteps);
  expect(right && strata_engine_close(engine) == STRATA_OK, "completions arrive in order under aborts");
}

void close_while_running(TinyModel& tiny) {
  for (int32_t round = 0; round < 20; ++round) {
    strata_engine_config config = engine_config(2);
    strata_engine* engine = nullptr;
    if (strata_engine_open(tiny.model, &config, &engine) != STRATA_OK) return expect(false, strata_last_error());
    Step steps[4];
    uint64_t ticket;
    for (int32_t i = 0; i < 4; ++i) {
      steps[i].fill(i);
      strata_engine_submit(engine, &steps[i].step, &ticket);
    }
    if (strata_engine_close(engine) != STRATA_OK) return expect(false, strata_last_error());
  }
  expect(true, "an engine closes while steps run");
}

}  // namespace

int main() {
  for (int32_t n_workers : {1, 2, 4}) {
    barriers_order_writes(n_workers, -1);
    barriers_order_writes(n_workers, 0);
    every_item_once(n_workers);
  }
  lost_worker(false);
  lost_worker(true);
  TinyModel tiny;
  expect(tiny.open(), "a tiny model opens");
  if (failures == 0) {
    queue_under_load(tiny, 1);
    queue_under_load(tiny, 3);
    close_while_running(tiny);
  }
  strata_model_close(tiny.model);
  printf("%d failures\n", failures);
  return failures;
}
