// What a CUDA toolkit's headers would give, in our own words: NVRTC alone compiles the kernels, without any header file.
//
// Types, conversions, integer dot products, loads with a cache policy, asynchronous copies, int8 matrix instructions and
// system-scope accesses. Where sm_75 lacks an instruction, the variant below it gives the same result.
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
static_assert(sizeof(int64_t) == 8 && sizeof(void*) == 8 && sizeof(size_t) == 8, "a 64-bit device ABI");

#define STRATA_DEVICE static __device__ __forceinline__

namespace strata {

// ---- conversions: exact to float, nearest even from float -----------------------------------------------------------

STRATA_DEVICE float half_to_float(uint16_t h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
}
STRATA_DEVICE uint16_t float_to_half(float x) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
STRATA_DEVICE float bf16_to_float(uint16_t b) { return __int_as_float(static_cast<int32_t>(b) << 16); }

// ---- integers -------------------------------------------------------------------------------------------------------

// sum + the four products of signed bytes.
STRATA_DEVICE int32_t dot4(uint32_t a, uint32_t b, int32_t sum) {
  int32_t result;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  return result;
}
// The byte i of the result is byte (nibble i of select) of the eight bytes low, high.
STRATA_DEVICE uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t select) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(select));
  return result;
}

// D = A B + D with exact int32 sums: A 16 x 32 int8 by rows, B 32 x 8 int8 by columns. With g = lane / 4 and i = lane % 4,
// a[0], a[1] hold columns 4i .. 4i+3 of rows g and g + 8, a[2], a[3] columns 16 more; b[0], b[1] rows 4i .. and 16 more of
// column g; d[0], d[1] columns 2i, 2i + 1 of row g, d[2], d[3] of row g + 8.
STRATA_DEVICE void mma_16x8x32(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(d[0]), "+r"(d[1])
        : "r"(a[2 * k]), "r"(b[k]));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(d[2]), "+r"(d[3])
        : "r"(a[2 * k + 1]), "r"(b[k]));
  }
#endif
}

// ---- loads of weights: read once, so that they leave the first-level cache to the activations --------------------------

STRATA_DEVICE uint32_t load_stream(const uint8_t* p) {
  uint32_t v;
  asm("ld.global.nc.L1::no_allocate.b32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
STRATA_DEVICE uint16_t load_stream_half(const uint8_t* p) {
  uint16_t v;
  asm("ld.global.nc.L1::no_allocate.b16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
struct alignas(16) Quad {
  uint32_t x, y, z, w;
};

STRATA_DEVICE Quad load_quad(const void* p) { return *static_cast<const Quad*>(p); }

// Loads of what no thread of the launch writes: the compiler may move them over stores to shared memory, as it may not with
// a plain pointer, which could point there. (Where nothing is stored meanwhile, plain loads measured faster.)
STRATA_DEVICE uint32_t load_word(const void* p) {
  uint32_t v;
  asm("ld.global.nc.b32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
STRATA_DEVICE uint16_t load_half_word(const void* p) {
  uint16_t v;
  asm("ld.global.nc.b16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
STRATA_DEVICE float load_float(const void* p) { return __int_as_float(static_cast<int32_t>(load_word(p))); }

// ---- copies to shared memory that run beside the arithmetic -----------------------------------------------------------

// 16 bytes; both addresses are multiples of 16.
STRATA_DEVICE void copy_async(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#else
  *static_cast<Quad*>(shared) = *static_cast<const Quad*>(global);
#endif
}
// Ends a batch of this thread's copies.
STRATA_DEVICE void copy_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most kPending batches of this thread are under way; a barrier must follow before others read them.
template <int kPending>
STRATA_DEVICE void copy_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// ---- memory shared with the host -------------------------------------------------------------------------------------

// System scope: ordered with the CPU's acquire and release of the same page-locked words.
STRATA_DEVICE uint64_t load_acquire_system(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
STRATA_DEVICE void store_release_system(uint64_t* p, uint64_t v) {
  asm volatile("st.release.sys.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// Nanoseconds of the GPU's own clock, for deadlines.
STRATA_DEVICE uint64_t device_time_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

}  // namespace strata
