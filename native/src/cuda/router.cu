// k_router: scores, choice and weights of a token's experts.
//
// One warp for each token (block of 32 threads, grid = tokens), 8 * n_expert bytes of dynamic shared memory. The order of
// every sum and the ties are the CPU's (docs/numerics.md, section 8). Bytes moved: one row of logits.
#include "base/ieee_math.h"
#include "cuda/kernel_args.h"
#include "strata.h"

namespace strata::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kMaxGroups = 64;

STRATA_DEVICE float minus_infinity() { return __int_as_float(static_cast<int32_t>(0xff800000)); }

// Largest of x, +0 for a zero of either sign; NaN when any value is NaN.
STRATA_DEVICE float largest_of(const float* x, int n, int lane) {
  float best = minus_infinity(), poison = 0.0f;
  for (int i = lane; i < n; i += 32) {
    if (best < x[i]) best = x[i];
    if (x[i] != x[i]) poison = x[i];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAll, best, step), other_poison = __shfl_xor_sync(kAll, poison, step);
    if (best < other) best = other;
    if (other_poison != other_poison) poison = other_poison;
  }
  return poison != poison ? poison : best + 0.0f;
}

// 16 strided lanes and a tree; both halves of the warp get the sum.
STRATA_DEVICE float sum16(const float* x, int n, int lane) {
  float sum = 0.0f;
  for (int i = lane % 16; i < n; i += 16) sum = sum + x[i];
#pragma unroll
  for (int step = 8; step > 0; step /= 2) sum = sum + __shfl_xor_sync(kAll, sum, step);
  return sum;
}

STRATA_DEVICE void compute_scores(const RouterArgs& args, const float* x, float largest, float* scores, int lane) {
  const int n = args.n_expert;
  for (int i = lane; i < n; i += 32) {
    switch (args.scores) {
      case STRATA_SCORES_SOFTMAX:
        scores[i] = m_exp(x[i] - largest);
        break;
      case STRATA_SCORES_SIGMOID:
        scores[i] = m_sigmoid(x[i]);
        break;
      case STRATA_SCORES_SQRT_SOFTPLUS:
        scores[i] = v_sqrt(m_softplus(x[i]));
        break;
      default:
        scores[i] = x[i];
    }
  }
  __syncwarp();
  if (args.scores != STRATA_SCORES_SOFTMAX) return;
  const float sum = sum16(scores, n, lane);
  __syncwarp();
  for (int i = lane; i < n; i += 32) scores[i] = scores[i] / sum;
  __syncwarp();
}

// Sum of the two best of a group.
STRATA_DEVICE float group_score(const float* choice, int n) {
  float best = minus_infinity(), second = minus_infinity();
  for (int e = 0; e < n; ++e) {
    if (choice[e] > best) {
      second = best;
      best = choice[e];
    } else if (choice[e] > second) {
      second = choice[e];
    }
  }
  return n > 1 ? best + second : best;
}

// Takes the experts of groups that are not among the best out of the choice: bit g of the result says that group g stays.
STRATA_DEVICE uint64_t choose_groups(const RouterArgs& args, const float* choice, float* values, int lane) {
  const int n_group = args.n_group, size = args.n_expert / n_group;
  for (int g = lane; g < n_group; g += 32) values[g] = group_score(choice + g * size, size);
  __syncwarp();
  // An insertion into a list of the best, as a sum of infinities may be NaN and then only the order of offers decides.
  int ids[kMaxGroups];
  float best[kMaxGroups];
  int n = 0;
  for (int g = 0; g < n_group; ++g) {
    const float value = values[g];
    if (n == args.n_group_used && !(value > best[n - 1])) continue;
    int j = n < args.n_group_used ? n++ : n - 1;
    for (; j > 0 && value > best[j - 1]; --j) {
      best[j] = best[j - 1];
      ids[j] = ids[j - 1];
    }
    best[j] = value;
    ids[j] = g;
  }
  uint64_t kept = 0;
  for (int k = 0; k < n; ++k) kept |= uint64_t{1} << ids[k];
  return kept;
}

struct Candidate {
  float value;
  int id;  // n_expert: none

