// The kernels of a step's walk that meet no matrix, against naive loops, bit for bit: the router's choice, pairs as tasks
// and misses, plain rows; and the mailbox's kernels against a host thread: rows over and back, abort, deadline.
//
// test_cuda_gpu [NVRTC library or folder] [cache folder] [short]; exit code 77: no GPU here.
#include <algorithm>
#include <atomic>

#include "base/clock.h"
#include "base/ieee_math.h"
#include "cuda/gpu_args.h"
#include "cuda_kit.h"

namespace {
using namespace kit;

const cpu::VecMath& vec() { return *cpu::vec_math(cpu::Tier::scalar); }
std::string name(const char* kernel, int64_t a, int64_t b) {
  return std::string(kernel) + " " + std::to_string(a) + " " + std::to_string(b);
}
size_t at(int64_t i) { return static_cast<size_t>(i); }

// ---- router ---------------------------------------------------------------------------------------------------------

// The ids of the n best values, largest first; the lower id wins ties.
std::vector<int32_t> best_of(const std::vector<float>& values, int64_t n) {
  std::vector<int32_t> ids(values.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)]; });
  ids.resize(static_cast<size_t>(n));
  return ids;
}

void naive_router(const cuda::RouterArgs& a, const float* x, const float* bias, int32_t* ids, float* weights) {
  const int64_t n = a.n_expert;
  std::vector<float> scores(x, x + n), choice;
  const float largest = vec().max(x, n);
  if (a.scores == STRATA_SCORES_SOFTMAX) {
    const float sum = vec().exp_sub(x, largest, scores.data(), n);
    for (float& s : scores) s = s / sum;
  } else if (a.scores == STRATA_SCORES_SIGMOID) {
    vec().unary(cpu::Unary::sigmoid, x, scores.data(), n);
  } else if (a.scores == STRATA_SCORES_SQRT_SOFTPLUS) {
    vec().unary(cpu::Unary::softplus, x, scores.data(), n);
    vec().unary(cpu::Unary::sqrt, scores.data(), scores.data(), n);
  }
  choice = a.select_logits != 0 ? std::vector<float>(x, x + n) : scores;
  for (int64_t e = 0; e < n; ++e) {
    float& value = choice[static_cast<size_t>(e)];
    if (bias != nullptr) value = value + bias[e];
    if (std::isnan(value)) value = -INFINITY;
  }
  std::vector<float> allowed = choice;
  if (a.n_group > 1) {
    const int64_t size = n / a.n_group;
    std::vector<float> group_scores;
    for (int64_t g = 0; g < a.n_group; ++g) {
      std::vector<float> members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      std::sort(members.begin(), members.end(), std::greater<float>());
      group_scores.push_back(size > 1 ? members[0] + members[1] : members[0]);
    }
    const std::vector<int32_t> kept = best_of(group_scores, a.n_group_used);
    for (int64_t e = 0; e < n; ++e)
      if (std::find(kept.begin(), kept.end(), e / size) == kept.end()) allowed[static_cast<size_t>(e)] = -INFINITY;
  }
  const std::vector<int32_t> chosen = best_of(allowed, a.n_used);
  for (int64_t k = 0; k < a.n_used; ++k) ids[k] = chosen[static_cast<size_t>(k)] / std::max(a.chunk, 1);
  float sum = 0.0f, top = -INFINITY;
  for (int64_t k = 0; k < a.n_used; ++k) top = std::max(top, x[ids[k]]);
  for (int64_t k = 0; k < a.n_used; ++k) {
    weights[k] = a.scores == STRATA_SCORES_SOFTMAX_WEIGHT ? m_exp(x[ids[k]] - top) : scores[static_cast<size_t>(ids[k])];
    sum += weights[k];
  }
  for (int64_t k = 0; k < a.n_used && a.scores == STRATA_SCORES_SOFTMAX_WEIGHT; ++k) weights[k] = weights[k] / sum;
  sum = 0.0f;
  for (int64_t k = 0; k < a.n_used; ++k) sum += weights[k];
  for (int64_t k = 0; k < a.n_used; ++k) {
    if (a.normalize != 0) weights[k] = weights[k] / std::max(sum, a.norm_min);
    if (a.scale != 1.0f) weights[k] = weights[k] * a.scale;
    if (std::isnan(largest)) weights[k] = largest;
  }
}

