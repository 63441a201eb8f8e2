// CONV: causal convolution of each channel over its last `taps` inputs.
//
// out[c] = w[c][0] * x[-(taps - 1)] + w[c][1] * x[-(taps - 2)] + ... + w[c][taps - 1] * x[0], every product and every sum
// rounded alone, in this order; then the bias, then the activation. Inputs before the step's first row come from the
// state, [taps - 1][width], oldest first, which afterwards holds the last taps - 1 inputs.
// Parallel over sequences and blocks of channels.
#include <string.h>

#include <algorithm>

#include "engine/op_split.h"
#include "engine/seq_runs.h"

namespace strata {
namespace {

constexpr int64_t kChannels = 256;  // of one task

struct Conv {
  const StepContext& ctx;
  const strata_op& op;
  int64_t width, taps;

  // What channel 0 of this run brought `index` rows after its first row; negative ones lie in the state.
  const float* input(const SeqRun& run, int64_t index) const {
    return index < 0 ? run.state + (taps - 1 + index) * width : ctx.row(op.in[0], run.row + index);
  }

  void row(const SeqRun& run, int64_t r, int64_t begin, int64_t end) const {
    const float* weights = ctx.vector(op.weight[0]);
    const float* bias = ctx.vector(op.weight[1]);
    float* out = ctx.row(op.out[0], run.row + r) + op.i[STRATA_CONV_I_OUT_OFFSET];
    const float* first = input(run, r - taps + 1);
    for (int64_t c = begin; c < end; ++c) out[c] = weights[c * taps] * first[c];
    for (int64_t k = 1; k < taps; ++k) {
      const float* x = input(run, r - taps + 1 + k);
      for (int64_t c = begin; c < end; ++c) out[c] = out[c] + weights[c * taps + k] * x[c];
    }
    const cpu::VecMath& vec = *cpu::vec_math(ctx.tier);
    if (bias != nullptr) vec.add(out + begin, bias + begin, out + begin, end - begin);
    if (op.i[STRATA_CONV_I_ACT] == STRATA_ACT_SILU) vec.unary(cpu::Unary::silu, out + begin, out + begin, end - begin);
  }

  void task(const SeqRun& run, int64_t begin) const {
    const int64_t end = std::min(begin + kChannels, width);
    for (int64_t r = 0; r < run.n_rows; ++r) row(run, r, begin, end);
    for (int64_t k = 0; k < taps - 1; ++k) {  // ascending: what is read lies behind what is written
      const float* kept = input(run, run.n_rows - taps + 1 + k);
      memmove(run.state + k * width + begin, kept + begin, static_cast<size_t>(end - begin) * sizeof(float));
    }
  }
};

}  // namespace

int64_t conv_scratch(const ScratchQuery& query, const strata_op&) { return SeqRuns::scratch(query); }

Status run_conv(StepContext& ctx, const strata_op& op) {
  SeqRuns runs;
  if (!runs.find(ctx, op.i[STRATA_CONV_I_STATE])) return ctx.error.status;
  const Conv conv{ctx, op, op.i[STRATA_CONV_I_WIDTH], op.i[STRATA_CONV_I_TAPS]};
  const int64_t n_blocks = (conv.width + kChannels - 1) / kChannels;
  const int64_t floats = std::min(conv.width, kChannels) * (conv.taps + 2) * ctx.step.n_tokens / runs.n;
  return for_rows(ctx, runs.n * n_blocks, floats,
                  [&](int64_t item) { conv.task(runs.runs[item / n_blocks], item % n_blocks * kChannels); });
}

}  // namespace strata
