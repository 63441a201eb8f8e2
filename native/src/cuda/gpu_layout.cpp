#include "cuda/gpu_layout.h"

#include <algorithm>

#include "cuda/gpu_args.h"
#include "cuda/layout.h"

namespace strata::cuda {
namespace {

constexpr int64_t kAlign = 256;

// Hands out places one after the other.
struct Cursor {
  int64_t at = 0;
  bool overflow = false;

  int64_t take(int64_t bytes) {
    const int64_t place = at;
    const int64_t rounded = round_up(bytes, kAlign);
    if (bytes < 0 || rounded < 0 || __builtin_add_overflow(at, rounded, &at)) overflow = true;
    return place;
  }
};

bool lay_out_layer(const strata_kv_layer& heads, int32_t kv_type, int64_t offset, int32_t n_blocks, KvLayer& layer) {
  layer.offset = offset;
  layer.k_row_bytes = cpu::kv_row_bytes(kv_type, heads.head_k);
  layer.v_row_bytes = heads.v_in_k != 0 ? layer.k_row_bytes : cpu::kv_row_bytes(kv_type, heads.head_v);
  const int64_t keys_bytes = heads.n_head_kv * kKvBlock * layer.k_row_bytes;
  layer.v_offset = heads.v_in_k != 0 ? 0 : keys_bytes;
  layer.v_head_bytes = kKvBlock * layer.v_row_bytes;
  layer.block_bytes = heads.v_in_k != 0 ? keys_bytes : keys_bytes + heads.n_head_kv * layer.v_head_bytes;
  int64_t bytes;
  return !__builtin_mul_overflow(layer.block_bytes, int64_t{n_blocks}, &bytes);
}

// As KvStore lays them out; its own measure has refused what does not fit.
Status place_kv(const Plan& plan, const GpuConfig& config, GpuLayout& layout, Error& error) {
  layout.kv_bytes = KvStore::measure_bytes(plan, config.kv_type, config.n_kv_blocks);
  if (layout.kv_bytes < 0) {
    return error.fail(STRATA_E_UNSUPPORTED, "a KV cache of type %d with %d blocks is not possible with this model's heads",
                      config.kv_type, config.n_kv_blocks);
  }
  if (!layout.kv_layers.resize(plan.kv_layers.size())) return error.fail(STRATA_E_MEMORY, "no memory for the KV layout");
  int64_t end = 0;
  for (int64_t l = 0; l < plan.kv_layers.size(); ++l) {
    KvLayer& layer = layout.kv_layers[l];
    if (!lay_out_layer(plan.kv_layers[l], config.kv_type, end, config.n_kv_blocks, layer)) break;
    end += layer.block_bytes * config.n_kv_blocks;
  }
  if (end != layout.kv_bytes) return error.fail(STRATA_E_INTERNAL, "two layouts of the KV cache differ in size");
  return STRATA_OK;
}

// Most bytes of rounded rows of each form that an op wants at one time.
struct ActNeeds {
  int64_t bytes[3] = {};

