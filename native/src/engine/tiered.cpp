// The CPU's half of a step: jobs in plan order, each a doorbell, perhaps missed pairs, and a done word.
#include "engine/tiered.h"

#include <sched.h>

#include <cmath>

#include "base/clock.h"
#include "engine/ops.h"

namespace strata {
namespace {

constexpr int32_t kPausesPerLook = 64;         // polls of a word between two looks at the clock and the other words
constexpr int64_t kYieldAfterNs = 100 * 1000;  // from then on the processor is offered to others between looks

class Host {
 public:
  Host(StepContext& ctx, const WalkConfig& config, WalkPlace& place, const TieredStep& tiered)
      : ctx_(ctx), config_(config), place_(place), t_(tiered) {}

  Status run() {
    for (int32_t j = 0; j < t_.mailbox.n_jobs(); ++j) STRATA_TRY(serve(j));
    return wait(kMailboxStepDone, 0, nullptr);
  }

  // Times of the jobs that had misses; the device has written its own by now.
  void note_times() {
    for (int32_t j = 0; j < t_.mailbox.n_jobs(); ++j) {
      const auto whole = static_cast<int64_t>(t_.mailbox.load(mailbox_timing(j)));
      if (t_.job_ns[j] < 0 || whole == 0) continue;
      t_.handoffs.add(STRATA_HANDOFF_OVERHEAD, whole > t_.job_ns[j] ? whole - t_.job_ns[j] : 0);
      t_.handoffs.add(STRATA_HANDOFF_COMPUTE, t_.job_ns[j]);
    }
  }

 private:
  Status fail_at(Status status, int64_t index, const char* what) {
    if (index < 0) return ctx_.error.fail(status, "%s", what);
    const strata_op& op = ctx_.plan().ops[index];
    return ctx_.error.fail(status, "op %lld %s, layer %d: %s", static_cast<long long>(index), op_name(op.kind), op.layer,
                           what);
  }

  int64_t op_of_job(int32_t job) const { return job < t_.mailbox.n_jobs() ? t_.mailbox.job(job).op : -1; }

  // Looks at everything but the awaited word.
  Status look(int64_t now, int64_t since, int64_t index) {
    place_.heartbeat_ns.store(now, std::memory_order_relaxed);
    if (ctx_.stopped()) return fail_at(STRATA_E_CANCELLED, index, "the step was aborted before the device came here");
    if (config_.deadline_ns != 0 && now > config_.deadline_ns)
      return fail_at(STRATA_E_DEADLINE, index, "the step's deadline passed before the device came here");
    const uint64_t failure = t_.mailbox.load(kMailboxFailure);
    if (failure >> kFailureShift == t_.sequence)
      return fail_at(STRATA_E_DEADLINE, op_of_job(static_cast<int32_t>(failure & 0xffff) - 1),
                     "the device waited in vain for missed experts");
    if (now - since > t_.wait_ns) return fail_at(STRATA_E_DEADLINE, index, "the device did not come here in time");
    return STRATA_OK;
  }

  // Until the word's sequence (above `shift` bits) is this step's.
  Status wait(int32_t word, int32_t shift, uint64_t* value) {
    const int64_t index = word >= kMailboxFirstJob ? op_of_job((word - kMailboxFirstJob) / 3) : ctx_.plan().ops.size() - 1;
    place_.op.store(static_cast<int32_t>(index), std::memory_order_relaxed);
    place_.layer.store(ctx_.plan().ops[index].layer, std::memory_order_relaxed);
    const int64_t since = now_ns();
    for (;;) {
      for (int32_t k = 0; k < kPausesPerLook; ++k) {
        const uint64_t now = t_.mailbox.load(word);
        if (now >> shift >= t_.sequence) {
          if (value != nullptr) *value = now;
          return STRATA_OK;
        }
        cpu_pause();
      }
      const int64_t now = now_ns();
      STRATA_TRY(look(now, since, index));
      if (ctx_.pool.yields() || now - since > kYieldAfterNs) sched_yield();
    }
  }

