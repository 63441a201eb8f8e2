// EXPERTS: the routed experts of one layer, decode and prompt alike.
//
// Tokens are grouped by expert (pairs: token and router rank, ascending tokens inside an expert), so that an expert's
// weights are read once for all its tokens. One region of the pool:
//   1. tasks (expert, rows of gate and up): both products, scales, biases, activation -> hidden rows, one for each pair.
//      The worker that finishes an expert's last task rounds its hidden rows; large steps share that work instead.
//   2. barrier; tasks (expert, rows of down) -> one unweighted float32 row for each pair, at the token's place in out.
// Bytes moved: every touched expert once. Scratch: hidden rows as float32 and rounded.
#include <atomic>
#include <new>

#include "engine/op_split.h"
#include "engine/ops.h"
#include "experts/slots.h"

namespace strata {
namespace {

constexpr int64_t kPairBlock = 32;       // pairs whose gate and up rows meet in the cache
constexpr int64_t kSharedRounding = 64;  // from so many pairs on, hidden rows are rounded by all workers

int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t padded_floats(int64_t n) { return (n + 15) / 16 * 16; }

// One touched expert.
struct ActiveExpert {
  ExpertView view;
  int32_t id;
  int32_t first_pair, n_pairs;
  std::atomic<int32_t> tasks_left;  // of step 1
};

struct Sizes {
  cpu::ActForm gate, up, down;
  int64_t hidden_stride;   // floats
  int64_t rounded_stride;  // bytes

  Sizes(const Plan& plan, cpu::Tier tier, const strata_expert_set& set) {
    const auto form = [&](int32_t tensor) { return cpu::type_kernels(tier, plan.tensors[tensor].type)->act; };
    up = form(set.up);
    gate = set.gate < 0 ? up : form(set.gate);
    down = form(set.down);
    hidden_stride = padded_floats(set.n_ff);
    rounded_stride = cpu::act_row_bytes(down, set.n_ff);
  }
};

class Experts {
 public:
  Experts(StepContext& ctx, const strata_op& op)
      : ctx_(ctx),
        op_(op),
        set_(ctx.expert_set(op.i[STRATA_EXPERTS_I_SET])),
        sizes_(ctx.plan(), ctx.tier, set_),
        vec_(*cpu::vec_math(ctx.tier)),
        n_pairs_(int64_t{ctx.step.n_tokens} * set_.n_used) {}

  Status run() {
    STRATA_TRY(group_pairs());
    if (n_active_ == 0) return STRATA_OK;
    STRATA_TRY(round_inputs());
    const Status fetched = fetch();
    const Status status = fetched == STRATA_OK ? compute() : fetched;
    for (int64_t a = 0; a < n_fetched_; ++a) ctx_.experts().release(op_.i[STRATA_EXPERTS_I_SET], active_[a].id);
    return status;
  }

 private:
  // Whether this side computes the expert.
  bool mine(int32_t expert) const {
    if (ctx_.side == ExpertSide::all) return true;
    return (ctx_.slots->slot(op_.i[STRATA_EXPERTS_I_SET], expert) >= 0) == (ctx_.side == ExpertSide::resident);
  }