  void add(int32_t type, int64_t n_rows, int64_t n_cols) {
    const cpu::ActForm form = act_form(type);
    if (form == cpu::ActForm::f32) return;
    int64_t& most = bytes[static_cast<int32_t>(form)];
    most = std::max(most, n_rows * gpu_act_row_bytes(form, n_cols));
  }
};

ActNeeds act_needs(const Plan& plan) {
  ActNeeds needs;
  for (const strata_op& op : plan.ops) {
    const auto tensor = [&](int32_t k) -> const strata_tensor& { return plan.tensors[op.weight[k]]; };
    if (op.kind == STRATA_OP_LINEAR) {
      for (int32_t k = 0; k < op.i[STRATA_LINEAR_I_N]; ++k)
        needs.add(tensor(k).type, rows_max(plan, plan.buffers[op.in[0]].rows), tensor(k).n_cols);
    } else if (op.kind == STRATA_OP_HEAD_LINEAR) {
      needs.add(tensor(0).type, int64_t{plan.n_batch} * op.i[STRATA_HEAD_LINEAR_I_N_HEAD], tensor(0).n_cols);
    } else if (op.kind == STRATA_OP_HEAD) {
      needs.add(tensor(0).type, plan.n_outputs_max, tensor(0).n_cols);
    } else if (op.kind == STRATA_OP_EXPERTS) {
      const strata_expert_set& set = plan.expert_sets[op.i[STRATA_EXPERTS_I_SET]];
      const int64_t n_rows = set.weight_on_input != 0 ? int64_t{plan.n_batch} * set.n_used : plan.n_batch;
      if (set.gate >= 0) needs.add(plan.tensors[set.gate].type, n_rows, set.n_in);
      needs.add(plan.tensors[set.up].type, n_rows, set.n_in);
    }
  }
  return needs;
}

void place_experts(const Plan& plan, ExpertPlaces& places, Cursor& cursor) {
  int64_t pairs = 0, weighted = 0, hidden = 0, acts = 0;
  for (const strata_expert_set& set : plan.expert_sets) {
    const int64_t n = int64_t{plan.n_batch} * set.n_used;
    const cpu::ActForm form = act_form(plan.tensors[set.down].type);
    pairs = std::max(pairs, n);
    if (set.weight_on_input != 0) weighted = std::max(weighted, n * set.n_in * 4);
    hidden = std::max(hidden, n * set.n_ff * 4);
    if (form != cpu::ActForm::f32) acts = std::max(acts, n * gpu_act_row_bytes(form, set.n_ff));
  }
  places.counts = cursor.take(pairs > 0 ? static_cast<int64_t>(sizeof(PairCounts)) : 0);
  places.tasks = cursor.take(pairs * static_cast<int64_t>(sizeof(ExpertTask)));
  places.pair_token = cursor.take(pairs * 4);
  places.pair_id = cursor.take(pairs * 4);
  places.pair_out = cursor.take(pairs * 4);
  places.missed = cursor.take(pairs * 4);
  places.weighted = cursor.take(weighted);
  places.hidden = cursor.take(hidden);
  places.up = cursor.take(hidden);
  places.hidden_acts = cursor.take(acts);
}

bool same_shape(const AttentionShape& a, const AttentionShape& b) {
  return a.n_head == b.n_head && a.n_head_kv == b.n_head_kv && a.head_k == b.head_k && a.head_v == b.head_v &&
         a.window == b.window && a.window_kind == b.window_kind && a.causal == b.causal;
}

// The scratch is no monotone function of the rows: every number of rows is looked at, once for each kind of layer.
int64_t attention_bytes(const Plan& plan, const GpuConfig& config) {
  int64_t most = 0;
  for (int64_t i = 0; i < plan.ops.size(); ++i) {
    if (plan.ops[i].kind != STRATA_OP_ATTENTION) continue;
    const AttentionShape shape = attention_shape(plan, plan.ops[i], 1, 1);
    bool seen = false;
    for (int64_t j = 0; j < i && !seen; ++j)
      seen = plan.ops[j].kind == STRATA_OP_ATTENTION && same_shape(shape, attention_shape(plan, plan.ops[j], 1, 1));
    if (seen || shape.n_head_kv < 1 || shape.n_head % shape.n_head_kv != 0 || shape.n_head / shape.n_head_kv < 1) continue;
    for (int32_t blocks = block_bucket(1, config.n_kv_blocks), last = 0; blocks != last;) {
      for (int32_t n = 1; n <= plan.n_batch; ++n)
        most = std::max(most, attention_scratch_bytes(attention_shape(plan, plan.ops[i], n, blocks)));
      last = blocks;
      blocks = block_bucket(blocks + 1, config.n_kv_blocks);
    }
  }
  return most;
}

}  // namespace

int64_t gpu_act_row_bytes(cpu::ActForm form, int64_t n_cols) {
  if (form == cpu::ActForm::f32) return n_cols * 4;
  return form == cpu::ActForm::a32 ? a32_row_bytes(n_cols) : a256_row_bytes(n_cols);
}

cpu::ActForm act_form(int32_t type) { return cpu::type_kernels(cpu::Tier::scalar, type)->act; }

int64_t dense_tensor_bytes(const strata_tensor& tensor) {
  const int64_t one =
      tensor_is_vector(tensor) ? tensor.n_cols * 4 : cpu::packed_bytes(tensor.type, tensor.n_rows, tensor.n_cols);
  return (tensor.n_mats - 1) * tensor.mat_stride_bytes + one;
}

int64_t max_expert_tasks(int64_t n_pairs, int64_t n_expert, int64_t task_pairs) {
  return std::min(n_pairs, n_expert + n_pairs / task_pairs);
}

int32_t block_bucket(int32_t n_blocks, int32_t n_kv_blocks) {
  int32_t bucket = 8;
  while (bucket < n_blocks && bucket < n_kv_blocks) bucket *= 2;
  return std::min(bucket, n_kv_blocks);
}

AttentionShape attention_shape(const Plan& plan, const strata_op& op, int32_t n_tokens, int32_t n_blocks) {
  const strata_kv_layer& layer = plan.kv_layers[op.i[STRATA_ATTENTION_I_KV_LAYER]];
  AttentionShape shape{};
  shape.n_head = op.i[STRATA_ATTENTION_I_N_HEAD];
  shape.n_head_kv = layer.n_head_kv;
  shape.head_k = layer.head_k;
  shape.head_v = layer.head_v;
  shape.max_tokens = n_tokens;
  shape.max_ctx = static_cast<int32_t>(n_blocks * kKvBlock);
  shape.window = op.i[STRATA_ATTENTION_I_WINDOW];
  shape.window_kind = op.i[STRATA_ATTENTION_I_WINDOW_KIND];
  shape.causal = op.i[STRATA_ATTENTION_I_CAUSAL];
  return shape;
}

InputPlaces input_places(int32_t n_tokens, int32_t n_outputs, int32_t n_rows, int32_t n_blocks) {
  InputPlaces places{};
  int64_t at = sizeof(StepHeader);
  const auto take = [&](int64_t n) {
    const int64_t place = at;
    at += n * 4;
    return place;
  };
  places.token = take(n_tokens);
  places.pos = take(n_tokens);
  places.seq = take(n_tokens);
  places.output_row = take(n_outputs);
  places.block_table = take(int64_t{n_rows} * n_blocks);
  places.bytes = at;
  return places;
}

int32_t block_table_rows(int32_t n_tokens, int32_t max_seqs) { return std::min(n_tokens, max_seqs); }

Status GpuLayout::plan_places(const Plan& plan, const GpuConfig& config, Error& error) {
  if (config.n_kv_blocks < 1 || config.n_kv_blocks > INT32_MAX / 2 / kKvBlock || config.max_seqs < 1)
    return error.fail(STRATA_E_ARGUMENT, "%d KV blocks and %d sequences", config.n_kv_blocks, config.max_seqs);
  STRATA_TRY(place_kv(plan, config, *this, error));
  if (!tensors.resize(plan.tensors.size()) || !rope_tables.resize(plan.ropes.size()))
    return error.fail(STRATA_E_MEMORY, "no memory for the device's layout");
  Cursor cursor;
  for (int64_t t = 0; t < plan.tensors.size(); ++t)
    tensors[t] = is_expert_part(plan.tensors[t]) ? -1 : cursor.take(dense_tensor_bytes(plan.tensors[t]));
  dense_bytes = cursor.at;
  activations = cursor.take(plan.activations_bytes);
  kv = cursor.take(kv_bytes);
  slots_bytes = config.slots_bytes;
  slots = cursor.take(slots_bytes);
  for (const strata_expert_set& set : plan.expert_sets) width = std::max(width, set.n_expert);
  addresses = cursor.take(plan.expert_sets.size() * width * 8);
  freqs = cursor.take(plan.freqs.size() * 8);
  for (int64_t r = 0; r < plan.ropes.size(); ++r)
    rope_tables[r] = cursor.take(int64_t{plan.n_batch} * plan.ropes[r].n_rot * 4);
  const InputPlaces largest =
      input_places(plan.n_batch, plan.n_outputs_max, block_table_rows(plan.n_batch, config.max_seqs), config.n_kv_blocks);
  inputs_bytes = largest.bytes;
  inputs = cursor.take(inputs_bytes);
  state = cursor.take(sizeof(StepState));
  const ActNeeds needs = act_needs(plan);
  for (int32_t f = 0; f < 3; ++f) acts[f] = cursor.take(needs.bytes[f]);
  place_experts(plan, experts, cursor);
  attention_bytes = cuda::attention_bytes(plan, config);
  attention = cursor.take(attention_bytes);
  bytes = cursor.at;
  if (cursor.overflow) return error.fail(STRATA_E_ARGUMENT, "the device's memory has no size that fits 63 bits");
  scratch_bytes = bytes - dense_bytes - kv_bytes - slots_bytes - plan.activations_bytes;
  return STRATA_OK;
}

}  // namespace strata::cuda
