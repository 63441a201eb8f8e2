#include "cuda/gpu_modules.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/threads.h"
#include "cuda/gpu_layout.h"
#include "cuda/kernel_args.h"

namespace strata::cuda {

// One compilation of all wanted modules; threads take the next one that nobody has.
struct GpuModules::Build {
  const Compiler& compiler;
  const Module* const* wanted;
  int32_t n, sm;
  const char* cache_dir;
  Array<char> cubin[kMaxModules];
  Error errors[kMaxModules];
  std::atomic<int32_t> next{0};

  void work() {
    for (int32_t i = next.fetch_add(1); i < n; i = next.fetch_add(1))
      compiler.compile(*wanted[i], sm, cache_dir, cubin[i], nullptr, errors[i]);
  }
  static void* thread_main(void* build) {
    static_cast<Build*>(build)->work();
    return nullptr;
  }
};

bool GpuModules::has(const char* module) const {
  for (int32_t i = 0; i < n_; ++i) {
    if (strcmp(wanted_[i]->name, module) == 0) return true;
  }
  return false;
}

Status GpuModules::add(const Module* module, const char* name, Error& error) {
  if (module == nullptr) return error.fail(STRATA_E_UNSUPPORTED, "there is no CUDA module %s", name);
  if (has(name)) return STRATA_OK;
  if (n_ == kMaxModules) return error.fail(STRATA_E_INTERNAL, "a plan needs more than %d CUDA modules", kMaxModules);
  wanted_[n_++] = module;
  return STRATA_OK;
}

namespace {

// Whether an op reads a matrix of tensor t as a dense one, or as an expert's.
struct TypeUse {
  bool linear, expert;
};

void mark(const Plan& plan, int32_t tensor, bool expert, TypeUse (&uses)[kMaxTypes]) {
  if (tensor < 0) return;
  const int32_t type = plan.tensors[tensor].type;
  if (type < 0 || type >= kMaxTypes) return;
  (expert ? uses[type].expert : uses[type].linear) = true;
}

void find_uses(const Plan& plan, TypeUse (&uses)[kMaxTypes]) {
  for (const strata_op& op : plan.ops) {
    if (op.kind == STRATA_OP_EMBED || op.kind == STRATA_OP_HEAD || op.kind == STRATA_OP_HEAD_LINEAR) {
      mark(plan, op.weight[0], false, uses);
    } else if (op.kind == STRATA_OP_LINEAR) {
      for (int32_t k = 0; k < op.i[STRATA_LINEAR_I_N]; ++k) mark(plan, op.weight[k], false, uses);
    } else if (op.kind == STRATA_OP_EXPERTS) {
      const strata_expert_set& set = plan.expert_sets[op.i[STRATA_EXPERTS_I_SET]];
      for (const int32_t tensor : {set.gate, set.up, set.down}) mark(plan, tensor, true, uses);
    }
  }
}

bool has_batches(const Plan& plan, const TypeKernels& kernels) {
  return kernels.batch != nullptr && plan.n_batch > kFewTokens;
}

bool uses_kind(const Plan& plan, int32_t kind) {
  return std::any_of(plan.ops.begin(), plan.ops.end(), [&](const strata_op& op) { return op.kind == kind; });
}

}  // namespace

Status GpuModules::collect(const Plan& plan, int32_t kv_type, Error& error) {
  TypeUse uses[kMaxTypes] = {};
  find_uses(plan, uses);
  // The large ones first: they are what the threads wait for.
  if (uses_kind(plan, STRATA_OP_ATTENTION)) {
    const char* name = attention_module(kv_type);
    if (name == nullptr) return error.fail(STRATA_E_UNSUPPORTED, "no CUDA attention for a cache of type %d", kv_type);
    STRATA_TRY(add(find_module(name), name, error));
  }
  for (int32_t type = 0; type < kMaxTypes; ++type) {
    if (!uses[type].linear && !uses[type].expert) continue;
    const TypeKernels* kernels = type_kernels(type);
    if (kernels == nullptr) return error.fail(STRATA_E_UNSUPPORTED, "no CUDA kernels for matrices of type %d", type);
    if (uses[type].linear) STRATA_TRY(add(find_module(kernels->linear), kernels->linear, error));
    if (uses[type].expert) STRATA_TRY(add(find_module(kernels->experts), kernels->experts, error));
    if (has_batches(plan, *kernels)) STRATA_TRY(add(find_module(kernels->batch), kernels->batch, error));
  }
  for (const char* name : {"act", "norm", "rope", "element", "router", "gpu.mailbox", "gpu.rows"})
    STRATA_TRY(add(find_module(name), name, error));
  return STRATA_OK;
}

Status GpuModules::compile(const Compiler& compiler, int32_t sm, const char* cache_dir, Error& error) {
  Build* build = new (std::nothrow) Build{compiler, wanted_, n_, sm, cache_dir, {}, {}, {}};
  if (build == nullptr) return error.fail(STRATA_E_MEMORY, "no memory to compile CUDA modules");
  pthread_t threads[kMaxModules];
  int32_t n_threads = 0;
  while (n_threads < std::min(n_, cpu_count()) - 1 &&
         pthread_create(&threads[n_threads], nullptr, Build::thread_main, build) == 0)
    ++n_threads;
  build->work();
  for (int32_t i = 0; i < n_threads; ++i) pthread_join(threads[i], nullptr);
  Status status = STRATA_OK;
  for (int32_t i = 0; i < n_ && status == STRATA_OK; ++i) {
    const Error& failed = build->errors[i];
    if (failed.status != STRATA_OK) {
      status = error.fail(failed.status, "%s", failed.text);
      break;
    }
    const CUresult result = driver_->cuModuleLoadData(&loaded_[i], build->cubin[i].data());
    if (result != kCudaSuccess) status = driver_->fail(result, wanted_[i]->name, __FILE__, __LINE__, error);
  }
  delete build;
  return status;
}

Status GpuModules::find(const char* module, const char* name, CUfunction& function, Error& error) const {
  for (int32_t i = 0; i < n_; ++i) {
    if (strcmp(wanted_[i]->name, module) != 0) continue;
    const CUresult result = driver_->cuModuleGetFunction(&function, loaded_[i], name);
    return result == kCudaSuccess ? STRATA_OK : driver_->fail(result, name, __FILE__, __LINE__, error);
  }
  return error.fail(STRATA_E_INTERNAL, "%s of the CUDA module %s is not loaded", name, module);
}

Status GpuModules::find_types(const Plan& plan, GpuFunctions& functions, Error& error) const {
  TypeUse uses[kMaxTypes] = {};
  find_uses(plan, uses);
  constexpr int32_t kTokens[3] = {1, 2, kMaxTokens};
  for (int32_t type = 0; type < kMaxTypes; ++type) {
    if (!uses[type].linear && !uses[type].expert) continue;
    TypeFunctions& found = functions.types[type];
    found.kernels = type_kernels(type);
    const TypeKernels& kernels = *found.kernels;
    for (int32_t v = 0; v < 3; ++v) {
      if (uses[type].linear) STRATA_TRY(find(kernels.linear, linear_kernel(kernels, kTokens[v]), found.linear[v], error));
      if (!uses[type].expert) continue;
      STRATA_TRY(find(kernels.experts, expert_rows_kernel(kernels, kTokens[v]), found.expert_rows[v], error));
      if (kernels.packed()) STRATA_TRY(find(kernels.experts, expert_in_kernel(kTokens[v]), found.expert_in[v], error));
    }
    if (uses[type].linear) STRATA_TRY(find(kernels.linear, "k_embed", found.embed, error));
    if (!has_batches(plan, kernels)) continue;
    STRATA_TRY(find(kernels.batch, "k_linear_batch", found.linear_batch, error));
    STRATA_TRY(find(kernels.batch, "k_expert_rows_batch", found.expert_rows_batch, error));
  }
  return STRATA_OK;
}

Status GpuModules::find_plain(GpuFunctions& f, Error& error) const {
  struct Entry {
    const char* module;
    const char* name;
    CUfunction* function;
  };
  const Entry entries[] = {
      {"act", "k_act_a32", &f.act[static_cast<int32_t>(cpu::ActForm::a32)]},
      {"act", "k_act_a256", &f.act[static_cast<int32_t>(cpu::ActForm::a256)]},
      {"norm", "k_norm", &f.norm},
      {"rope", "k_rope_table", &f.rope_table},
      {"rope", "k_rope", &f.rope},
      {"router", "k_router", &f.router},
      {"element", "k_glu", &f.glu},
      {"element", "k_add", &f.add},
      {"element", "k_mul", &f.mul},
      {"element", "k_clamp", &f.clamp},
      {"element", "k_combine", &f.combine},
      {"gpu.mailbox", "k_gpu_group", &f.group},
      {"gpu.mailbox", "k_gpu_dispatch", &f.dispatch},
      {"gpu.mailbox", "k_gpu_wait", &f.wait},
      {"gpu.mailbox", "k_gpu_collect", &f.collect},
      {"gpu.mailbox", "k_gpu_finish", &f.finish},
      {"gpu.rows", "k_gpu_copy", &f.copy},
      {"gpu.rows", "k_gpu_gather", &f.gather},
      {"gpu.rows", "k_gpu_scale", &f.scale},
      {"gpu.rows", "k_gpu_temperature", &f.temperature},
      {"gpu.rows", "k_gpu_weigh", &f.weigh},
  };
  for (const Entry& entry : entries) STRATA_TRY(find(entry.module, entry.name, *entry.function, error));
  return STRATA_OK;
}

Status GpuModules::open(const Driver& driver, const Compiler& compiler, const Plan& plan, int32_t kv_type, int32_t sm,
                        const char* cache_dir, GpuFunctions& functions, Error& error) {
  driver_ = &driver;
  functions = GpuFunctions{};
  STRATA_TRY(collect(plan, kv_type, error));
  STRATA_TRY(compile(compiler, sm, cache_dir, error));
  STRATA_TRY(find_plain(functions, error));
  STRATA_TRY(find_types(plan, functions, error));
  const char* name = attention_module(kv_type);
  for (int32_t i = 0; i < n_ && name != nullptr; ++i) {
    if (strcmp(wanted_[i]->name, name) == 0) STRATA_TRY(find_attention(driver, loaded_[i], functions.attention, error));
  }
  return STRATA_OK;
}

void GpuModules::close() {
  for (int32_t i = 0; i < n_; ++i) {
    if (loaded_[i] != nullptr) driver_->cuModuleUnload(loaded_[i]);
    loaded_[i] = nullptr;
  }
  n_ = 0;
}

}  // namespace strata::cuda
