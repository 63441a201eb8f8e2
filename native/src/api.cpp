// The C border: checks arguments, translates, keeps the text of the thread's last failure. No logic of its own.
#include <string.h>

#include <new>

#include "base/measure.h"
#include "base/threads.h"
#include "cpu/kernels.h"
#include "cuda/gpu_info.h"
#include "handles.h"
#include "strata.h"

namespace {

using strata::Error;
using strata::Status;

thread_local Error last_error;

// A fresh error for one call; every function starts with it.
Error& begin() {
  last_error.clear();
  return last_error;
}

Status null_argument(Error& error, const char* name) { return error.fail(STRATA_E_ARGUMENT, "%s is null", name); }

template <class T>
Status check_struct(Error& error, const char* name, const T* pointer) {
  if (pointer == nullptr) return null_argument(error, name);
  if (pointer->struct_size == sizeof(T)) return STRATA_OK;
  return error.fail(STRATA_E_ARGUMENT, "%s.struct_size is %u; this library has %zu", name, pointer->struct_size, sizeof(T));
}

}  // namespace

extern "C" {

STRATA_API int32_t strata_abi_version(void) { return STRATA_ABI_VERSION; }

STRATA_API int64_t strata_struct_bytes(const char* name) {
  if (name == nullptr) return -1;
#define STRATA_STRUCT(type) \
  {                         \
    #type, sizeof(type)     \
  }
  static const struct {
    const char* name;
    size_t bytes;
  } kStructs[] = {
      STRATA_STRUCT(strata_tensor),     STRATA_STRUCT(strata_source),        STRATA_STRUCT(strata_buffer),
      STRATA_STRUCT(strata_rope),       STRATA_STRUCT(strata_kv_layer),      STRATA_STRUCT(strata_expert_set),
      STRATA_STRUCT(strata_op),         STRATA_STRUCT(strata_model_desc),    STRATA_STRUCT(strata_load_config),
      STRATA_STRUCT(strata_load_stats), STRATA_STRUCT(strata_engine_config), STRATA_STRUCT(strata_engine_bytes),
      STRATA_STRUCT(strata_sample),     STRATA_STRUCT(strata_sampled),       STRATA_STRUCT(strata_step),
      STRATA_STRUCT(strata_completion), STRATA_STRUCT(strata_engine_stats),  STRATA_STRUCT(strata_state),
      STRATA_STRUCT(strata_slot_entry), STRATA_STRUCT(strata_gpu),
  };
#undef STRATA_STRUCT
  for (const auto& row : kStructs) {
    if (strcmp(row.name, name) == 0) return static_cast<int64_t>(row.bytes);
  }
  return -1;
}

STRATA_API const char* strata_build_info(void) {
  return "gcc-compatible " __VERSION__
#ifdef __OPTIMIZE__
         "; optimised"
#else
         "; not optimised"
#endif
#if defined(__x86_64__)
         "; scalar avx2 avx512";
#elif defined(__aarch64__)
         "; scalar neon";
#else
         "; scalar";
#endif
}

STRATA_API const char* strata_status_name(int32_t status) {
  switch (status) {
    case STRATA_OK:
      return "STRATA_OK";
    case STRATA_E_ARGUMENT:
      return "STRATA_E_ARGUMENT";
    case STRATA_E_MEMORY:
      return "STRATA_E_MEMORY";
    case STRATA_E_IO:
      return "STRATA_E_IO";
    case STRATA_E_CANCELLED:
      return "STRATA_E_CANCELLED";
    case STRATA_E_DEADLINE:
      return "STRATA_E_DEADLINE";
    case STRATA_E_NUMERIC:
      return "STRATA_E_NUMERIC";
    case STRATA_E_STATE:
      return "STRATA_E_STATE";
    case STRATA_E_UNSUPPORTED:
      return "STRATA_E_UNSUPPORTED";
    case STRATA_E_DEVICE:
      return "STRATA_E_DEVICE";
    case STRATA_E_DEVICE_MEMORY:
      return "STRATA_E_DEVICE_MEMORY";
    case STRATA_E_BUSY:
      return "STRATA_E_BUSY";
    case STRATA_E_INTERNAL:
      return "STRATA_E_INTERNAL";
    default:
      return "unknown status";
  }
}

STRATA_API const char* strata_last_error(void) { return last_error.text; }

STRATA_API int64_t strata_packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols) {
  const strata::cpu::TypeKernels* kernels = strata::cpu::type_kernels(strata::cpu::Tier::scalar, type);
  constexpr int64_t kMost = int64_t{1} << 31;
  if (kernels == nullptr || n_rows < 1 || n_cols < 1 || n_rows > kMost || n_cols > kMost / 64 ||
      n_cols % kernels->block != 0)
    return -1;
  return strata::cpu::packed_bytes(type, n_rows, n_cols);
}

