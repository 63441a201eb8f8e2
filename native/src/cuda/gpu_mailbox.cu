// The device's side of the mailbox (mailbox/mailbox.h), and the choice of what stays on the GPU.
//
// k_gpu_group     one block of 256 threads, 8 * n_expert bytes of dynamic shared memory: a job's pairs as tasks and misses
// k_gpu_dispatch  256 threads, any number of blocks: selection and payload to the host; the last block rings the doorbell
// k_gpu_wait      one thread: until the done word, an abort, or the deadline by the GPU's own clock
// k_gpu_collect   grid (width / 256 rounded up, blocks that share the missed rows), 256 threads
// k_gpu_finish    256 threads, any number of blocks: logits to the host; the last block writes step_done
// Host memory is read with volatile loads and by nothing else: no cache may answer for it. After an abort or a failure the
// step's other jobs are passed over: nobody answers them any more, and what is computed from here on is dropped.
#include "cuda/gpu_args.h"
#include "mailbox/mailbox.h"

namespace strata::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;

// True in all threads of the block that comes last of the grid; everything that the grid has written is then visible to
// the whole system before anything that this block writes afterwards.
STRATA_DEVICE bool is_last_block(StepState* state) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    last = atomicAdd(&state->n_finished, 1u) == gridDim.x * gridDim.y - 1;
    if (last) state->n_finished = 0;
    __threadfence_system();
  }
  __syncthreads();
  return last;
}

// Rows of `width` words, each with its own stride, shared by all threads of the grid.
STRATA_DEVICE void copy_rows(const uint32_t* from, int64_t from_stride, uint32_t* to, int64_t to_stride, int64_t n_rows,
                             int64_t width) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n_rows * width; i += step)
    to[i / width * to_stride + i % width] = from[i / width * from_stride + i % width];
}

// sums[i] becomes the sum of sums[0 .. i - 1] for i <= 256; sums[i + 1] holds value i before. All 256 threads.
STRATA_DEVICE void scan256(int (&sums)[257], int value) {
  const int i = threadIdx.x;
  if (i == 0) sums[0] = 0;
  sums[i + 1] = value;
  __syncthreads();
  for (int step = 1; step < 256; step *= 2) {
    const int other = i >= step ? sums[i + 1 - step] : 0;
    __syncthreads();
    sums[i + 1] += other;
    __syncthreads();
  }
}

struct Room {
  int ids[256];  // -1 - id: missed; INT32_MIN behind the end
  int tasks[257], pairs[257];
};
constexpr int kNoPair = static_cast<int>(0x80000000u);

// Expert of the pair that this thread stages, as Room::ids has it.
STRATA_DEVICE int staged_id(const GroupPairsArgs& args, int pair) {
  if (pair >= args.n_tokens * args.n_used) return kNoPair;
  const int id = args.ids[pair / args.n_used * args.selection_stride + pair % args.n_used];
  return args.slots[id] != 0 ? id : -1 - id;
}

// Tasks of the experts [first, last), from the numbers of pairs and tasks before them; begin[e] becomes the next free pair.
STRATA_DEVICE void write_tasks(const GroupPairsArgs& args, const int* count, int* begin, int first, int last, int task,
                               int pair) {
  for (int e = first; e < last; ++e) {
    begin[e] = pair;
    for (int left = count[e], at = pair; left > 0; left -= args.task_pairs, at += args.task_pairs) {
      const int n = left < args.task_pairs ? left : args.task_pairs;
      args.tasks[task++] = {reinterpret_cast<const uint8_t*>(args.slots[e]), at, n};
    }
    pair += count[e];
  }
}

