// One block of a kernel, its threads as fibers that meet at barriers.
#pragma once
#include <cstddef>
#include <cstdint>

struct EmuDim {
  unsigned x, y, z;
};
// As prelude.h has it.
struct EmuState {
  EmuDim thread, block, grid, dim;
  void* dynamic_shared;
  uint64_t (*slots)[8];
  unsigned lanes;
  void (*block_barrier)();
  void (*warp_barrier)();
  int (*block_and)(int predicate);
};
extern EmuState emu_state;

constexpr size_t kArgumentBytes = 1024;  // copied for every kernel, whatever its struct's size is

// Runs the block emu_state.block of `kernel`; one caller at a time. Ends the program when its threads wait for each other
// in ways that a GPU would not come out of.
void emu_run_block(void* kernel, const char* name, const uint8_t* arguments, unsigned n_threads);
