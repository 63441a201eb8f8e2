// Takes the place of cuda/prelude.cuh where the emulator's compiler builds kernels for the CPU: the same names, plain C++.
//
// A kernel's threads are fibers of one thread of the process; what needs all lanes of a warp goes through `emu`.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define STRATA_DEVICE static inline __attribute__((unused))

struct EmuDim {
  unsigned x, y, z;
};
// Shared with emulator.cpp, field by field.
struct EmuState {
  EmuDim thread, block, grid, dim;
  void* dynamic_shared;
  uint64_t (*slots)[8];  // of the current warp: 32 lanes
  unsigned lanes;        // of the current warp that have not returned
  void (*block_barrier)();
  void (*warp_barrier)();
  int (*block_and)(int predicate);
};
static EmuState* emu;
extern "C" void emu_bind(EmuState* state) { emu = state; }

#define threadIdx (emu->thread)
#define blockIdx (emu->block)
#define gridDim (emu->grid)
#define blockDim (emu->dim)
#define __syncthreads() emu->block_barrier()
#define __syncthreads_and(p) emu->block_and(p)
#define __threadfence_system() __atomic_thread_fence(__ATOMIC_SEQ_CST)

static inline int emu_lane() { return static_cast<int>(emu->thread.x % 32); }
static inline void __syncwarp(unsigned = ~0u) { emu->warp_barrier(); }
template <class T>
static inline T __shfl_sync(unsigned, T value, int lane) {
  static_assert(sizeof(T) <= 64, "a slot");
  memcpy(emu->slots[emu_lane()], &value, sizeof value);
  emu->warp_barrier();
  memcpy(&value, emu->slots[lane & 31], sizeof value);
  emu->warp_barrier();
  return value;
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return __shfl_sync(mask, value, emu_lane() ^ bits);
}
static inline unsigned __ballot_sync(unsigned, int predicate) {
  emu->slots[emu_lane()][0] = predicate != 0;
  emu->warp_barrier();
  unsigned found = 0;
  for (int i = 0; i < 32; ++i)
    if ((emu->lanes >> i & 1u) != 0 && emu->slots[i][0] != 0) found |= 1u << i;
  emu->warp_barrier();
  return found;
}
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == emu->lanes; }
static inline unsigned __match_any_sync(unsigned, int value) {
  emu->slots[emu_lane()][0] = static_cast<uint64_t>(static_cast<int64_t>(value));
  emu->warp_barrier();
  unsigned found = 0;
  for (int i = 0; i < 32; ++i)
    if ((emu->lanes >> i & 1u) != 0 && emu->slots[i][0] == static_cast<uint64_t>(static_cast<int64_t>(value)))
      found |= 1u << i;
  emu->warp_barrier();
  return found;
}
static inline int __popc(unsigned x) {
  int n = 0;
  for (; x != 0; x &= x - 1) ++n;
  return n;
}
template <class T, class U>
static inline T atomicAdd(T* p, U value) {
  const T before = *p;
  *p = before + static_cast<T>(value);
  return before;
}
static inline float __int_as_float(int32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static inline int32_t __float_as_int(float x) {
  int32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
static inline double __longlong_as_double(long long bits) {
  double x;
  memcpy(&x, &bits, 8);
  return x;
}
static inline long long __double_as_longlong(double x) {
  long long bits;
  memcpy(&bits, &x, 8);
  return bits;
}
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }

namespace strata {

STRATA_DEVICE float half_to_float(uint16_t h) {
  _Float16 x;
  memcpy(&x, &h, 2);
  return static_cast<float>(x);
}
STRATA_DEVICE uint16_t float_to_half(float x) {
  const auto h = static_cast<_Float16>(x);
  uint16_t bits;
  memcpy(&bits, &h, 2);
  return bits;
}
STRATA_DEVICE float bf16_to_float(uint16_t b) {
  return __int_as_float(static_cast<int32_t>(static_cast<uint32_t>(b) << 16));
}

STRATA_DEVICE int32_t dot4(uint32_t a, uint32_t b, int32_t sum) {
  for (int i = 0; i < 32; i += 8) sum += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return sum;
}
STRATA_DEVICE uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t select) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t how = select >> (4 * i) & 15u;
    uint32_t byte = bytes >> (8 * (how & 7u)) & 0xffu;
    if ((how & 8u) != 0) byte = (byte & 0x80u) != 0 ? 0xffu : 0u;
    result |= byte << (8 * i);
  }
  return result;
}

// The lanes' fragments meet in the slots; every lane computes its own four sums. kWords: of four bytes, of a row of A.
template <int kWordsA, int kWordsB>
static inline void emu_mma(int32_t (&d)[4], const uint32_t (&a)[kWordsA], const uint32_t (&b)[kWordsB]) {
  uint32_t words[kWordsA + kWordsB];
  for (int i = 0; i < kWordsA; ++i) words[i] = a[i];
  for (int i = 0; i < kWordsB; ++i) words[kWordsA + i] = b[i];
  memcpy(emu->slots[emu_lane()], words, sizeof words);
  emu->warp_barrier();
  const int group = emu_lane() / 4, quad = emu_lane() % 4;
  for (int k = 0; k < 4; ++k) {
    const int row_half = k / 2, column = 2 * quad + k % 2;
    for (int part = 0; part < kWordsB; ++part) {
      for (int i = 0; i < 4; ++i) {
        uint32_t wa, wb;
        memcpy(&wa, reinterpret_cast<uint32_t*>(emu->slots[4 * group + i]) + 2 * part + row_half, 4);
        memcpy(&wb, reinterpret_cast<uint32_t*>(emu->slots[4 * column + i]) + kWordsA + part, 4);
        d[k] = dot4(wa, wb, d[k]);
      }
    }
  }
  emu->warp_barrier();
}
STRATA_DEVICE void mma_16x8x32(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { emu_mma(d, a, b); }
// The one instruction that a kernel spells itself: m16n8k16, with its operands' names.
#define asm(...)                        \
  do {                                  \
    const uint32_t emu_a[2] = {a0, a1}; \
    const uint32_t emu_b[1] = {b};      \
    emu_mma(d, emu_a, emu_b);           \
  } while (0)

STRATA_DEVICE uint32_t load_word(const void* p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}
STRATA_DEVICE uint16_t load_half_word(const void* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}
STRATA_DEVICE float load_float(const void* p) { return __int_as_float(static_cast<int32_t>(load_word(p))); }
STRATA_DEVICE uint32_t load_stream(const uint8_t* p) { return load_word(p); }
STRATA_DEVICE uint16_t load_stream_half(const uint8_t* p) { return load_half_word(p); }
struct alignas(16) Quad {
  uint32_t x, y, z, w;
};
STRATA_DEVICE Quad load_quad(const void* p) {
  Quad q;
  memcpy(&q, __builtin_assume_aligned(p, 16), 16);
  return q;
}
STRATA_DEVICE void copy_async(void* shared, const void* global) { memcpy(shared, global, 16); }
STRATA_DEVICE void copy_commit() {}
template <int kPending>
static inline void copy_wait() {}

STRATA_DEVICE uint64_t load_acquire_system(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
STRATA_DEVICE void store_release_system(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
STRATA_DEVICE uint64_t device_time_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace strata
