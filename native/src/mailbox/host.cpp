#include "mailbox/host.h"

#include <string.h>

namespace strata {
namespace {

constexpr int64_t kPage = 4096;

int64_t count_jobs(const Plan& plan) {
  int64_t n = 0;
  for (const strata_op& op : plan.ops) n += op.kind == STRATA_OP_EXPERTS ? 1 : 0;
  return n;
}

int64_t routing_bytes(const Plan& plan, const strata_op& op) {
  const strata_expert_set& set = plan.expert_sets[op.i[STRATA_EXPERTS_I_SET]];
  return round_up(int64_t{plan.n_batch} * 2 * set.n_used * 4, 64);
}

}  // namespace

int64_t Mailbox::measure_bytes(const Plan& plan) {
  int64_t bytes = round_up(mailbox_control_bytes(static_cast<int32_t>(count_jobs(plan))), kPage);
  for (const strata_op& op : plan.ops)
    if (op.kind == STRATA_OP_EXPERTS) bytes += routing_bytes(plan, op);
  return round_up(bytes, kPage) + round_up(plan.activations_bytes, kPage);
}

Status Mailbox::open(const Plan& plan, Error& error) {
  const int64_t n_jobs = count_jobs(plan), bytes = measure_bytes(plan);
  if (!jobs_.resize(n_jobs) || !arena_.open(bytes))
    return error.fail(STRATA_E_MEMORY, "no memory for a mailbox of %lld bytes", static_cast<long long>(bytes));
  memset(arena_.data(), 0, static_cast<size_t>(bytes));
  int64_t at = round_up(mailbox_control_bytes(static_cast<int32_t>(n_jobs)), kPage);
  int32_t j = 0;
  for (int32_t i = 0; i < plan.ops.size(); ++i) {
    const strata_op& op = plan.ops[i];
    if (op.kind != STRATA_OP_EXPERTS) continue;
    jobs_[j++] = {i, plan.expert_sets[op.i[STRATA_EXPERTS_I_SET]].n_used, at};
    at += routing_bytes(plan, op);
  }
  activations_ = round_up(at, kPage);
  return STRATA_OK;
}

}  // namespace strata