  // Counting sort of this side's pairs by expert.
  Status group_pairs() {
    int32_t* counts = ctx_.scratch_array<int32_t>(set_.n_expert);
    pair_token_ = ctx_.scratch_array<int32_t>(n_pairs_);
    pair_out_ = ctx_.scratch_array<int32_t>(n_pairs_);
    pair_weight_ = ctx_.scratch_array<float>(n_pairs_);
    active_ = ctx_.scratch_array<ActiveExpert>(min64(set_.n_expert, n_pairs_));
    if (active_ == nullptr) return ctx_.error.status;
    for (int32_t e = 0; e < set_.n_expert; ++e) counts[e] = 0;
    for (int32_t t = 0; t < ctx_.step.n_tokens; ++t) {
      const int32_t* ids = ctx_.selection_ids(op_.in[1], t);
      for (int32_t k = 0; k < set_.n_used; ++k) ++counts[ids[k]];
    }
    int32_t first = 0;
    for (int32_t e = 0; e < set_.n_expert; ++e) {
      if (counts[e] == 0 || !mine(e)) {
        counts[e] = -1;
        continue;
      }
      ActiveExpert* active = new (active_ + n_active_++) ActiveExpert{};
      active->id = e;
      active->first_pair = first;
      active->n_pairs = counts[e];
      first += counts[e];
      counts[e] = active->first_pair;  // from here on: where the expert's next pair goes
    }
    for (int32_t t = 0; t < ctx_.step.n_tokens; ++t) {
      const int32_t* ids = ctx_.selection_ids(op_.in[1], t);
      for (int32_t k = 0; k < set_.n_used; ++k) {
        if (counts[ids[k]] < 0) continue;
        const int32_t pair = counts[ids[k]]++;
        pair_token_[pair] = t;
        pair_out_[pair] = static_cast<int32_t>(t * ctx_.row_stride(op_.out[0]) + int64_t{k} * set_.n_out);
        pair_weight_[pair] = ctx_.selection_weights(op_.in[1], t, set_.n_used)[k];
      }
    }
    n_pairs_ = first;
    return STRATA_OK;
  }

  // One rounded row for each token; with weight_on_input one for each pair.
  Status round_inputs() {
    const bool weighted = set_.weight_on_input != 0;
    const int64_t n_rows = weighted ? n_pairs_ : ctx_.step.n_tokens, n_in = set_.n_in;
    if (!rounded_.want(ctx_, sizes_.gate, n_rows, n_in) || !rounded_.want(ctx_, sizes_.up, n_rows, n_in))
      return ctx_.error.status;
    if (!weighted) {
      return for_rows(ctx_, n_rows, n_in, [&](int64_t t) { rounded_.round(ctx_.tier, ctx_.row(op_.in[0], t), n_in, t); });
    }
    float* rows = ctx_.scratch_array<float>(padded_floats(n_in) * ctx_.n_workers());
    if (rows == nullptr) return ctx_.error.status;
    const int64_t chunk = n_in >= kRegionFloats ? 1 : kRegionFloats / n_in;
    return ctx_.pool.run(n_rows, chunk, [&](int64_t pair, int32_t worker) {
      float* row = rows + worker * padded_floats(n_in);
      vec_.scale(ctx_.row(op_.in[0], pair_token_[pair]), pair_weight_[pair], row, n_in);
      rounded_.round(ctx_.tier, row, n_in, pair);
    });
  }

  Status fetch() {
    for (int64_t a = 0; a < n_active_; ++a) {
      const Status status = ctx_.experts().fetch(op_.i[STRATA_EXPERTS_I_SET], active_[a].id, &active_[a].view);
      if (status != STRATA_OK) {
        return ctx_.error.fail(status, "layer %d: expert %d could not be fetched", set_.layer, active_[a].id);
      }
      ++n_fetched_;
    }
    return STRATA_OK;
  }

  // Bytes of one row of gate and up, and of down; counts the step's bytes.
  void measure(int64_t* in_row, int64_t* down_row) {
    const auto bytes = [&](const cpu::MatView& w) {
      return w.data == nullptr ? 0 : matrix_bytes(w, *cpu::type_kernels(ctx_.tier, w.type));
    };
    const ExpertView& view = active_[0].view;
    const int64_t in_bytes = bytes(view.gate) + bytes(view.up), down_bytes = bytes(view.down);
    *in_row = in_bytes / set_.n_ff + 1;
    *down_row = down_bytes / set_.n_out + 1;
    ctx_.counters.weight_bytes += n_active_ * (in_bytes + down_bytes);
    ctx_.counters.expert_rows += n_pairs_;
    ctx_.counters.experts_touched += n_active_;
  }