// One warp: 32 pairs of the room take their places, in ascending order inside an expert.
STRATA_DEVICE void place_pairs(const GroupPairsArgs& args, int id, int pair, int* begin, int& n_missed) {
  const int lane = threadIdx.x & 31;
  const unsigned before = (1u << lane) - 1u;
  const bool is_pair = id != kNoPair, missed = is_pair && id < 0, resident = id >= 0;
  const unsigned misses = __ballot_sync(kAll, missed);
  if (missed) args.missed[n_missed + __popc(misses & before)] = pair;
  n_missed += __popc(misses);
  const unsigned same = __match_any_sync(kAll, id);
  int at = 0;
  if (resident) at = begin[id] + __popc(same & before);
  __syncwarp();
  if (resident && (same & before) == 0) begin[id] += __popc(same);
  __syncwarp();
  if (!resident) return;
  const int token = pair / args.n_used;
  args.pair_token[at] = token;
  args.pair_id[at] = pair;
  args.pair_out[at] = static_cast<int32_t>(token * args.out_row + pair % args.n_used * static_cast<int64_t>(args.n_out));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) k_gpu_group(const __grid_constant__ GroupPairsArgs args) {
  extern __shared__ int experts[];
  __shared__ Room room;
  int *count = experts, *begin = experts + args.n_expert;
  const int n_pairs = args.n_tokens * args.n_used, thread = threadIdx.x;
  for (int e = thread; e < args.n_expert; e += 256) count[e] = 0;
  __syncthreads();
  for (int p = thread; p < n_pairs; p += 256) {
    const int id = staged_id(args, p);
    if (id >= 0) atomicAdd(&count[id], 1);
  }
  __syncthreads();
  const int chunk = (args.n_expert + 255) / 256, first = thread * chunk < args.n_expert ? thread * chunk : args.n_expert;
  const int last = first + chunk < args.n_expert ? first + chunk : args.n_expert;
  int tasks = 0, pairs = 0;
  for (int e = first; e < last; ++e) {
    tasks += (count[e] + args.task_pairs - 1) / args.task_pairs;
    pairs += count[e];
  }
  scan256(room.tasks, tasks);
  scan256(room.pairs, pairs);
  write_tasks(args, count, begin, first, last, room.tasks[thread], room.pairs[thread]);
  int n_missed = 0;
  for (int base = 0; base < n_pairs; base += 256) {
    __syncthreads();
    room.ids[thread] = staged_id(args, base + thread);
    __syncthreads();
    if (thread >= 32) continue;
    for (int i = 0; i < 256 && base + i < n_pairs; i += 32)
      place_pairs(args, room.ids[i + thread], base + i + thread, begin, n_missed);
  }
  if (thread == 0) *args.counts = {room.tasks[256], room.pairs[256], n_missed};
}

extern "C" __global__ void __launch_bounds__(256) k_gpu_dispatch(const __grid_constant__ DispatchArgs args) {
  const uint64_t sequence = args.step->sequence;
  if (args.state->stopped == sequence) return;
  const auto n_missed = static_cast<uint64_t>(args.counts->n_missed);
  if (n_missed > 0 && blockIdx.x == 0 && threadIdx.x == 0) args.state->dispatched_ns = device_time_ns();
  copy_rows(args.selection, args.selection_stride, args.routing, 2 * args.n_used, args.n_tokens, 2 * args.n_used);
  if (n_missed > 0) {
    copy_rows(args.selection, args.selection_stride, args.host_selection, args.selection_stride, args.n_tokens,
              2 * args.n_used);
    copy_rows(args.x, args.x_stride, args.host_x, args.x_stride, args.n_tokens, args.n_in);
  }
  if (is_last_block(args.state) && threadIdx.x == 0)
    store_release_system(args.doorbell, sequence << kDoorbellShift | n_missed);
}

extern "C" __global__ void __launch_bounds__(32) k_gpu_wait(const __grid_constant__ WaitArgs args) {
  const uint64_t sequence = args.step->sequence;
  if (threadIdx.x != 0 || args.counts->n_missed == 0 || args.state->stopped == sequence) return;
  const uint64_t start = device_time_ns();
  for (int i = 0; load_acquire_system(args.done) < sequence; ++i) {
    if (i % 8 != 0) continue;  // the done word is what is waited for; the others cost a trip over the bus each
    const bool late = device_time_ns() - start > args.step->handoff_ns;
    if (!late && load_acquire_system(args.abort) < sequence) continue;
    args.state->stopped = sequence;
    if (late) store_release_system(args.failure, sequence << kFailureShift | static_cast<uint64_t>(args.job + 1));
    return;
  }
}

extern "C" __global__ void __launch_bounds__(256) k_gpu_collect(const __grid_constant__ CollectArgs args) {
  const int i = blockIdx.x * 256 + threadIdx.x, n_missed = args.counts->n_missed;
  if (n_missed == 0 || args.state->stopped == args.step->sequence) return;
  const volatile float* host = args.host;
  for (int m = blockIdx.y; m < n_missed && i < args.width; m += gridDim.y) {
    const int pair = args.missed[m];
    const int64_t at = pair / args.n_used * args.row_stride + pair % args.n_used * static_cast<int64_t>(args.width) + i;
    args.out[at] = host[at];
  }
  if (is_last_block(args.state) && threadIdx.x == 0)
    store_release_system(args.timing, device_time_ns() - args.state->dispatched_ns);
}

extern "C" __global__ void __launch_bounds__(256) k_gpu_finish(const __grid_constant__ FinishArgs args) {
  const uint64_t sequence = args.step->sequence;
  if (args.state->stopped == sequence) return;
  copy_rows(reinterpret_cast<const uint32_t*>(args.logits), args.row_stride, reinterpret_cast<uint32_t*>(args.host),
            args.row_stride, args.n_rows, args.width);
  if (is_last_block(args.state) && threadIdx.x == 0) store_release_system(args.step_done, sequence);
}

}  // namespace strata::cuda