void test_router(Gpu& gpu, int32_t n_expert, int32_t n_used, int32_t scores, int32_t n_group, bool has_bias, bool by_logits,
                 int32_t chunk = 0) {
  const int64_t n_rows = 5, stride = n_expert + 1, out_stride = 2 * n_used + 2;
  std::vector<float> logits = random_row(n_rows * stride), bias = random_row(n_expert);
  for (int64_t e = 0; e < n_expert; ++e) {
    logits[static_cast<size_t>(stride + e)] = static_cast<float>(next_random() % 3);  // ties everywhere
    logits[static_cast<size_t>(2 * stride + e)] = e % 2 == 0 ? 0.0f : -0.0f;
  }
  logits[static_cast<size_t>(3 * stride)] = NAN;
  Device<float> gpu_logits(gpu, logits), gpu_bias(gpu, bias);
  Device<int32_t> selection(gpu, n_rows * out_stride);
  const cuda::RouterArgs args{gpu_logits.get(),
                              has_bias ? gpu_bias.get() : nullptr,
                              selection.get(),
                              stride,
                              out_stride,
                              n_expert,
                              n_used,
                              scores,
                              n_group,
                              n_group / 2,
                              n_used % 2,
                              by_logits,
                              n_used % 3 == 0 ? 2.5f : 1.0f,
                              1e-20f,
                              chunk};
  gpu.launch("router", "k_router", n_rows, 1, 32, int64_t{8} * n_expert, args);
  const std::vector<int32_t> got = selection.read();
  std::vector<int32_t> want_ids(static_cast<size_t>(n_used)), ids(want_ids.size());
  std::vector<float> want_weights(want_ids.size()), weights(want_ids.size());
  for (int64_t r = 0; r < n_rows; ++r) {
    naive_router(args, logits.data() + r * stride, has_bias ? bias.data() : nullptr, want_ids.data(), want_weights.data());
    std::memcpy(ids.data(), got.data() + r * out_stride, ids.size() * 4);
    std::memcpy(weights.data(), got.data() + r * out_stride + n_used, ids.size() * 4);
    same(name("k_router ids", n_expert, scores), ids, want_ids);
    same_floats(name("k_router weights", n_expert, scores), weights, want_weights);
  }
}

// ---- pairs ----------------------------------------------------------------------------------------------------------

// Selection rows of n_used distinct experts (of the lower half and some, so that some are never chosen), weights behind.
std::vector<int32_t> random_selection(int32_t n_tokens, int32_t n_used, int32_t n_expert, int64_t stride) {
  std::vector<int32_t> rows(at(n_tokens * stride), -1);
  for (int64_t t = 0; t < n_tokens; ++t) {
    const std::vector<int32_t> chosen = best_of(random_row(std::min(n_expert, n_expert / 2 + n_used)), n_used);
    std::copy(chosen.begin(), chosen.end(), rows.begin() + t * stride);
    const std::vector<float> weights = random_row(n_used);
    std::memcpy(&rows[at(t * stride + n_used)], weights.data(), weights.size() * 4);
  }
  return rows;
}

// What the host expects of k_gpu_group, by asking for every expert.
struct Grouped {
  std::vector<int32_t> tokens, pairs, outs, missed;
  std::vector<uint64_t> tasks;  // slot, first pair, number of pairs

  Grouped(const cuda::GroupPairsArgs& a, const std::vector<int32_t>& rows, const std::vector<uint64_t>& slots) {
    const int32_t n_pairs = a.n_tokens * a.n_used;
    const auto id_of = [&](int32_t p) { return rows[at(p / a.n_used * a.selection_stride + p % a.n_used)]; };
    for (int32_t e = 0; e < a.n_expert; ++e) {
      int32_t in_task = 0;
      for (int32_t p = 0; p < n_pairs; ++p) {
        if (id_of(p) != e || slots[at(e)] == 0) continue;
        if (in_task == 0 || in_task == a.task_pairs) {
          tasks.insert(tasks.end(), {slots[at(e)], tokens.size(), 0});
          in_task = 0;
        }
        ++in_task, ++tasks.back();
        tokens.push_back(p / a.n_used);
        pairs.push_back(p);
        outs.push_back(static_cast<int32_t>(p / a.n_used * a.out_row + p % a.n_used * a.n_out));
      }
    }
    for (int32_t p = 0; p < n_pairs; ++p)
      if (slots[at(id_of(p))] == 0) missed.push_back(p);
  }
};

