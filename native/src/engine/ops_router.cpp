// ROUTER: scores, choice and weights of one token's experts. COMBINE: the weighted sum of their results.
//
// Order of the router's numbers, for one row of logits x:
//   scores      softmax: e_i = exp(x_i - max), e_i / sum (16 strided lanes and a tree); sigmoid and sqrt(softplus) by
//   element choice      by scores (softmax-weight, select-logits: by x), plus the selection bias; ties go to the lower id.
//               Groups first: a group counts the sum of its two best (larger + smaller), ties to the lower group.
//               chunk G: id e becomes e / G from here on
//   weights     scores of the chosen, without bias, in order of choice; softmax-weight: exp(x - largest chosen x) / their
//   sum normalise   sum in order of choice, from 0; w / max(sum, norm_min); then w * scale
// A NaN logit makes every weight of its row NaN, and the choice is made as if it were minus infinity.
#include <string.h>

#include <algorithm>

#include "base/ieee_math.h"
#include "engine/op_split.h"
#include "engine/ops.h"

namespace strata {
namespace {

float minus_infinity() { return v_from_bits(static_cast<int32_t>(0xff800000)); }

// The best of the values offered so far, largest first; of equal ones the one offered first.
struct BestList {
  float* values;  // [limit]
  int32_t* ids;   // [limit]
  int64_t limit;
  int64_t n = 0;

  void offer(float value, int32_t id) {
    if (n == limit && !(value > values[n - 1])) return;
    int64_t j = n < limit ? n++ : n - 1;
    for (; j > 0 && value > values[j - 1]; --j) {
      values[j] = values[j - 1];
      ids[j] = ids[j - 1];
    }
    values[j] = value;
    ids[j] = id;
  }
};

// Arrays of n_expert elements for one worker.
struct RouterRow {
  static constexpr int64_t kArrays = 4;
  float* scores;
  float* choice;
  float* best;  // values of the list in use
  int32_t* group_ids;

