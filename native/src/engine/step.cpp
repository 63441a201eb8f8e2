// Walks the plan: every op in order, the checks between them, and the step's outputs.
#include "engine/step.h"

#include <string.h>

#include <algorithm>

#include "base/clock.h"
#include "engine/ops.h"
#include "engine/sampler.h"
#include "engine/state.h"
#include "engine/walk.h"

namespace strata {
namespace {

bool is_nan(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (bits & 0x7fffffffu) > 0x7f800000u;
}

// Index of the first NaN, -1 when there is none.
int64_t find_nan(const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (is_nan(x[i])) return i;
  }
  return -1;
}

struct Walk {
  StepContext& ctx;
  const WalkConfig& config;
  WalkPlace& place;

  Status fail_at(Status status, int64_t index, const char* what) {
    const strata_op& op = ctx.plan().ops[index];
    return ctx.error.fail(status, "op %lld %s, layer %d: %s", static_cast<long long>(index), op_name(op.kind), op.layer,
                          what);
  }

  // Names the op in the text of a failure that an op described without knowing its place.
  Status name_place(Status status, int64_t index) {
    if (ctx.error.status == STRATA_OK) return fail_at(status, index, "failed");
    char what[sizeof ctx.error.text];
    memcpy(what, ctx.error.text, sizeof what);
    ctx.error.clear();
    return fail_at(status, index, what);
  }

  // Poison mode: whatever the op wrote must be numbers, in every row of this step.
  Status check_written(int64_t index) {
    const strata_op& op = ctx.plan().ops[index];
    Extent extents[kMaxExtents];
    const int32_t n = op_extents(ctx.plan(), op, extents);
    for (int32_t k = 0; k < n; ++k) {
      const Extent& e = extents[k];
      if (!e.written) continue;
      for (int64_t t = 0; t < ctx.n_rows(e.buffer); ++t) {
        for (int64_t v = 0; v < e.n_vec; ++v) {
          const int64_t at = find_nan(ctx.row(e.buffer, t) + e.offset + v * e.stride, e.width);
          if (at < 0) continue;
          return ctx.error.fail(STRATA_E_NUMERIC,
                                "op %lld %s, layer %d, row %lld: the first NaN, value %lld of vector %lld of %s (buffer %d)",
                                static_cast<long long>(index), op_name(op.kind), op.layer, static_cast<long long>(t),
                                static_cast<long long>(at), static_cast<long long>(v), e.field, e.buffer);
        }
      }
    }
    return STRATA_OK;
  }

  // The ids that one EXPERTS op used, and their weights, by token row.
  void note_routing(const strata_op& op) {
    for (int64_t t = 0; t < ctx.n_rows(op.in[1]); ++t) {
      const int64_t token = ctx.buffer(op.in[1]).rows == STRATA_ROWS_OUTPUTS ? ctx.step.output_row[t] : t;
      walk_note_routing(ctx, op.i[STRATA_EXPERTS_I_SET], token, ctx.selection_ids(op.in[1], t));
    }
  }

  Status run_op(int64_t index) {
    const strata_op& op = ctx.plan().ops[index];
    place.op.store(static_cast<int32_t>(index), std::memory_order_relaxed);
    place.layer.store(op.layer, std::memory_order_relaxed);
    const int64_t now = now_ns();
    place.heartbeat_ns.store(now, std::memory_order_relaxed);
    if (ctx.stopped()) return fail_at(STRATA_E_CANCELLED, index, "the step was aborted before this op");
    if (config.deadline_ns != 0 && now > config.deadline_ns)
      return fail_at(STRATA_E_DEADLINE, index, "the step's deadline passed before this op");
    if (ctx.n_rows(op.out[0]) == 0) return STRATA_OK;
    ctx.scratch_used = 0;
    if (config.poison) poison_fill(ctx.scratch, ctx.scratch_bytes);
    const Status status = op_function(op.kind)->run(ctx, op);
    if (status != STRATA_OK) return name_place(status, index);
    if (ctx.stopped()) return fail_at(STRATA_E_CANCELLED, index, "the step was aborted during this op");
    if (config.poison) STRATA_TRY(check_written(index));
    if (op.kind == STRATA_OP_EXPERTS) note_routing(op);
    return STRATA_OK;
  }