void test_group(Gpu& gpu, int32_t n_tokens, int32_t n_used, int32_t n_expert, int resident_percent) {
  const int64_t stride = 2 * n_used + 1, n_pairs = int64_t{n_tokens} * n_used;
  const std::vector<int32_t> rows = random_selection(n_tokens, n_used, n_expert, stride);
  std::vector<uint64_t> slots(at(n_expert));
  for (uint64_t& slot : slots)
    slot = static_cast<int>(next_random() % 100) < resident_percent ? 64 * (1 + next_random() % 1000) : 0;
  Device<int32_t> ids(gpu, rows), token(gpu, n_pairs), id(gpu, n_pairs), out(gpu, n_pairs), missed(gpu, n_pairs);
  Device<uint64_t> gpu_slots(gpu, slots);
  Device<cuda::ExpertTask> gpu_tasks(gpu, n_pairs);
  Device<cuda::PairCounts> counts(gpu, 1);
  const cuda::GroupPairsArgs args{ids.get(),   stride,   gpu_slots.get(), gpu_tasks.get(), counts.get(),
                                  token.get(), id.get(), out.get(),       missed.get(),    n_used * 48 + 16,
                                  48,          n_tokens, n_used,          n_expert,        n_tokens <= 2 ? n_tokens : 8};
  gpu.launch("gpu.mailbox", "k_gpu_group", 1, 1, 256, int64_t{8} * n_expert, args);
  const Grouped want(args, rows, slots);
  const std::string what = name("k_gpu_group", n_tokens, n_expert) + " " + std::to_string(resident_percent);
  const auto head = [](std::vector<int32_t> all, size_t n) { return all.resize(n), all; };
  const cuda::PairCounts got = counts.read()[0];
  same<size_t>(what + " counts", {at(got.n_tasks), at(got.n_pairs), at(got.n_missed)},
               {want.tasks.size() / 3, want.tokens.size(), want.missed.size()});
  same(what + " tokens", head(token.read(), want.tokens.size()), want.tokens);
  same(what + " pairs", head(id.read(), want.pairs.size()), want.pairs);
  same(what + " places", head(out.read(), want.outs.size()), want.outs);
  same(what + " missed", head(missed.read(), want.missed.size()), want.missed);
  std::vector<uint64_t> tasks;
  for (const cuda::ExpertTask& task : gpu_tasks.read()) {
    if (tasks.size() == want.tasks.size()) break;
    tasks.insert(tasks.end(), {reinterpret_cast<uint64_t>(task.slot), at(task.first_pair), at(task.n_pairs)});
  }
  same(what + " tasks", tasks, want.tasks);
}

// ---- rows -----------------------------------------------------------------------------------------------------------