  RouterRow(float* memory, int64_t stride)
      : scores(memory),
        choice(memory + stride),
        best(memory + 2 * stride),
        group_ids(reinterpret_cast<int32_t*>(memory + 3 * stride)) {}
};
struct RouterArgs {
  const cpu::VecMath& vec;
  const strata_op& op;
  const float* bias;  // null: none
  int64_t n_expert, n_used;
};

void compute_scores(const RouterArgs& a, const float* x, float* scores) {
  switch (a.op.i[STRATA_ROUTER_I_SCORES]) {
    case STRATA_SCORES_SOFTMAX: {
      const float sum = a.vec.exp_sub(x, a.vec.max(x, a.n_expert), scores, a.n_expert);
      for (int64_t e = 0; e < a.n_expert; ++e) scores[e] = scores[e] / sum;
      return;
    }
    case STRATA_SCORES_SIGMOID:
      a.vec.unary(cpu::Unary::sigmoid, x, scores, a.n_expert);
      return;
    case STRATA_SCORES_SQRT_SOFTPLUS:
      a.vec.unary(cpu::Unary::softplus, x, scores, a.n_expert);
      a.vec.unary(cpu::Unary::sqrt, scores, scores, a.n_expert);
      return;
    default:
      memcpy(scores, x, static_cast<size_t>(a.n_expert) * sizeof(float));
  }
}

// Sum of the two best choices of a group (of one, where the group has one).
float group_score(const float* choice, int64_t n) {
  float best = minus_infinity(), second = minus_infinity();
  for (int64_t e = 0; e < n; ++e) {
    if (choice[e] > best) {
      second = best;
      best = choice[e];
    } else if (choice[e] > second) {
      second = choice[e];
    }
  }
  return n > 1 ? best + second : best;
}

// The chosen experts in order of choice.
void choose(const RouterArgs& a, const RouterRow& row, int32_t* ids) {
  const int64_t n_group = a.op.i[STRATA_ROUTER_I_N_GROUP];
  if (n_group <= 1) {
    BestList best{row.best, ids, a.n_used};
    for (int64_t e = 0; e < a.n_expert; ++e) best.offer(row.choice[e], static_cast<int32_t>(e));
    return;
  }
  const int64_t size = a.n_expert / n_group;
  BestList groups{row.best, row.group_ids, a.op.i[STRATA_ROUTER_I_N_GROUP_USED]};
  for (int64_t g = 0; g < n_group; ++g) groups.offer(group_score(row.choice + g * size, size), static_cast<int32_t>(g));
  std::sort(row.group_ids,
            row.group_ids + groups.n);  // experts are offered in ascending order, so that ties go to the lower id
  BestList best{row.best, ids, a.n_used};
  for (int64_t k = 0; k < groups.n; ++k) {
    for (int64_t e = row.group_ids[k] * size; e < (row.group_ids[k] + 1) * size; ++e)
      best.offer(row.choice[e], static_cast<int32_t>(e));
  }
}

void compute_weights(const RouterArgs& a, const float* x, const float* scores, const int32_t* ids, float* weights) {
  if (a.op.i[STRATA_ROUTER_I_SCORES] == STRATA_SCORES_SOFTMAX_WEIGHT) {
    float largest = minus_infinity(), sum = 0.0f;
    for (int64_t k = 0; k < a.n_used; ++k) largest = x[ids[k]] > largest ? x[ids[k]] : largest;
    for (int64_t k = 0; k < a.n_used; ++k) {
      weights[k] = m_exp(x[ids[k]] - largest);
      sum += weights[k];
    }
    for (int64_t k = 0; k < a.n_used; ++k) weights[k] = weights[k] / sum;
  } else {
    for (int64_t k = 0; k < a.n_used; ++k) weights[k] = scores[ids[k]];
  }
  if (a.op.i[STRATA_ROUTER_I_NORMALIZE] != 0) {
    float sum = 0.0f;
    for (int64_t k = 0; k < a.n_used; ++k) sum += weights[k];
    const float divisor = m_max(sum, a.op.f[STRATA_ROUTER_F_NORM_MIN]);
    for (int64_t k = 0; k < a.n_used; ++k) weights[k] = weights[k] / divisor;
  }
  const float scale = a.op.f[STRATA_ROUTER_F_SCALE];
  for (int64_t k = 0; k < a.n_used && scale != 1.0f; ++k) weights[k] = weights[k] * scale;
}

void route_row(const RouterArgs& a, const float* x, const RouterRow& row, int32_t* ids, float* weights) {
  const float largest = a.vec.max(x, a.n_expert);
  compute_scores(a, x, row.scores);
  const bool by_logits = a.op.i[STRATA_ROUTER_I_SELECT_LOGITS] != 0;
  memcpy(row.choice, by_logits ? x : row.scores, static_cast<size_t>(a.n_expert) * sizeof(float));
  if (a.bias != nullptr) a.vec.add(row.choice, a.bias, row.choice, a.n_expert);
  for (int64_t e = 0; e < a.n_expert; ++e) row.choice[e] = row.choice[e] == row.choice[e] ? row.choice[e] : minus_infinity();
  choose(a, row, ids);
  const int32_t chunk = a.op.i[STRATA_ROUTER_I_CHUNK];
  for (int64_t k = 0; k < a.n_used && chunk > 1; ++k) ids[k] /= chunk;
  compute_weights(a, x, row.scores, ids, weights);
  for (int64_t k = 0; k < a.n_used && largest != largest; ++k) weights[k] = largest;
}

}  // namespace

int64_t router_scratch(const ScratchQuery& query, const strata_op& op) {
  return query.n_workers * RouterRow::kArrays * scratch_array_bytes<float>(op.i[STRATA_ROUTER_I_N_EXPERT]);
}

Status run_router(StepContext& ctx, const strata_op& op) {
  const RouterArgs args{*cpu::vec_math(ctx.tier), op, ctx.vector(op.weight[0]), op.i[STRATA_ROUTER_I_N_EXPERT],
                        op.i[STRATA_ROUTER_I_N_USED]};
  const int64_t stride = scratch_array_bytes<float>(args.n_expert) / static_cast<int64_t>(sizeof(float));
  float* rows = ctx.scratch_array<float>(stride * RouterRow::kArrays * ctx.n_workers());
  if (rows == nullptr) return ctx.error.status;
  const int64_t work = args.n_expert * 8;
  const int64_t chunk = work >= kRegionFloats ? 1 : kRegionFloats / work;
  return ctx.pool.run(ctx.step.n_tokens, chunk, [&](int64_t t, int32_t worker) {
    const RouterRow row(rows + worker * RouterRow::kArrays * stride, stride);
    route_row(args, ctx.row(op.in[0], t), row, ctx.selection_ids(op.out[0], t),
              ctx.selection_weights(op.out[0], t, static_cast<int32_t>(args.n_used)));
  });
}

Status run_combine(StepContext& ctx, const strata_op& op) {
  const cpu::VecMath& vec = *cpu::vec_math(ctx.tier);
  const int64_t n_used = op.i[STRATA_COMBINE_I_N_USED], width = op.i[STRATA_COMBINE_I_WIDTH];
  const bool unit = op.i[STRATA_COMBINE_I_UNIT_WEIGHTS] != 0;
  return for_rows(ctx, ctx.step.n_tokens, n_used * width, [&](int64_t t) {
    const float* y = ctx.row(op.in[0], t);
    const float* weights = ctx.selection_weights(op.in[1], t, static_cast<int32_t>(n_used));
    float* out = ctx.row(op.out[0], t);
    memset(out, 0, static_cast<size_t>(width) * sizeof(float));
    for (int64_t k = 0; k < n_used; ++k) vec.axpy(unit ? 1.0f : weights[k], y + k * width, out, width);
    if (op.in[2] < 0) return;
    const float* shared = ctx.row(op.in[2], t);
    if (op.in[3] < 0) return vec.add(out, shared, out, width);
    vec.add_scaled(1.0f, out, m_sigmoid(*ctx.row(op.in[3], t)), shared, out, width);
  });
}

}  // namespace strata