  Status compute() {
    const int64_t n_workers = ctx_.n_workers();
    hidden_ = ctx_.scratch_array<float>(n_pairs_ * sizes_.hidden_stride);
    up_rows_ = ctx_.scratch_array<float>(n_workers * kPairBlock * sizes_.hidden_stride);
    rounded_hidden_ = ctx_.scratch_array<uint8_t>(n_pairs_ * sizes_.rounded_stride);
    if (hidden_ == nullptr || up_rows_ == nullptr || rounded_hidden_ == nullptr) return ctx_.error.status;
    int64_t in_row, down_row;
    measure(&in_row, &down_row);
    in_rows_ = rows_of_task(n_active_ * in_row * set_.n_ff, in_row, ctx_.n_workers());
    down_rows_ = rows_of_task(n_active_ * down_row * set_.n_out, down_row, ctx_.n_workers());
    in_tasks_ = (set_.n_ff + in_rows_ - 1) / in_rows_;
    down_tasks_ = (set_.n_out + down_rows_ - 1) / down_rows_;
    for (int64_t a = 0; a < n_active_; ++a)
      active_[a].tasks_left.store(static_cast<int32_t>(in_tasks_), std::memory_order_relaxed);
    return ctx_.pool.parallel([&](int32_t worker) { work(worker); });
  }

  void work(int32_t worker) {
    int64_t begin, end;
    while (ctx_.pool.take(0, n_active_ * in_tasks_, 1, &begin, &end)) {
      if (!ctx_.stopped()) in_task(active_[begin / in_tasks_], begin % in_tasks_, worker);
    }
    if (!ctx_.pool.barrier(worker)) return;
    if (n_pairs_ >= kSharedRounding) {
      while (ctx_.pool.take(1, n_pairs_, 4, &begin, &end)) round_hidden(begin, end - begin);
      if (!ctx_.pool.barrier(worker)) return;
    }
    while (ctx_.pool.take(2, n_active_ * down_tasks_, 1, &begin, &end)) {
      if (!ctx_.stopped()) down_task(active_[begin / down_tasks_], begin % down_tasks_);
    }
  }

  void round_hidden(int64_t pair, int64_t n) const {
    cpu::act_quantize(ctx_.tier, sizes_.down, hidden_ + pair * sizes_.hidden_stride, sizes_.hidden_stride, set_.n_ff, n,
                      rounded_hidden_ + pair * sizes_.rounded_stride);
  }

  // Rows [begin, end) of gate or up for pairs [pair, pair + n): y[p - pair][r].
  void multiply_in(const cpu::MatView& w, cpu::ActForm form, int64_t begin, int64_t end, int64_t pair, int64_t n,
                   float* y) const {
    const cpu::TypeKernels& kernels = *cpu::type_kernels(ctx_.tier, w.type);
    const bool by_pair = set_.weight_on_input != 0;
    const uint8_t* acts = rounded_.of(form) + (by_pair ? pair * rounded_.stride_of(form) : 0);
    matmul_function(w, kernels)({w, begin, end, acts, rounded_.stride_of(form), by_pair ? nullptr : pair_token_ + pair, n, y,
                                 sizes_.hidden_stride, nullptr});
  }

  void in_task(ActiveExpert& expert, int64_t task, int32_t worker) const {
    const int64_t begin = task * in_rows_, end = min64(begin + in_rows_, set_.n_ff);
    const ExpertView& view = expert.view;
    float* up = up_rows_ + worker * kPairBlock * sizes_.hidden_stride;
    for (int64_t done = 0; done < expert.n_pairs; done += kPairBlock) {
      const int64_t n = min64(kPairBlock, expert.n_pairs - done), pair = expert.first_pair + done;
      float* hidden = hidden_ + pair * sizes_.hidden_stride;
      const bool gated = view.gate.data != nullptr;
      if (gated) multiply_in(view.gate, sizes_.gate, begin, end, pair, n, hidden);
      multiply_in(view.up, sizes_.up, begin, end, pair, n, up);
      for (int64_t p = 0; p < n; ++p) {
        float* h = hidden + p * sizes_.hidden_stride;
        float* u = up + p * sizes_.hidden_stride;
        if (gated) scale_and_bias(vec_, h, view.gate_scale, view.gate_bias, begin, end);
        scale_and_bias(vec_, u, view.up_scale, view.up_bias, begin, end);
        vec_.glu(set_.glu, gated ? h + begin : nullptr, u + begin, set_.p0, set_.p1, h + begin, end - begin);
      }
    }
    const bool last = expert.tasks_left.fetch_sub(1, std::memory_order_acq_rel) == 1;
    if (last && n_pairs_ < kSharedRounding) round_hidden(expert.first_pair, expert.n_pairs);
  }

