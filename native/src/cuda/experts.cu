// The routed experts that are resident, for steps of up to 8 tokens (decode), on the packed layout.
//
// Compiled once for each packed type, STRATA_PACKED.
//
// k_expert_in_<tokens>: gate and up of one expert in one pass, scale, bias and activation -> hidden rows float32
//   [pair][n_ff]. Block = a team (packed.cuh) for gate beside one for up, grid = (groups of 16 rows, tasks).
// k_expert_rows_<tokens>: one matrix of the slot, scale and bias -> float32 rows: down, or gate and up apart where
//   their types differ. Block = one team, grid as above.
//
// Bytes moved: every resident expert of the step once, whatever the number of tokens that chose it; floor = those bytes /
// bandwidth. Exact: bits equal the CPU kernels'.
#include "cuda/glu.cuh"
#include "cuda/kernel_args.h"
#include "cuda/packed.cuh"

namespace strata::cuda {
namespace {

STRATA_DEVICE const float* slot_floats(const uint8_t* slot, int64_t offset) {
  return offset < 0 ? nullptr : reinterpret_cast<const float*>(slot + offset);
}

template <class Q, int kTokens, int kRoom>
STRATA_DEVICE void expert_tokens(const ExpertArgs& args, const ExpertTask& task, int64_t matrix, int group, int thread,
                                 Accumulators<kRoom>& room) {
  const uint8_t* acts[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int pair = task.first_pair + (t < task.n_pairs ? t : task.n_pairs - 1);
    acts[t] = args.acts + (args.pair_in != nullptr ? args.pair_in[pair] : pair) * args.act_stride;
  }
  float acc[kTokens];
  const uint8_t* w = task.slot + matrix + group * Q::group_bytes(args.n_cols);
  accumulate_group<Q, kTokens>(w, args.n_cols, thread, acts, acc);
  store_accumulators<Q>(room, thread, acc);
}
// With as few tokens as hold the task's pairs: an expert chosen by one token of eight reads one row of activations.
template <class Q, int kTokens, int kRoom>
STRATA_DEVICE void expert_group(const ExpertArgs& args, const ExpertTask& task, int64_t matrix, int group, int thread,
                                Accumulators<kRoom>& room) {
  if constexpr (kTokens > 1) {
    constexpr int kFewer = kTokens == 8 ? 2 : 1;
    if (task.n_pairs <= kFewer) return expert_group<Q, kFewer>(args, task, matrix, group, thread, room);
  }
  expert_tokens<Q, kTokens>(args, task, matrix, group, thread, room);
}

template <class Q, int kTokens>
STRATA_DEVICE void expert_in(const ExpertArgs& args) {
  __shared__ Accumulators<kTokens> rooms[2];
  if (args.n_tasks != nullptr && static_cast<int>(blockIdx.y) >= *args.n_tasks) return;
  const ExpertTask task = args.tasks[blockIdx.y];
  const int team = threadIdx.x / Team<Q>::kThreads, thread = threadIdx.x % Team<Q>::kThreads, group = blockIdx.x;
  const int64_t matrix = team == 0 ? args.gate.w : args.up.w;
  if (matrix >= 0) expert_group<Q, kTokens>(args, task, matrix, group, thread, rooms[team]);
  __syncthreads();
  for (int i = threadIdx.x; i < task.n_pairs * kGroupRows; i += 2 * Team<Q>::kThreads) {
    const int t = i / kGroupRows, lane = i % kGroupRows, row = group * kGroupRows + lane;
    if (row >= args.n_rows) continue;
    float gate = 0.0f;
    if (args.gate.w >= 0) {
      gate = finish(rooms[0].total(t, lane), slot_floats(task.slot, args.gate.scale), slot_floats(task.slot, args.gate.bias),
                    row);
    }
    const float up =
        finish(rooms[1].total(t, lane), slot_floats(task.slot, args.up.scale), slot_floats(task.slot, args.up.bias), row);
    const int pair = task.first_pair + t;
    const int64_t out_row = args.pair_out != nullptr ? args.pair_out[pair] : pair;
    args.out[out_row * args.out_stride + row] = glu(args.glu, gate, up, args.p0, args.p1);
  }
}

template <class Q, int kTokens>
STRATA_DEVICE void expert_rows(const ExpertArgs& args) {
  __shared__ Accumulators<kTokens> room;
  if (args.n_tasks != nullptr && static_cast<int>(blockIdx.y) >= *args.n_tasks) return;
  const ExpertTask task = args.tasks[blockIdx.y];
  const int group = blockIdx.x;
  expert_group<Q, kTokens>(args, task, args.up.w, group, threadIdx.x, room);
  __syncthreads();
  for (int i = threadIdx.x; i < task.n_pairs * kGroupRows; i += Team<Q>::kThreads) {
    const int t = i / kGroupRows, lane = i % kGroupRows, row = group * kGroupRows + lane;
    if (row >= args.n_rows) continue;
    const int pair = task.first_pair + t;
    const int64_t out_row = args.pair_out != nullptr ? args.pair_out[pair] : pair;
    args.out[out_row * args.out_stride + row] =
        finish(room.total(t, lane), slot_floats(task.slot, args.up.scale), slot_floats(task.slot, args.up.bias), row);
  }
}

}  // namespace

#define STRATA_EXPERT(tokens)                                                     \
  extern "C" __global__ void __launch_bounds__(2 * Team<STRATA_PACKED>::kThreads) \
      k_expert_in_##tokens(const __grid_constant__ ExpertArgs args) {             \
    expert_in<STRATA_PACKED, tokens>(args);                                       \
  }                                                                               \
  extern "C" __global__ void __launch_bounds__(Team<STRATA_PACKED>::kThreads)     \
      k_expert_rows_##tokens(const __grid_constant__ ExpertArgs args) {           \
    expert_rows<STRATA_PACKED, tokens>(args);                                     \
  }

STRATA_EXPERT(1)
STRATA_EXPERT(2)
STRATA_EXPERT(8)

}  // namespace strata::cuda
