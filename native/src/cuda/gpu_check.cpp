// What the kernels do not compute, refused with the op's place before anything is allocated.
#include "cuda/gpu_ops.h"

namespace strata::cuda {
namespace {

constexpr int64_t kSharedBytes = 48 << 10;    // of a block, without asking for more
constexpr int64_t kGroupRoomBytes = 4 << 10;  // k_gpu_group's own part of it
constexpr int32_t kMaxRouterGroups = 64;      // k_router
constexpr int64_t kMaxGridHeight = 65535;
static_assert(kMaxParts == STRATA_OP_N_OUT, "k_linear takes all matrices of a LINEAR");

struct OpCheck {
  const Plan& plan;
  const strata_op& op;
  int64_t index;
  Error& error;

  Status refuse(const char* what, int64_t value, const char* accepted) const {
    return error.fail(STRATA_E_UNSUPPORTED, "op %lld %s, layer %d, cannot run on a GPU: %s is %lld; accepted: %s",
                      static_cast<long long>(index), op_name(op.kind), op.layer, what, static_cast<long long>(value),
                      accepted);
  }

  Status router() const {
    const int64_t n_expert = op.i[STRATA_ROUTER_I_N_EXPERT], n_group = op.i[STRATA_ROUTER_I_N_GROUP];
    if (n_group > kMaxRouterGroups) return refuse("i[N_GROUP]", n_group, "at most 64");
    if (8 * n_expert > kSharedBytes) return refuse("i[N_EXPERT]", n_expert, "at most 6144");
    return STRATA_OK;
  }
  Status experts() const {
    const strata_expert_set& set = plan.expert_sets[op.i[STRATA_EXPERTS_I_SET]];
    const int64_t n_pairs = int64_t{plan.n_batch} * set.n_used;
    if (8 * int64_t{set.n_expert} > kSharedBytes - kGroupRoomBytes) return refuse("n_expert", set.n_expert, "at most 5632");
    if (max_expert_tasks(n_pairs, set.n_expert, kMaxTokens) > kMaxGridHeight)
      return refuse("the number of (token, expert) pairs of a batch", n_pairs,
                    "what 65535 tasks of 8 hold; a smaller batch");
    return STRATA_OK;
  }
  Status attention() const {
    const strata_kv_layer& layer = plan.kv_layers[op.i[STRATA_ATTENTION_I_KV_LAYER]];
    const int64_t n_head = op.i[STRATA_ATTENTION_I_N_HEAD];
    if (layer.head_k > kAttnMaxHeadK) return refuse("head_k", layer.head_k, "at most 752");
    if (op.in[3] >= 0) return refuse("in[3], a list of keys,", op.in[3], "-1: all keys");
    if (n_head % layer.n_head_kv != 0) return refuse("i[N_HEAD]", n_head, "a multiple of n_head_kv");
    return STRATA_OK;
  }

  Status run() const {
    switch (op.kind) {
      case STRATA_OP_ROUTER:
        return router();
      case STRATA_OP_EXPERTS:
        return experts();
      case STRATA_OP_ATTENTION:
        return attention();
      default:
        break;
    }
    if (op.kind >= STRATA_OP_EMBED && op.kind <= STRATA_OP_SCALE) return STRATA_OK;
    const char* what = op.kind < STRATA_OP_CONV ? "this op" : "layers with recurrent states";
    return error.fail(STRATA_E_UNSUPPORTED, "op %lld %s, layer %d: there is no CUDA kernel for %s; the device cpu runs %s",
                      static_cast<long long>(index), op_name(op.kind), op.layer, what,
                      op.kind < STRATA_OP_CONV ? "it" : "them");
  }
};

}  // namespace

Status check_plan(const Plan& plan, Error& error) {
  if (plan.n_batch > kMaxGridRows || plan.n_outputs_max > kMaxGridRows) {
    return error.fail(STRATA_E_UNSUPPORTED, "n_batch is %d and n_outputs_max %d; a GPU takes steps of at most %lld rows",
                      plan.n_batch, plan.n_outputs_max, static_cast<long long>(kMaxGridRows));
  }
  for (int64_t i = 0; i < plan.ops.size(); ++i) STRATA_TRY((OpCheck{plan, plan.ops[i], i, error}.run()));
  return STRATA_OK;
}

}  // namespace strata::cuda
