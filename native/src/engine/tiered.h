// A step on a device, as the CPU sees it: it waits for doorbells and computes the pairs of experts that have no slot.
#pragma once
#include "engine/device.h"
#include "engine/walk.h"

namespace strata {

// Counts of times, as STRATA_HANDOFF_BINS says. Written by the engine thread, read by any.
struct Handoffs {
  static constexpr int32_t kKinds = 3;
  std::atomic<int64_t> bins[kKinds][STRATA_HANDOFF_BINS] = {};

  void add(int32_t kind, int64_t ns);
};

struct TieredStep {
  Device& device;
  Mailbox& mailbox;
  Handoffs& handoffs;
  uint64_t sequence;
  int64_t wait_ns;  // longest wait for the device's next word
  int64_t* job_ns;  // [n_jobs] room for the time of each job; -1: no misses
};

// As walk_step; ctx.activations are the mailbox's, ctx.slots is the table. When it returns, the device does nothing for the
// step any more.
Status walk_tiered(StepContext& ctx, const WalkConfig& config, WalkPlace& place, const TieredStep& tiered,
                   int64_t* sample_ns);

// Waits of a step for its peer grow with its rows: the deadline is for every 8 of them.
inline int64_t handoff_wait_ns(int64_t handoff_ns, int32_t n_tokens) { return handoff_ns * ((n_tokens + 7) / 8); }

}  // namespace strata
