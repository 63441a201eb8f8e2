#include "fibers.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

EmuState emu_state;

extern "C" {
// Saves the callee's registers on this stack, goes on with the other one.
void emu_switch(void** save, void* load);
// Where a kernel returns to.
void emu_returned();
__attribute__((used)) void emu_fiber_done();
}
__asm__(
    ".text\n"
    ".globl emu_switch\n"
    "emu_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".globl emu_returned\n"
    "emu_returned:\n"
    "  andq $-16, %rsp\n"
    "  call emu_fiber_done\n");

namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr size_t kStackBytes = 256 << 10;

enum class Wait { none, warp, block, done };

struct Fiber {
  void* sp;
  Wait wait;
};

Fiber fibers[kMaxThreads];
uint64_t slots[kMaxThreads / 32][32][8];
int predicates[kMaxThreads];
uint8_t* stacks;
void* scheduler;
unsigned current, n_fibers;

void leave(Wait wait) {
  fibers[current].wait = wait;
  emu_switch(&fibers[current].sp, scheduler);
}

unsigned live_lanes(unsigned warp) {
  unsigned lanes = 0;
  for (unsigned i = 0; i < 32 && warp * 32 + i < n_fibers; ++i)
    if (fibers[warp * 32 + i].wait != Wait::done) lanes |= 1u << i;
  return lanes;
}

void resume(unsigned i) {
  current = i;
  emu_state.thread = {i, 0, 0};
  emu_state.slots = slots[i / 32];
  emu_state.lanes = live_lanes(i / 32);
  emu_switch(&scheduler, fibers[i].sp);
}

void prepare(unsigned i, void* kernel, const uint8_t* arguments) {
  uint8_t* top = stacks + (i + 1) * kStackBytes - kArgumentBytes - 64;
  memcpy(top, arguments, kArgumentBytes);
  auto** sp =
      reinterpret_cast<void**>(top);  // 16-aligned: where a called function finds its struct, after the return address
  *--sp = reinterpret_cast<void*>(&emu_returned);
  *--sp = kernel;
  for (int k = 0; k < 6; ++k) *--sp = nullptr;
  fibers[i] = {sp, Wait::none};
}

// All that can run in the warp, until every lane waits for the block or has returned. False: nothing moved.
bool run_warp(unsigned first, unsigned last) {
  bool moved = false;
  for (;;) {
    unsigned waiting = 0, live = 0;
    for (unsigned i = first; i < last; ++i) {
      if (fibers[i].wait != Wait::none) continue;
      resume(i);
      moved = true;
    }
    for (unsigned i = first; i < last; ++i) {
      waiting += fibers[i].wait == Wait::warp ? 1 : 0;
      live += fibers[i].wait == Wait::done ? 0 : 1;
    }
    if (waiting == 0 || waiting != live) return moved;
    for (unsigned i = first; i < last; ++i)
      if (fibers[i].wait == Wait::warp) fibers[i].wait = Wait::none;
  }
}

bool release_block() {
  bool any = false;
  for (unsigned i = 0; i < n_fibers; ++i) {
    if (fibers[i].wait == Wait::warp || fibers[i].wait == Wait::none) return false;
    any = any || fibers[i].wait == Wait::block;
  }
  for (unsigned i = 0; i < n_fibers; ++i)
    if (fibers[i].wait == Wait::block) fibers[i].wait = Wait::none;
  return any;
}

void block_barrier() { leave(Wait::block); }
void warp_barrier() { leave(Wait::warp); }
int block_and(int predicate) {
  const unsigned self = current;
  predicates[self] = predicate;
  leave(Wait::block);
  int all = 1;
  for (unsigned i = 0; i < n_fibers; ++i)
    if (fibers[i].wait != Wait::done && predicates[i] == 0) all = 0;
  leave(Wait::block);
  return all;
}

}  // namespace

void emu_fiber_done() {
  leave(Wait::done);
  abort();
}

void emu_run_block(void* kernel, const char* name, const uint8_t* arguments, unsigned n_threads) {
  if (stacks == nullptr) {
    void* memory =
        mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || n_threads > kMaxThreads) abort();
    stacks = static_cast<uint8_t*>(memory);
    emu_state.block_barrier = block_barrier;
    emu_state.warp_barrier = warp_barrier;
    emu_state.block_and = block_and;
  }
  n_fibers = n_threads;
  for (unsigned i = 0; i < n_threads; ++i) prepare(i, kernel, arguments);
  for (;;) {
    bool moved = false;
    for (unsigned first = 0; first < n_threads; first += 32)
      moved = run_warp(first, first + 32 < n_threads ? first + 32 : n_threads) || moved;
    if (release_block()) continue;
    bool all_done = true;
    for (unsigned i = 0; i < n_threads; ++i) all_done = all_done && fibers[i].wait == Wait::done;
    if (all_done) return;
    if (moved) continue;
    fprintf(stderr, "emulator: the threads of a block of %s wait at different barriers\n", name);
    abort();
  }
}