void test_rows(Gpu& gpu, int64_t width) {
  const int64_t n_rows = 3, blocks = (width + 255) / 256, stride = 2 * width + 3;
  const auto w = static_cast<int32_t>(width);
  const std::vector<float> x = random_row(n_rows * stride), factor{0.37f};
  const std::vector<int32_t> order{2, 0, 2, 1, 1}, pos{0, 8191, 40000};
  Device<float> in(gpu, x), gpu_factor(gpu, factor), out(gpu, n_rows * stride), gathered(gpu, 5 * width);
  Device<int32_t> rows(gpu, order), gpu_pos(gpu, pos);
  std::vector<float> want(x.size(), std::nanf(""));
  for (int64_t r = 0; r < n_rows; ++r)
    for (int64_t i = 0; i < 2 * width; ++i) want[at(r * stride + i % width * 2 + i / width)] = x[at(r * stride + i)];
  // Vectors of one value each: every stride differs from the width.
  gpu.launch("gpu.rows", "k_gpu_copy", (2 * width + 255) / 256, n_rows, 256, 0,
             cuda::CopyArgs{in.get(), out.get(), stride, 1, stride, 2, w, 1});
  gpu.launch("gpu.rows", "k_gpu_copy", (2 * width + 255) / 256, n_rows, 256, 0,
             cuda::CopyArgs{in.get(width), out.get(1), stride, 1, stride, 2, w, 1});
  same_floats(name("k_gpu_copy", width, 1), out.read(), want);
  gpu.launch("gpu.rows", "k_gpu_gather", blocks, 5, 256, 0,
             cuda::GatherArgs{in.get(), gathered.get(), rows.get(), stride, width, w});
  want.clear();
  for (const int32_t row : order) want.insert(want.end(), x.begin() + row * stride, x.begin() + row * stride + width);
  same_floats(name("k_gpu_gather", width, 5), gathered.read(), want);
  Device<float> scaled(gpu, x), heated(gpu, x);
  gpu.launch("gpu.rows", "k_gpu_scale", blocks, n_rows, 256, 0, cuda::ScaleArgs{scaled.get(), gpu_factor.get(), stride, w});
  gpu.launch("gpu.rows", "k_gpu_temperature", blocks, n_rows, 256, 0,
             cuda::TemperatureArgs{heated.get(), gpu_pos.get(), stride, 8192, 1, w, 0.1f});
  want = x;
  std::vector<float> hot = x;
  for (int64_t r = 0; r < n_rows; ++r) {
    const auto steps = static_cast<double>((pos[at(r)] + 1) / 8192);
    const auto heat = static_cast<float>(1.0 + static_cast<double>(0.1f) * m_log_double(1.0 + steps));
    vec().scale(&x[at(r * stride)], factor[0], &want[at(r * stride)], width);
    vec().scale(&x[at(r * stride)], heat, &hot[at(r * stride)], width);
  }
  same_floats(name("k_gpu_scale", width, 0), scaled.read(), want);
  same_floats(name("k_gpu_temperature", width, 0), heated.read(), hot);
}

void test_weigh(Gpu& gpu, int32_t n_tokens, int32_t n_used, int32_t width) {
  const int64_t stride = 2 * n_used + 3, x_stride = width + 1;
  const std::vector<int32_t> rows = random_selection(n_tokens, n_used, 64, stride);
  const std::vector<float> x = random_row(n_tokens * x_stride);
  Device<int32_t> selection(gpu, rows);
  Device<float> in(gpu, x), out(gpu, int64_t{n_tokens} * n_used * width);
  const int32_t n_pairs = n_tokens * n_used, first = n_pairs / 2;
  for (const int32_t from : {0, first})
    gpu.launch("gpu.rows", "k_gpu_weigh", (width + 255) / 256, from == 0 ? first : n_pairs - first, 256, 0,
               cuda::WeighArgs{in.get(), selection.get(), out.get(), x_stride, stride, n_used, width, from});
  std::vector<float> want(at(int64_t{n_pairs} * width));
  for (int64_t p = 0; p < n_pairs; ++p) {
    float weight;
    std::memcpy(&weight, &rows[at(p / n_used * stride + n_used + p % n_used)], 4);
    vec().scale(&x[at(p / n_used * x_stride)], weight, &want[at(p * width)], width);
  }
  same_floats(name("k_gpu_weigh", n_tokens, width), out.read(), want);
}

}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(argc, argv);
  for (int32_t scores = STRATA_SCORES_SOFTMAX; scores <= STRATA_SCORES_SQRT_SOFTPLUS; ++scores) {
    test_router(gpu, 128, 8, scores, 0, false, scores == STRATA_SCORES_SOFTMAX_WEIGHT);
    test_router(gpu, 61, 3, scores, 0, true, scores == STRATA_SCORES_SOFTMAX_WEIGHT);
    test_router(gpu, 256, 9, scores, 8, true, scores == STRATA_SCORES_SOFTMAX_WEIGHT);
    test_router(gpu, 512, 10, scores, 0, false, true);
    test_router(gpu, 4, 4, scores, 0, true, false);
    test_router(gpu, 48, 6, scores, 0, true, false, 3);
    test_router(gpu, 64, 4, scores, 4, false, false, 2);
  }
  for (const int32_t n_tokens : {1, 2, 3, 8, 70}) {
    for (const int percent : {0, 45, 100}) {
      test_group(gpu, n_tokens, 4, 128, percent);
      test_group(gpu, n_tokens, 10, 512, percent);
      test_group(gpu, n_tokens, 2, 8, percent);
    }
  }
  test_group(gpu, 300, 8, 700, 60);
  for (const int64_t width : {1, 256, 1004}) test_rows(gpu, width);
  test_weigh(gpu, 1, 4, 300);
  test_weigh(gpu, 9, 3, 256);
  return finish();
}
