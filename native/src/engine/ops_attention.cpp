// ATTENTION: stores keys and values of the step's rows in the cache, then attends.
//
// Work is cut into jobs: a run of rows of one sequence, one key-value head, up to kAttnQueries queries (rows times heads
// of its group), which share every cache row they read. With enough jobs each worker takes whole jobs. With few (decode)
// all workers share each job: tiles for the scores and exponentials, dimensions for the values, a barrier between.
// Shapes: q [rows][n_head][head_k], k [rows][n_head_kv][head_k], v [rows][n_head_kv][head_v], out [rows][n_head][head_v].
#include <string.h>

#include "cpu/attention.h"
#include "engine/kv.h"
#include "engine/op_split.h"
#include "engine/ops.h"

namespace strata {
namespace {

using cpu::AttnJob;
using cpu::kAttnQueries;
using cpu::kAttnTile;

constexpr int64_t kSplitTiles = 4;  // below it a job is too short to be shared

int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max64(int64_t a, int64_t b) { return a < b ? b : a; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of one sequence that share jobs.
struct RowRun {
  int32_t row, n_rows;
  int32_t seq;
  int32_t seq_high;  // end of the sequence's positions, this step's rows included
};

// Scratch of one job in flight; n_tiles as planned for the longest sequence.
struct JobMemory {
  float* s;
  float* tile_max;
  float* tile_sum;
  float* q;
  float* out;
  int64_t* low;
  int64_t* high;
  const int32_t** kept;
};

struct Shape {
  int64_t n_head, n_head_kv, group;
  int64_t job_heads;  // heads of one job
  int64_t n_parts;    // jobs that a group is cut into
  int64_t job_rows;
  int64_t head_k, head_v;

  explicit Shape(const Plan& plan, const strata_op& op) {
    const strata_kv_layer& layer = plan.kv_layers[op.i[STRATA_ATTENTION_I_KV_LAYER]];
    n_head = op.i[STRATA_ATTENTION_I_N_HEAD];
    n_head_kv = layer.n_head_kv;
    group = n_head / n_head_kv;
    n_parts = ceil_div(group, kAttnQueries);
    job_heads = ceil_div(group, n_parts);
    job_rows = kAttnQueries / job_heads;
    head_k = layer.head_k;
    head_v = layer.head_v;
  }
};

class Attention {
 public:
  Attention(StepContext& ctx, const strata_op& op)
      : ctx_(ctx), op_(op), layer_(op.i[STRATA_ATTENTION_I_KV_LAYER]), shape_(ctx.plan(), op) {}

  Status run() {
    if (op_.in[1] >= 0) STRATA_TRY(store());
    STRATA_TRY(find_runs());
    if (!take_memory()) return ctx_.error.status;
    const int64_t n_jobs = n_runs_ * shape_.n_head_kv * shape_.n_parts, n_workers = ctx_.n_workers();
    if (n_workers == 1 || n_jobs >= 2 * n_workers || n_jobs % n_workers == 0 || max_tiles_ < kSplitTiles) {
      return run_whole(n_jobs);
    }
    for (int64_t first = 0; first < n_jobs; first += n_workers)
      STRATA_TRY(run_shared(first, min64(n_workers, n_jobs - first)));
    return STRATA_OK;
  }

 private:
  const int32_t* block_table(int32_t seq) const { return ctx_.step.block_table + int64_t{seq} * ctx_.step.max_blocks; }

  Status store() {
    const cpu::VecMath& vec = *cpu::vec_math(ctx_.tier);
    const KvLayer& layer = ctx_.kv.layer(layer_);
    const int32_t kv_type = ctx_.kv.type();
    return for_rows(ctx_, ctx_.step.n_tokens, shape_.n_head_kv * (shape_.head_k + shape_.head_v), [&](int64_t t) {
      const int64_t pos = ctx_.step.pos[t];
      const int32_t block = block_table(ctx_.step.seq[t])[pos / kAttnTile];
      const float* k = ctx_.row(op_.in[1], t);
      const float* v = op_.in[2] < 0 ? nullptr : ctx_.row(op_.in[2], t);
      for (int64_t h = 0; h < shape_.n_head_kv; ++h) {
        vec.kv_store(kv_type, k + h * shape_.head_k, ctx_.kv.keys(layer_, block, h) + pos % kAttnTile * layer.k_row_bytes,
                     shape_.head_k);
        if (v == nullptr) continue;
        vec.kv_store(kv_type, v + h * shape_.head_v, ctx_.kv.values(layer_, block, h) + pos % kAttnTile * layer.v_row_bytes,
                     shape_.head_v);
      }
    });
  }

  // Keys that the query at `pos` sees, of the positions [0, seq_high) of its sequence.
  void visible(int64_t pos, int64_t seq_high, int64_t& low, int64_t& high) const {
    const int64_t window = op_.i[STRATA_ATTENTION_I_WINDOW];
    low = 0;
    high = op_.i[STRATA_ATTENTION_I_CAUSAL] != 0 ? pos + 1 : seq_high;
    if (window == 0) return;
    switch (op_.i[STRATA_ATTENTION_I_WINDOW_KIND]) {
      case STRATA_WINDOW_STANDARD:
        low = max64(0, pos - window + 1);
        return;
      case STRATA_WINDOW_CHUNKED:
        low = pos / window * window;
        return;
      default:
        low = max64(0, pos - window / 2);
        high = min64(high, pos + window / 2 + 1);
    }
  }

  // Cuts the step into runs, and finds the longest range of tiles.
  Status find_runs() {
    const strata_step& step = ctx_.step;
    const KvLayer& layer = ctx_.kv.layer(layer_);
    runs_ = ctx_.scratch_array<RowRun>(step.n_tokens);
    if (runs_ == nullptr) return ctx_.error.status;
    for (int32_t first = 0, end; first < step.n_tokens; first = end) {
      for (end = first + 1; end < step.n_tokens && step.seq[end] == step.seq[first];) ++end;
      for (int32_t row = first; row < end; row += static_cast<int32_t>(shape_.job_rows)) {
        const RowRun run{row, static_cast<int32_t>(min64(shape_.job_rows, end - row)), step.seq[first],
                         step.pos[end - 1] + 1};
        int64_t low, high;
        run_keys(run, low, high);
        max_tiles_ = max64(max_tiles_, ceil_div(high, kAttnTile) - low / kAttnTile);
        ctx_.counters.kv_bytes += (high - low) * shape_.n_head_kv *
                                  (layer.k_row_bytes + (ctx_.plan().kv_layers[layer_].v_in_k == 1 ? 0 : layer.v_row_bytes));
        runs_[n_runs_++] = run;
      }
    }
    if (max_tiles_ <= ctx_.kv.n_blocks()) return STRATA_OK;
    return ctx_.error.fail(STRATA_E_ARGUMENT, "a sequence names %lld KV blocks; the cache has %d",
                           static_cast<long long>(max_tiles_), ctx_.kv.n_blocks());
  }
  void run_keys(const RowRun& run, int64_t& low, int64_t& high) const {
    int64_t unused;
    visible(ctx_.step.pos[run.row], run.seq_high, low, unused);
    visible(ctx_.step.pos[run.row + run.n_rows - 1], run.seq_high, unused, high);
  }

  bool take_memory() {
    const int64_t n = ctx_.n_workers();
    memory_ = ctx_.scratch_array<JobMemory>(n);
    for (int64_t k = 0; memory_ != nullptr && k < n; ++k) {
      JobMemory& m = memory_[k];
      m.s = ctx_.scratch_array<float>(kAttnQueries * max_tiles_ * kAttnTile);
      m.tile_max = ctx_.scratch_array<float>(kAttnQueries * max_tiles_);
      m.tile_sum = ctx_.scratch_array<float>(kAttnQueries * max_tiles_);
      m.q = ctx_.scratch_array<float>(kAttnQueries * shape_.head_k);
      m.out = ctx_.scratch_array<float>(kAttnQueries * shape_.head_v);
      m.low = ctx_.scratch_array<int64_t>(kAttnQueries);
      m.high = ctx_.scratch_array<int64_t>(kAttnQueries);
      m.kept = ctx_.scratch_array<const int32_t*>(kAttnQueries);
      if (m.kept == nullptr) return false;
    }
    return memory_ != nullptr;
  }

  // Job `index`, its queries copied next to each other.
  AttnJob open_job(int64_t index, const JobMemory& memory) const {
    const int64_t part = index % shape_.n_parts, h_kv = index / shape_.n_parts % shape_.n_head_kv;
    const RowRun& run = runs_[index / shape_.n_parts / shape_.n_head_kv];
    const KvLayer& layer = ctx_.kv.layer(layer_);
    const float* sinks = ctx_.vector(op_.weight[0]);
    const int64_t head = h_kv * shape_.group + part * shape_.job_heads;
    AttnJob job{};
    job.vec = cpu::vec_math(ctx_.tier);
    job.kv_type = ctx_.kv.type();
    job.n_dim_k = shape_.head_k;
    job.n_dim_v = shape_.head_v;
    job.k = ctx_.kv.keys(layer_, 0, h_kv);
    job.v = ctx_.kv.values(layer_, 0, h_kv);
    job.block_bytes = layer.block_bytes;
    job.k_row_bytes = layer.k_row_bytes;
    job.v_row_bytes = layer.v_row_bytes;
    job.blocks = block_table(run.seq);
    job.n_rows = run.n_rows;
    job.n_heads = min64(shape_.job_heads, shape_.group - part * shape_.job_heads);
    run_keys(run, job.key_low, job.key_high);
    job.first_tile = job.key_low / kAttnTile;
    job.n_tiles = ceil_div(job.key_high, kAttnTile) - job.first_tile;
    job.scale = op_.f[STRATA_ATTENTION_F_SCALE];
    job.softcap = op_.f[STRATA_ATTENTION_F_SOFTCAP];
    job.sinks = sinks == nullptr ? nullptr : sinks + head;
    job.low = memory.low;
    job.high = memory.high;
    job.kept = op_.in[3] < 0 ? nullptr : memory.kept;
    job.q = memory.q;
    job.s = memory.s;
    job.tile_max = memory.tile_max;
    job.tile_sum = memory.tile_sum;
    job.out = memory.out;
    for (int64_t r = 0; r < run.n_rows; ++r) {
      visible(ctx_.step.pos[run.row + r], run.seq_high, memory.low[r], memory.high[r]);
      if (op_.in[3] >= 0) memory.kept[r] = reinterpret_cast<const int32_t*>(ctx_.row(op_.in[3], run.row + r));
      memcpy(memory.q + r * job.n_heads * shape_.head_k, ctx_.row(op_.in[0], run.row + r) + head * shape_.head_k,
             static_cast<size_t>(job.n_heads * shape_.head_k) * sizeof(float));
    }
    return job;
  }

  // Copies dimensions [begin, end) of a finished job to the output.
  void write(int64_t index, const AttnJob& job, int64_t begin, int64_t end) const {
    const int64_t part = index % shape_.n_parts, h_kv = index / shape_.n_parts % shape_.n_head_kv;
    const RowRun& run = runs_[index / shape_.n_parts / shape_.n_head_kv];
    const int64_t head = h_kv * shape_.group + part * shape_.job_heads;
    for (int64_t query = 0; query < job.n_queries(); ++query) {
      float* out = ctx_.row(op_.out[0], run.row + query / job.n_heads) + (head + query % job.n_heads) * shape_.head_v;
      memcpy(out + begin, job.out + query * shape_.head_v + begin, static_cast<size_t>(end - begin) * sizeof(float));
    }
  }

  // Whole jobs, the last ones first: later rows see more keys.
  Status run_whole(int64_t n_jobs) {
    return ctx_.pool.run(n_jobs, 1, [&](int64_t item, int32_t worker) {
      if (ctx_.stopped()) return;
      const int64_t index = n_jobs - 1 - item;
      const AttnJob job = open_job(index, memory_[worker]);
      cpu::attn_scores_step(job, 0, job.n_tiles);
      cpu::attn_softmax_step(job, 0, job.n_tiles);
      cpu::attn_values_step(job, 0, shape_.head_v);
      write(index, job, 0, shape_.head_v);
    });
  }

  // Jobs [first, first + n), n <= n_workers, each shared by all workers.
  Status run_shared(int64_t first, int64_t n) {
    AttnJob* jobs = ctx_.scratch_array<AttnJob>(n);
    if (jobs == nullptr) return ctx_.error.status;
    for (int64_t k = 0; k < n; ++k) jobs[k] = open_job(first + k, memory_[k]);
    const int64_t n_workers = ctx_.n_workers();
    const int64_t tiles = max64(ceil_div(max_tiles_ * n, n_workers * 4), kSplitTiles);
    const int64_t n_pieces = ceil_div(max_tiles_, tiles);
    const int64_t dims = ceil_div(ceil_div(shape_.head_v, ceil_div(2 * n_workers, n)), 32) * 32;
    const int64_t n_slices = ceil_div(shape_.head_v, dims);
    return ctx_.pool.parallel([&](int32_t worker) {
      int64_t begin, end;
      while (ctx_.pool.take(0, n * n_pieces, 1, &begin, &end)) {
        const AttnJob& job = jobs[begin / n_pieces];
        const int64_t tile = begin % n_pieces * tiles;
        cpu::attn_scores_step(job, min64(tile, job.n_tiles), min64(tile + tiles, job.n_tiles));
      }
      if (!ctx_.pool.barrier(worker)) return;
      while (ctx_.pool.take(1, n * n_pieces, 1, &begin, &end)) {
        const AttnJob& job = jobs[begin / n_pieces];
        const int64_t tile = begin % n_pieces * tiles;
        cpu::attn_softmax_step(job, min64(tile, job.n_tiles), min64(tile + tiles, job.n_tiles));
      }
      if (!ctx_.pool.barrier(worker)) return;
      while (ctx_.pool.take(2, n * n_slices, 1, &begin, &end)) {
        const AttnJob& job = jobs[begin / n_slices];
        const int64_t dim = begin % n_slices * dims, dim_end = min64(dim + dims, shape_.head_v);
        cpu::attn_values_step(job, dim, dim_end);
        write(first + begin / n_slices, job, dim, dim_end);
      }
    });
  }

  StepContext& ctx_;
  const strata_op& op_;
  const int32_t layer_;
  const Shape shape_;
  RowRun* runs_ = nullptr;
  int64_t n_runs_ = 0;
  int64_t max_tiles_ = 0;
  JobMemory* memory_ = nullptr;
};

}  // namespace

int64_t attention_scratch(const ScratchQuery& query, const strata_op& op) {
  const Shape shape(query.model.plan, op);
  const int64_t n_tiles = query.n_kv_blocks;
  const int64_t job = scratch_array_bytes<float>(kAttnQueries * n_tiles * kAttnTile) +
                      2 * scratch_array_bytes<float>(kAttnQueries * n_tiles) +
                      scratch_array_bytes<float>(kAttnQueries * shape.head_k) +
                      scratch_array_bytes<float>(kAttnQueries * shape.head_v) +
                      2 * scratch_array_bytes<int64_t>(kAttnQueries) + scratch_array_bytes<const int32_t*>(kAttnQueries);
  return scratch_array_bytes<RowRun>(query.n_tokens) + scratch_array_bytes<JobMemory>(query.n_workers) +
         query.n_workers * job + 2 * scratch_array_bytes<AttnJob>(query.n_workers);
}

Status run_attention(StepContext& ctx, const strata_op& op) { return Attention(ctx, op).run(); }

}  // namespace strata