  Status serve(int32_t j) {
    const MailboxJob& job = t_.mailbox.job(j);
    const strata_op& op = ctx_.plan().ops[job.op];
    t_.job_ns[j] = -1;
    uint64_t word;
    const int64_t since = now_ns();
    STRATA_TRY(wait(mailbox_doorbell(j), kDoorbellShift, &word));
    const int64_t start = now_ns();
    ctx_.counters.handoff_wait_ns += start - since;
    for (int64_t t = 0; t < ctx_.step.n_tokens; ++t)
      walk_note_routing(ctx_, op.i[STRATA_EXPERTS_I_SET], t, t_.mailbox.routing(j, t));
    const auto n_missed = static_cast<int64_t>(word & ((uint64_t{1} << kDoorbellShift) - 1));
    ctx_.counters.expert_hits += int64_t{ctx_.step.n_tokens} * job.n_used - n_missed;
    if (n_missed == 0) return STRATA_OK;
    STRATA_TRY(compute(job.op, op, n_missed));
    t_.job_ns[j] = now_ns() - start;
    t_.mailbox.store(mailbox_done(j), t_.sequence);
    t_.handoffs.add(STRATA_HANDOFF_WAIT, start - since);
    return STRATA_OK;
  }

  Status compute(int32_t index, const strata_op& op, int64_t n_missed) {
    const int64_t before = ctx_.counters.expert_rows;
    ctx_.scratch_used = 0;
    if (config_.poison) poison_fill(ctx_.scratch, ctx_.scratch_bytes);
    const Status status = op_function(op.kind)->run(ctx_, op);
    if (status != STRATA_OK) {
      const Error cause = ctx_.error;
      ctx_.error.clear();
      return fail_at(status, index, cause.status != STRATA_OK ? cause.text : "failed");
    }
    if (ctx_.stopped()) return fail_at(STRATA_E_CANCELLED, index, "the step was aborted during this op");
    const int64_t computed = ctx_.counters.expert_rows - before;
    if (computed == n_missed) return STRATA_OK;
    return ctx_.error.fail(STRATA_E_INTERNAL, "op %d: the device missed %lld pairs, the CPU's table says %lld", index,
                           static_cast<long long>(n_missed), static_cast<long long>(computed));
  }

  StepContext& ctx_;
  const WalkConfig& config_;
  WalkPlace& place_;
  const TieredStep& t_;
};

}  // namespace

void Handoffs::add(int32_t kind, int64_t ns) {
  const int32_t bin = ns <= 1 ? 0 : static_cast<int32_t>(4.0 * std::log2(static_cast<double>(ns)));
  bins[kind][bin < STRATA_HANDOFF_BINS ? bin : STRATA_HANDOFF_BINS - 1].fetch_add(1, std::memory_order_relaxed);
}

Status walk_tiered(StepContext& ctx, const WalkConfig& config, WalkPlace& place, const TieredStep& tiered,
                   int64_t* sample_ns) {
  *sample_ns = 0;
  walk_prepare_outputs(ctx);
  Host host(ctx, config, place, tiered);
  Status status = tiered.device.begin_step(ctx.step, tiered.sequence, ctx.error);
  if (status == STRATA_OK) status = host.run();
  if (status != STRATA_OK) tiered.mailbox.store(kMailboxAbort, tiered.sequence);
  Error device_error;
  const Status ended = tiered.device.end_step(device_error);
  if (ended != STRATA_OK) {  // what went wrong on the device is the cause of what the CPU saw
    ctx.error.clear();
    return ctx.error.fail(ended, "%s", device_error.text);
  }
  if (status != STRATA_OK) return status;
  host.note_times();
  return walk_finish_outputs(ctx, config, place, sample_ns);
}

}  // namespace strata
