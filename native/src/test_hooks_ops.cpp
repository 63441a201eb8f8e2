// Hooks of the sampler: engine/sampler.h and engine/philox.h as plain C.
#include "base/arena.h"
#include "engine/philox.h"
#include "engine/sampler.h"
#include "strata_test_ops.h"

using namespace strata;

extern "C" {

STRATA_TEST_API int32_t strata_test_sample(int32_t tier, const float* logits, int64_t n_vocab, const strata_sample* params,
                                           const int32_t* ints, const float* floats, int64_t max_history, int32_t repeats,
                                           strata_sampled* out) {
  const cpu::VecMath* vec = cpu::vec_math(static_cast<cpu::Tier>(tier));
  if (vec == nullptr) return STRATA_E_UNSUPPORTED;
  Arena memory;
  if (!memory.open(SamplerMemory::bytes(n_vocab, max_history))) return STRATA_E_MEMORY;
  const SampleArgs args{*vec, logits, n_vocab, *params, ints, floats, max_history};
  Status status = STRATA_OK;
  for (int32_t i = 0; i < repeats; ++i)
    status = sample_row(args, SamplerMemory::at(memory.data(), n_vocab, max_history), *out);
  return status;
}

STRATA_TEST_API void strata_test_philox(const uint32_t* counter, uint32_t key0, uint32_t key1, uint32_t* out) {
  const PhiloxWords words = philox4x32({{counter[0], counter[1], counter[2], counter[3]}}, key0, key1);
  for (int i = 0; i < 4; ++i) out[i] = words.w[i];
}

STRATA_TEST_API double strata_test_uniform(uint64_t seed, uint64_t counter, uint32_t draw) {
  return philox_uniform(seed, counter, static_cast<Draw>(draw));
}

}  // extern "C"
