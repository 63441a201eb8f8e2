// The host's side of the mailbox: its memory, and the words as atomics.
#pragma once
#include <atomic>

#include "base/arena.h"
#include "base/error.h"
#include "mailbox/mailbox.h"
#include "model/plan.h"

namespace strata {

// One EXPERTS op.
struct MailboxJob {
  int32_t op;              // index into the plan's ops
  int32_t n_used;          // of its set
  int64_t routing_offset;  // bytes, in the shared memory: n_batch rows of n_used ids, then n_used float weights
};

// Shared memory: [control words][routing of every job][host activations]; each part begins at a multiple of 4096.
class Mailbox {
 public:
  static int64_t measure_bytes(const Plan& plan);
  Status open(const Plan& plan, Error& error);

  uint8_t* data() const { return arena_.data(); }
  int64_t bytes() const { return arena_.bytes(); }
  int64_t activations_offset() const { return activations_; }
  uint8_t* activations() const { return arena_.data() + activations_; }
  int32_t n_jobs() const { return static_cast<int32_t>(jobs_.size()); }
  const MailboxJob& job(int32_t j) const { return jobs_[j]; }
  // Row of one token: n_used ids, then n_used weights.
  int32_t* routing(int32_t j, int64_t token) const {
    return reinterpret_cast<int32_t*>(arena_.data() + jobs_[j].routing_offset) + token * 2 * jobs_[j].n_used;
  }

  uint64_t load(int32_t word) const { return at(word)->load(std::memory_order_acquire); }
  void store(int32_t word, uint64_t value) { at(word)->store(value, std::memory_order_release); }

 private:
  std::atomic<uint64_t>* at(int32_t word) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(arena_.data() + mailbox_line(word));
  }

  Arena arena_;
  Array<MailboxJob> jobs_;
  int64_t activations_ = 0;
};

}  // namespace strata