  void down_task(const ActiveExpert& expert, int64_t task) const {
    const int64_t begin = task * down_rows_, end = min64(begin + down_rows_, set_.n_out);
    const cpu::MatView& w = expert.view.down;
    const cpu::TypeKernels& kernels = *cpu::type_kernels(ctx_.tier, w.type);
    float* out = ctx_.row(op_.out[0], 0);
    const int32_t* index = pair_out_ + expert.first_pair;  // floats from out: y_stride is 1
    matmul_function(w, kernels)({w, begin, end, rounded_hidden_ + expert.first_pair * sizes_.rounded_stride,
                                 sizes_.rounded_stride, nullptr, expert.n_pairs, out, 1, index});
    for (int64_t p = 0; p < expert.n_pairs; ++p) {
      scale_and_bias(vec_, out + index[p], expert.view.down_scale, expert.view.down_bias, begin, end);
    }
  }

  StepContext& ctx_;
  const strata_op& op_;
  const strata_expert_set& set_;
  const Sizes sizes_;
  const cpu::VecMath& vec_;
  int64_t n_pairs_;                // of this side, once they are grouped
  int32_t* pair_token_ = nullptr;  // [n_pairs] row of x
  int32_t* pair_out_ = nullptr;    // [n_pairs] floats from out's first row
  float* pair_weight_ = nullptr;   // [n_pairs]
  ActiveExpert* active_ = nullptr;
  int64_t n_active_ = 0, n_fetched_ = 0;
  RoundedRows rounded_;
  float* hidden_ = nullptr;   // [n_pairs][hidden_stride]
  float* up_rows_ = nullptr;  // [worker][kPairBlock][hidden_stride]
  uint8_t* rounded_hidden_ = nullptr;
  int64_t in_rows_ = 0, in_tasks_ = 0, down_rows_ = 0, down_tasks_ = 0;
};

}  // namespace

int64_t experts_scratch(const ScratchQuery& query, const strata_op& op) {
  const strata_expert_set& set = query.model.plan.expert_sets[op.i[STRATA_EXPERTS_I_SET]];
  const Sizes sizes(query.model.plan, query.tier, set);
  const int64_t n_pairs = int64_t{query.n_tokens} * set.n_used;
  const int32_t in_tensors[2] = {set.gate, set.up};
  int64_t bytes = scratch_array_bytes<int32_t>(set.n_expert) + 3 * scratch_array_bytes<int32_t>(n_pairs) +
                  scratch_array_bytes<ActiveExpert>(min64(set.n_expert, n_pairs));
  bytes += rounded_rows_bytes(query, in_tensors, 2, set.weight_on_input != 0 ? n_pairs : query.n_tokens, set.n_in);
  if (set.weight_on_input != 0) bytes += scratch_array_bytes<float>(padded_floats(set.n_in) * query.n_workers);
  bytes += scratch_array_bytes<float>(n_pairs * sizes.hidden_stride);
  bytes += scratch_array_bytes<float>(query.n_workers * kPairBlock * sizes.hidden_stride);
  return bytes + scratch_array_bytes<uint8_t>(n_pairs * sizes.rounded_stride);
}

Status run_experts(StepContext& ctx, const strata_op& op) { return Experts(ctx, op).run(); }

}  // namespace strata
