// EXPERTS: the job goes out to the CPU, the resident experts run meanwhile, then the missed rows come in.
//
//   group      pairs as tasks of resident experts and as misses, by the slot addresses of this moment
//   dispatch   selection and payload to the host, doorbell
//   resident   hidden rows (gate and up in one launch where their types agree), rounded for down, down to out[0]
//   wait       until the host has written the missed rows
//   collect    those rows to out[0]
#include <algorithm>

#include "cuda/gpu_ops.h"

namespace strata::cuda {

struct Walk::ExpertJob {
  const strata_op& op;
  const strata_expert_set& set;
  int32_t number;  // of the job: the plan's EXPERTS ops in order
  int32_t n_pairs;
  bool batched;        // large tasks, gate and up in launches of their own
  int32_t task_pairs;  // most pairs of a task
  int64_t max_tasks;
};

namespace {

// Offset of a tensor inside its set's slot; -1: absent.
int64_t in_slot(const Plan& plan, const strata_expert_set& set, int32_t tensor) {
  return tensor < 0 ? -1 : plan.tensors[tensor].arena_offset - set.arena_offset;
}
SlotMatrix slot_matrix(const Plan& plan, const strata_expert_set& set, int32_t w, int32_t bias, int32_t scale) {
  return {in_slot(plan, set, w), in_slot(plan, set, bias), in_slot(plan, set, scale)};
}

}  // namespace

Status Walk::experts(const strata_op& op) {
  const strata_expert_set& set = gpu_.plan->expert_sets[op.i[STRATA_EXPERTS_I_SET]];
  const auto has_batch = [&](int32_t tensor) { return tensor < 0 || type_of(tensor).expert_rows_batch != nullptr; };
  const bool batched = shape_.n_tokens > kFewTokens && has_batch(set.gate) && has_batch(set.up) && has_batch(set.down);
  const int32_t n_pairs = shape_.n_tokens * set.n_used,
                task_pairs = batched ? kTileTokens : std::min(shape_.n_tokens, kMaxTokens);
  const ExpertJob job{op, set, n_jobs_++, n_pairs, batched, task_pairs, max_expert_tasks(n_pairs, set.n_expert, task_pairs)};
  STRATA_TRY(group(job));
  STRATA_TRY(dispatch(job));
  if (gpu_.has_slots) STRATA_TRY(resident(job));
  return collect(job);
}

Status Walk::group(const ExpertJob& job) {
  const ExpertPlaces& places = gpu_.layout->experts;
  const int32_t set_id = job.op.i[STRATA_EXPERTS_I_SET];
  GroupPairsArgs args{};
  args.ids = reinterpret_cast<const int32_t*>(row(job.op.in[1]));
  args.selection_stride = stride(job.op.in[1]);
  args.slots = at<const uint64_t>(gpu_.layout->addresses) + int64_t{set_id} * gpu_.layout->width;
  args.tasks = at<ExpertTask>(places.tasks);
  args.counts = at<PairCounts>(places.counts);
  args.pair_token = at<int32_t>(places.pair_token);
  args.pair_id = at<int32_t>(places.pair_id);
  args.pair_out = at<int32_t>(places.pair_out);
  args.missed = at<int32_t>(places.missed);
  args.out_row = stride(job.op.out[0]);
  args.n_out = job.set.n_out;
  args.n_tokens = shape_.n_tokens;
  args.n_used = job.set.n_used;
  args.n_expert = job.set.n_expert;
  args.task_pairs = job.task_pairs;
  return go(gpu_.functions->group, 1, 1, 256, args, 8 * int64_t{job.set.n_expert});
}

Status Walk::dispatch(const ExpertJob& job) {
  const int32_t x = job.op.in[0], selection = job.op.in[1];
  DispatchArgs args{};
  args.step = header();
  args.state = state();
  args.counts = at<const PairCounts>(gpu_.layout->experts.counts);
  args.x = reinterpret_cast<const uint32_t*>(row(x));
  args.selection = reinterpret_cast<const uint32_t*>(row(selection));
  args.host_x = reinterpret_cast<uint32_t*>(host_row(x));
  args.host_selection = reinterpret_cast<uint32_t*>(host_row(selection));
  args.routing = shared<uint32_t>(gpu_.mailbox->job(job.number).routing_offset);
  args.doorbell = shared<uint64_t>(mailbox_line(mailbox_doorbell(job.number)));
  args.x_stride = stride(x);
  args.selection_stride = stride(selection);
  args.n_tokens = shape_.n_tokens;
  args.n_in = job.set.n_in;
  args.n_used = job.set.n_used;
  const int64_t blocks = std::min<int64_t>(ceil_div(int64_t{args.n_tokens} * args.n_in, 512), 128);
  return go(gpu_.functions->dispatch, blocks, 1, 256, args);
}

// Input rows of gate or up: one for each token; with weight_on_input one for each pair.
Status Walk::input_acts(const ExpertJob& job, int32_t tensor, Acts& acts) {
  const int32_t type = gpu_.plan->tensors[tensor].type;
  if (job.set.weight_on_input == 0) return acts_of(job.op.in[0], type, job.set.n_in, acts);
  const cpu::ActForm form = act_form(type);
  const int32_t f = static_cast<int32_t>(form);
  const float* rows = at<const float>(gpu_.layout->experts.weighted);
  acts = {reinterpret_cast<const uint8_t*>(rows), int64_t{job.set.n_in} * 4};
  if (form == cpu::ActForm::f32) return STRATA_OK;
  rounded_[f].buffer = -1;
  acts = {at<const uint8_t>(gpu_.layout->acts[f]), gpu_act_row_bytes(form, job.set.n_in)};
  return round_rows(form, rows, job.set.n_in, job.set.n_in, job.n_pairs, nullptr, gpu_.layout->acts[f]);
}

Status Walk::resident(const ExpertJob& job) {
  const ExpertPlaces& places = gpu_.layout->experts;
  const bool weighted = job.set.weight_on_input != 0;
  for (int32_t first = 0; weighted && first < job.n_pairs; first += static_cast<int32_t>(kMaxGridRows)) {
    const WeighArgs args{row(job.op.in[0]),    reinterpret_cast<const int32_t*>(row(job.op.in[1])),
                         at(places.weighted),  stride(job.op.in[0]),
                         stride(job.op.in[1]), job.set.n_used,
                         job.set.n_in,         first};
    STRATA_TRY(go(gpu_.functions->weigh, ceil_div(job.set.n_in, 256), std::min<int64_t>(kMaxGridRows, job.n_pairs - first),
                  256, args));
  }
  ExpertArgs args{};
  args.tasks = at<const ExpertTask>(places.tasks);
  args.n_tasks = &at<const PairCounts>(places.counts)->n_tasks;
  args.pair_in = at<const int32_t>(weighted ? places.pair_id : places.pair_token);
  args.n_cols = job.set.n_in;
  args.n_rows = job.set.n_ff;
  args.out = at(places.hidden);
  args.out_stride = job.set.n_ff;
  args.glu = job.set.glu;
  args.p0 = job.set.p0;
  args.p1 = job.set.p1;
  STRATA_TRY(hidden_rows(job, args));
  return down_rows(job, args);
}

Status Walk::hidden_rows(const ExpertJob& job, ExpertArgs& args) {
  const Plan& plan = *gpu_.plan;
  const strata_expert_set& set = job.set;
  const TypeFunctions& type = type_of(set.up);
  const bool alike = set.gate < 0 || plan.tensors[set.gate].type == plan.tensors[set.up].type;
  if (job.batched || !alike || !type.kernels->packed()) return apart(job, args);
  Acts acts;
  STRATA_TRY(input_acts(job, set.up, acts));
  args.acts = acts.rows;
  args.act_stride = acts.stride;
  args.gate = slot_matrix(plan, set, set.gate, set.gate_bias, set.gate_scale);
  args.up = slot_matrix(plan, set, set.up, set.up_bias, set.up_scale);
  return go(type.expert_in[variant_of(job.task_pairs)], ceil_div(set.n_ff, type.kernels->rows_per_block), job.max_tasks,
            2 * type.kernels->threads, args);
}

// Gate and up in launches of their own, then the activation over the gate's rows (over up's, where there is no gate).
Status Walk::apart(const ExpertJob& job, ExpertArgs& args) {
  const Plan& plan = *gpu_.plan;
  const strata_expert_set& set = job.set;
  const auto rows = [&](int32_t tensor, int32_t bias, int32_t scale, int64_t place) -> Status {
    const TypeFunctions& type = type_of(tensor);
    Acts acts;
    STRATA_TRY(input_acts(job, tensor, acts));
    args.acts = acts.rows;
    args.act_stride = acts.stride;
    args.up = slot_matrix(plan, set, tensor, bias, scale);
    args.out = at(place);
    return expert_rows(job, type, args);
  };
  const ExpertPlaces& places = gpu_.layout->experts;
  if (set.gate >= 0) STRATA_TRY(rows(set.gate, set.gate_bias, set.gate_scale, places.hidden));
  STRATA_TRY(rows(set.up, set.up_bias, set.up_scale, places.up));
  for (int64_t first = 0; first < job.n_pairs; first += kMaxGridRows) {
    ElementArgs glu{};
    glu.out = at(places.hidden) + first * set.n_ff;
    glu.y = at(places.up) + first * set.n_ff;
    if (set.gate >= 0) glu.x = glu.out;
    glu.x_stride = glu.y_stride = glu.out_stride = set.n_ff;
    glu.width = set.n_ff;
    glu.kind = set.glu;
    glu.a = set.p0;
    glu.b = set.p1;
    STRATA_TRY(go(gpu_.functions->glu, ceil_div(set.n_ff, 256), std::min(kMaxGridRows, job.n_pairs - first), 256, glu));
  }
  return STRATA_OK;
}

Status Walk::down_rows(const ExpertJob& job, ExpertArgs& args) {
  const ExpertPlaces& places = gpu_.layout->experts;
  const strata_expert_set& set = job.set;
  const TypeFunctions& type = type_of(set.down);
  const cpu::ActForm form = act_form(gpu_.plan->tensors[set.down].type);
  args.acts = at<const uint8_t>(places.hidden);
  args.act_stride = int64_t{set.n_ff} * 4;
  if (form != cpu::ActForm::f32) {
    STRATA_TRY(round_rows(form, at<const float>(places.hidden), set.n_ff, set.n_ff, job.n_pairs,
                          &at<const PairCounts>(places.counts)->n_pairs, places.hidden_acts));
    args.acts = at<const uint8_t>(places.hidden_acts);
    args.act_stride = gpu_act_row_bytes(form, set.n_ff);
  }
  args.pair_in = nullptr;
  args.pair_out = at<const int32_t>(places.pair_out);  // floats: out_stride is 1
  args.n_cols = set.n_ff;
  args.n_rows = set.n_out;
  args.out = row(job.op.out[0]);
  args.out_stride = 1;
  args.up = slot_matrix(*gpu_.plan, set, set.down, set.down_bias, set.down_scale);
  return expert_rows(job, type, args);
}

// One matrix of the resident experts, args.n_rows rows of it.
Status Walk::expert_rows(const ExpertJob& job, const TypeFunctions& type, const ExpertArgs& args) {
  if (job.batched) return go(type.expert_rows_batch, ceil_div(args.n_rows, kTileRows), job.max_tasks, kBatchThreads, args);
  return go(type.expert_rows[variant_of(job.task_pairs)], ceil_div(args.n_rows, type.kernels->rows_per_block), job.max_tasks,
            type.kernels->threads, args);
}

Status Walk::collect(const ExpertJob& job) {
  const PairCounts* counts = at<const PairCounts>(gpu_.layout->experts.counts);
  WaitArgs wait{};
  wait.step = header();
  wait.state = state();
  wait.counts = counts;
  wait.abort = shared<const uint64_t>(mailbox_line(kMailboxAbort));
  wait.done = shared<const uint64_t>(mailbox_line(mailbox_done(job.number)));
  wait.failure = shared<uint64_t>(mailbox_line(kMailboxFailure));
  wait.job = job.number;
  STRATA_TRY(go(gpu_.functions->wait, 1, 1, 32, wait));
  CollectArgs args{};
  args.step = header();
  args.state = state();
  args.counts = counts;
  args.missed = at<const int32_t>(gpu_.layout->experts.missed);
  args.host = host_row(job.op.out[0]);
  args.out = row(job.op.out[0]);
  args.timing = shared<uint64_t>(mailbox_line(mailbox_timing(job.number)));
  args.row_stride = stride(job.op.out[0]);
  args.n_used = job.set.n_used;
  args.width = job.set.n_out;
  return go(gpu_.functions->collect, ceil_div(args.width, 256), std::min<int64_t>(job.n_pairs, 256), 256, args);
}

}  // namespace strata::cuda