STRATA_API const char* strata_cpu_tier(void) { return strata::cpu::tier_name(strata::cpu::tier_best()); }

STRATA_API int32_t strata_cpu_count(void) { return strata::cpu_count(); }

STRATA_API int32_t strata_measure_read(int32_t n_threads, int64_t bytes, double* bytes_per_s) {
  Error& error = begin();
  if (bytes_per_s == nullptr) return null_argument(error, "bytes_per_s");
  return strata::measure_read(n_threads, bytes, bytes_per_s, error);
}

STRATA_API int32_t strata_model_open(const strata_model_desc* desc, strata_model** model) {
  Error& error = begin();
  if (model == nullptr) return null_argument(error, "model");
  *model = nullptr;
  STRATA_TRY(check_struct(error, "desc", desc));
  strata_model* opened = new (std::nothrow) strata_model;
  if (opened == nullptr) return error.fail(STRATA_E_MEMORY, "no memory for a model");
  const Status status = strata::plan_open(*desc, opened->model.plan, error);
  if (status != STRATA_OK) {
    delete opened;
    return status;
  }
  *model = opened;
  return STRATA_OK;
}

STRATA_API int32_t strata_model_load(strata_model* model, const strata_load_config* config, strata_load_stats* stats) {
  Error& error = begin();
  if (model == nullptr) return null_argument(error, "model");
  STRATA_TRY(check_struct(error, "config", config));
  STRATA_TRY(check_struct(error, "stats", stats));
  *stats = strata_load_stats{};
  stats->struct_size = sizeof *stats;
  return model->model.weights.load(*config, *stats, error);
}

STRATA_API int32_t strata_model_progress(const strata_model* model, int64_t* done_bytes, int64_t* total_bytes) {
  Error& error = begin();
  if (model == nullptr) return null_argument(error, "model");
  if (done_bytes == nullptr) return null_argument(error, "done_bytes");
  if (total_bytes == nullptr) return null_argument(error, "total_bytes");
  model->model.weights.progress(done_bytes, total_bytes);
  return STRATA_OK;
}

STRATA_API int32_t strata_model_cancel(strata_model* model) {
  Error& error = begin();
  if (model == nullptr) return null_argument(error, "model");
  model->model.weights.cancel();
  return STRATA_OK;
}

STRATA_API int32_t strata_model_reserve(strata_model* model) {
  Error& error = begin();
  if (model == nullptr) return null_argument(error, "model");
  return model->model.weights.reserve(error);
}

STRATA_API int32_t strata_model_fill(strata_model* model, int32_t tensor, int64_t mat, int64_t row_first, int64_t n_rows,
                                     const uint8_t* file_bytes, int64_t n_bytes) {
  Error& error = begin();
  if (model == nullptr) return null_argument(error, "model");
  return model->model.weights.fill(tensor, mat, row_first, n_rows, file_bytes, n_bytes, error);
}

STRATA_API int32_t strata_model_close(strata_model* model) {
  begin();
  if (model != nullptr && !model->model.lost.load(std::memory_order_acquire)) delete model;
  return STRATA_OK;
}

STRATA_API int32_t strata_gpu_info(int32_t ordinal, strata_gpu* gpu) {
  Error& error = begin();
  STRATA_TRY(check_struct(error, "gpu", gpu));
  return strata::cuda::gpu_info(ordinal, *gpu, error);
}

STRATA_API int32_t strata_gpu_measure(int32_t ordinal, double* memory_read_per_s, double* link_per_s) {
  Error& error = begin();
  if (memory_read_per_s == nullptr) return null_argument(error, "memory_read_per_s");
  if (link_per_s == nullptr) return null_argument(error, "link_per_s");
  return strata::cuda::gpu_measure(ordinal, memory_read_per_s, link_per_s, error);
}

