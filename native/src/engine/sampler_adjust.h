// Changes to single logits that come before any filter: bias, mask, repetition penalties, DRY.
#pragma once
#include "engine/sampler.h"

namespace strata {

// Whether any of them is asked for: otherwise the raw logits serve.
bool sample_adjusts(const strata_sample& params);
// Copies the raw logits to memory.adjusted and changes them there. STRATA_E_ARGUMENT: a token id outside the vocabulary.
Status adjust_logits(const SampleArgs& args, const SamplerMemory& memory);

}  // namespace strata
