// The device of tests: host memory, a thread of its own, and the same mailbox, slots and order of work as a GPU.
#pragma once
#include <atomic>

#include "engine/device.h"

namespace strata {

// What tests make go wrong, in every sim device of the process. -1 or 0: nothing.
struct SimFaults {
  std::atomic<int64_t> delay_ns{0};        // longest random pause before a word is written and before a copy is made
  std::atomic<int32_t> lost_doorbell{-1};  // job whose doorbell is never rung
  std::atomic<int32_t> lost_done{0};       // 1: step_done is never written
  std::atomic<int32_t> stale_row{-1};      // job whose first missed row is not taken over from the host
  std::atomic<int32_t> swapped_pair{-1};   // job whose first token's two leading experts are combined in the wrong order
  std::atomic<int64_t> flipped_byte{-1};   // offset in the slot arena of a byte that copies get wrong
};
extern SimFaults sim_faults;

}  // namespace strata