STRATA_API int32_t strata_engine_measure(const strata_model* model, const strata_engine_config* config,
                                         strata_engine_bytes* bytes) {
  Error& error = begin();
  if (model == nullptr) return null_argument(error, "model");
  STRATA_TRY(check_struct(error, "config", config));
  STRATA_TRY(check_struct(error, "bytes", bytes));
  return strata::Engine::measure(model->model, *config, *bytes, error);
}

STRATA_API int32_t strata_engine_open(strata_model* model, const strata_engine_config* config, strata_engine** engine) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  *engine = nullptr;
  if (model == nullptr) return null_argument(error, "model");
  STRATA_TRY(check_struct(error, "config", config));
  strata_engine* opened = new (std::nothrow) strata_engine;
  if (opened == nullptr) return error.fail(STRATA_E_MEMORY, "no memory for an engine");
  const Status status = opened->engine.open(model->model, *config, error);
  if (status != STRATA_OK) {
    delete opened;
    return status;
  }
  *engine = opened;
  return STRATA_OK;
}

STRATA_API int32_t strata_engine_eventfd(const strata_engine* engine) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  return engine->engine.eventfd();
}

STRATA_API int32_t strata_engine_submit(strata_engine* engine, const strata_step* step, uint64_t* ticket) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  STRATA_TRY(check_struct(error, "step", step));
  if (ticket == nullptr) return null_argument(error, "ticket");
  return engine->engine.submit(*step, ticket, error);
}

STRATA_API int32_t strata_engine_poll(strata_engine* engine, strata_completion* completions, int32_t capacity, int32_t* n) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  if (n == nullptr) return null_argument(error, "n");
  return engine->engine.poll(completions, capacity, n, error);
}

STRATA_API int32_t strata_engine_abort(strata_engine* engine, uint64_t ticket) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  return engine->engine.abort(ticket, error);
}

STRATA_API int32_t strata_engine_error(strata_engine* engine, uint64_t ticket, char* text, int32_t capacity) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  return engine->engine.error_text(ticket, text, capacity, error);
}

STRATA_API int32_t strata_engine_stats_read(strata_engine* engine, strata_engine_stats* stats) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  STRATA_TRY(check_struct(error, "stats", stats));
  engine->engine.stats(*stats);
  return STRATA_OK;
}

STRATA_API int32_t strata_engine_close(strata_engine* engine) {
  Error& error = begin();
  if (engine == nullptr) return STRATA_OK;
  if (engine->engine.close()) {
    delete engine;
    return STRATA_OK;
  }
  // A lost worker may come back and write: the engine's memory and the model's weights stay where they are for good.
  return error.fail(STRATA_E_INTERNAL, "a worker is lost; the engine's memory cannot be freed");
}

STRATA_API int32_t strata_engine_kv_copy(strata_engine* engine, int32_t from, int32_t to) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  return engine->engine.kv_copy(from, to, error);
}

STRATA_API int32_t strata_engine_state_copy(strata_engine* engine, int32_t from, int32_t to) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  return engine->engine.state_copy(from, to, error);
}

STRATA_API int32_t strata_experts_copy(strata_engine* engine, int32_t set, int32_t expert, int32_t slot, uint64_t* number) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  if (number == nullptr) return null_argument(error, "number");
  return engine->engine.experts_copy(set, expert, slot, number, error);
}

STRATA_API int32_t strata_experts_copied(strata_engine* engine, uint64_t* number) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  if (number == nullptr) return null_argument(error, "number");
  return engine->engine.experts_copied(number, error);
}

STRATA_API int32_t strata_experts_commit(strata_engine* engine, const strata_slot_entry* entries, int32_t n) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  return engine->engine.experts_commit(entries, n, error);
}

STRATA_API int32_t strata_engine_handoffs(strata_engine* engine, int32_t kind, int64_t* bins) {
  Error& error = begin();
  if (engine == nullptr) return null_argument(error, "engine");
  if (bins == nullptr) return null_argument(error, "bins");
  return engine->engine.handoffs(kind, bins, error);
}

}  // extern "C"