  __device__ __forceinline__ bool worse_than(const Candidate& other, int n_expert) const {
    if (other.id >= n_expert) return false;
    return id >= n_expert || other.value > value || (other.value == value && other.id < id);
  }
};
// The best of this lane's experts that are still free (ids >= 0 in `taken` are not).
STRATA_DEVICE Candidate best_of_lane(const float* choice, int n, int size, uint64_t kept, const int32_t* taken, int n_taken,
                                     int lane) {
  Candidate best{minus_infinity(), n};
  for (int e = lane; e < n; e += 32) {
    if ((kept >> (e / size) & 1) == 0) continue;
    bool is_free = true;
    for (int k = 0; k < n_taken; ++k) is_free = is_free && taken[k] != e;
    const Candidate candidate{choice[e], e};
    if (is_free && best.worse_than(candidate, n)) best = candidate;
  }
  return best;
}

// The chosen experts in order of choice; the lower id wins ties.
STRATA_DEVICE void choose(const RouterArgs& args, const float* choice, uint64_t kept, int32_t* ids, int lane) {
  const int n = args.n_expert, size = args.n_group > 1 ? n / args.n_group : n;
  Candidate mine = best_of_lane(choice, n, size, kept, ids, 0, lane);
  for (int k = 0; k < args.n_used; ++k) {
    Candidate best = mine;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const Candidate other{__shfl_xor_sync(kAll, best.value, step), __shfl_xor_sync(kAll, best.id, step)};
      if (best.worse_than(other, n)) best = other;
    }
    if (lane == 0) ids[k] = best.id;
    __syncwarp();
    if (mine.id == best.id) mine = best_of_lane(choice, n, size, kept, ids, k + 1, lane);
  }
}

// One thread: sums over the chosen run from +0 in order of choice.
STRATA_DEVICE void compute_weights(const RouterArgs& args, const float* x, const float* scores, const int32_t* ids,
                                   float* weights) {
  if (args.scores == STRATA_SCORES_SOFTMAX_WEIGHT) {
    float largest = minus_infinity(), sum = 0.0f;
    for (int k = 0; k < args.n_used; ++k) largest = x[ids[k]] > largest ? x[ids[k]] : largest;
    for (int k = 0; k < args.n_used; ++k) {
      weights[k] = m_exp(x[ids[k]] - largest);
      sum = sum + weights[k];
    }
    for (int k = 0; k < args.n_used; ++k) weights[k] = weights[k] / sum;
  } else {
    for (int k = 0; k < args.n_used; ++k) weights[k] = scores[ids[k]];
  }
  if (args.normalize != 0) {
    float sum = 0.0f;
    for (int k = 0; k < args.n_used; ++k) sum = sum + weights[k];
    const float divisor = m_max(sum, args.norm_min);
    for (int k = 0; k < args.n_used; ++k) weights[k] = weights[k] / divisor;
  }
  for (int k = 0; k < args.n_used && args.scale != 1.0f; ++k) weights[k] = weights[k] * args.scale;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(32) k_router(const __grid_constant__ RouterArgs args) {
  extern __shared__ float shared[];
  __shared__ float groups[kMaxGroups];
  float *scores = shared, *choice = shared + args.n_expert;
  const int lane = threadIdx.x;
  const float* x = args.logits + blockIdx.x * args.logits_stride;
  int32_t* ids = args.selection + blockIdx.x * args.selection_stride;
  auto* weights = reinterpret_cast<float*>(ids + args.n_used);
  const float largest = largest_of(x, args.n_expert, lane);
  compute_scores(args, x, largest, scores, lane);
  for (int e = lane; e < args.n_expert; e += 32) {
    float value = args.select_logits != 0 ? x[e] : scores[e];
    if (args.bias != nullptr) value = value + args.bias[e];
    choice[e] = value == value ? value : minus_infinity();
  }
  __syncwarp();
  const uint64_t kept = args.n_group > 1 ? choose_groups(args, choice, groups, lane) : ~uint64_t{0};
  choose(args, choice, kept, ids, lane);
  __syncwarp();  // other lanes have read the ids
  if (lane != 0) return;
  for (int k = 0; k < args.n_used && args.chunk > 1; ++k) ids[k] /= args.chunk;
  compute_weights(args, x, scores, ids, weights);
  for (int k = 0; k < args.n_used && largest != largest; ++k) weights[k] = largest;
}

}  // namespace strata::cuda