  // Logits of the rows that no sample looks at. The sampler checks its own.
  Status check_logits(int32_t buffer) {
    const strata_step& step = ctx.step;
    int32_t sample = 0;
    for (int32_t t = 0; t < step.n_outputs; ++t) {
      if (sample < step.n_samples && step.samples[sample].output == t) {
        ++sample;
        continue;
      }
      const int64_t at = find_nan(ctx.row(buffer, t), ctx.plan().n_vocab);
      if (at >= 0) {
        return ctx.error.fail(STRATA_E_NUMERIC, "the logits of row %d hold NaN (token %lld first)", step.output_row[t],
                              static_cast<long long>(at));
      }
    }
    return STRATA_OK;
  }

  Status finish_outputs(int64_t* sample_ns) {
    const strata_step& step = ctx.step;
    const int32_t logits = ctx.plan().ops[ctx.plan().ops.size() - 1].out[0];
    if (step.logits_out != nullptr) {
      const int64_t n_vocab = ctx.plan().n_vocab;
      for (int64_t t = 0; t < step.n_outputs; ++t) std::copy_n(ctx.row(logits, t), n_vocab, step.logits_out + t * n_vocab);
    }
    Status status = check_logits(logits);
    if (step.n_samples == 0) return status;
    const int64_t start = now_ns();
    ctx.scratch_used = 0;
    if (config.poison) poison_fill(ctx.scratch, ctx.scratch_bytes);
    const Status sampled = sample_step(ctx, ctx.row(logits, 0), ctx.row_stride(logits));
    *sample_ns = now_ns() - start;
    return status != STRATA_OK ? status : sampled;
  }
};

}  // namespace

void poison_fill(uint8_t* bytes, int64_t n_bytes) {
  for (int64_t i = 0; i + 4 <= n_bytes; i += 4) memcpy(bytes + i, &kPoison, 4);
}

int64_t walk_scratch_bytes(const ScratchQuery& query) {
  int64_t most = sampler_scratch_bytes(query);
  for (const strata_op& op : query.model.plan.ops) {
    const OpScratchFn bytes = op_function(op.kind)->scratch_bytes;
    if (bytes != nullptr) most = std::max(most, bytes(query, op));
  }
  return most;
}

int64_t walk_tables_bytes(const ScratchQuery& query) { return step_tables_bytes(query); }

Status walk_begin(StepContext& ctx, const WalkConfig& config) {
  if (config.poison) poison_fill(ctx.activations, ctx.plan().activations_bytes);
  STRATA_TRY(step_tables_fill(ctx));
  return ctx.states.begin_step(ctx.step, ctx.error);
}

Status walk_op(StepContext& ctx, const WalkConfig& config, WalkPlace& place, int64_t index) {
  return Walk{ctx, config, place}.run_op(index);
}

Status walk_check_op(StepContext& ctx, const WalkConfig& config, int64_t index) {
  WalkPlace place;
  return config.poison ? Walk{ctx, config, place}.check_written(index) : STRATA_OK;
}

void walk_prepare_outputs(const StepContext& ctx) {
  const strata_step& step = ctx.step;
  const int64_t n = ctx.plan().expert_sets.size() * step.n_tokens * step.routing_stride;
  if (step.routing_out != nullptr) std::fill_n(step.routing_out, n, -1);
  if (step.routing_weights_out != nullptr) std::fill_n(step.routing_weights_out, n, 0.0f);
  for (int32_t i = 0; i < step.n_samples; ++i) {
    step.sampled_out[i] = strata_sampled{};
    step.sampled_out[i].token = -1;
  }
}

Status walk_finish_outputs(StepContext& ctx, const WalkConfig& config, WalkPlace& place, int64_t* sample_ns) {
  return Walk{ctx, config, place}.finish_outputs(sample_ns);
}

void walk_note_routing(const StepContext& ctx, int32_t set_id, int64_t token, const int32_t* selection) {
  const strata_step& step = ctx.step;
  const int64_t n_used = ctx.expert_set(set_id).n_used, n = std::min<int64_t>(n_used, step.routing_stride);
  const int64_t at = (int64_t{set_id} * step.n_tokens + token) * step.routing_stride;
  if (step.routing_out != nullptr) std::copy_n(selection, n, step.routing_out + at);
  if (step.routing_weights_out != nullptr)
    std::copy_n(reinterpret_cast<const float*>(selection + n_used), n, step.routing_weights_out + at);
}

Status walk_step(StepContext& ctx, const WalkConfig& config, WalkPlace& place, int64_t* sample_ns) {
  *sample_ns = 0;
  walk_prepare_outputs(ctx);
  STRATA_TRY(walk_begin(ctx, config));
  for (int64_t i = 0; i < ctx.plan().ops.size(); ++i) STRATA_TRY(walk_op(ctx, config, place, i));
  ctx.states.end_step(ctx.step);
  return walk_finish_outputs(ctx, config, place, sample_ns);
}

}  // namespace strata
