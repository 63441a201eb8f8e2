// One GPU for test programs and benches: driver, compiler, modules by name, device buffers, random weights of every type.
//
// Failures end the program: exit code 77 where there is no GPU (a skip), 1 otherwise.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "cpu/act.h"
#include "cpu/kernels.h"
#include "cpu/pack.h"
#include "cpu/vecmath.h"
#include "cuda/compiler.h"
#include "cuda/driver.h"
#include "cuda/kernel_args.h"
#include "cuda/modules.h"

namespace kit {

using namespace strata;

inline uint64_t& random_state() {
  static uint64_t state = 88172645463325252u;
  return state;
}
inline uint32_t next_random() {
  uint64_t& s = random_state();
  s ^= s << 13;
  s ^= s >> 7;
  s ^= s << 17;
  return static_cast<uint32_t>(s >> 16);
}
inline float random_float(float scale) { return (static_cast<float>(next_random() % 20001) / 10000.0f - 1.0f) * scale; }
// Magnitudes that change along the row, with zeros.
inline std::vector<float> random_row(int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x)
    v = next_random() % 16 == 0 ? 0.0f : std::ldexp(random_float(1.0f), static_cast<int>(next_random() % 12) - 6);
  return x;
}

class Gpu {
 public:
  Gpu(int argc, char** argv) {
    const char* cache = argc > 2 ? argv[2] : nullptr;
    cache_ = cache != nullptr ? cache : "";
    if (driver.open(nullptr, error_) != STRATA_OK || device_.open(driver, 0, error_) != STRATA_OK) {
      std::printf("skipped: %s\n", error_.text);
      std::exit(77);
    }
    check(compiler_.open(argc > 1 && argv[1][0] != 0 ? argv[1] : nullptr, error_));
    CU(driver.cuStreamCreate(&stream, cuda::kStreamNonBlocking));
    std::printf("%s, sm_%d, driver %d, NVRTC %d\n", device_.info().name, device_.info().sm, driver.version,
                compiler_.version());
  }
  const cuda::DeviceInfo& info() const { return device_.info(); }

  void check(Status status) {
    if (status == STRATA_OK) return;
    std::printf("FAILED: %s\n", error_.text);
    std::exit(1);
  }
  void CU(cuda::CUresult result) {
    if (result != 0) check(driver.fail(result, "a call", "cuda_kit.h", 0, error_));
  }
  cuda::CUfunction function(const char* module, const char* name) {
    cuda::CUmodule& loaded = modules_[module];
    if (loaded == nullptr) {
      const cuda::Module* found = cuda::find_module(module);
      if (found == nullptr) check(error_.fail(STRATA_E_ARGUMENT, "no module %s", module));
      Array<char> code;
      check(compiler_.compile(*found, info().sm, cache_.c_str(), code, nullptr, error_));
      CU(driver.cuModuleLoadData(&loaded, code.data()));
    }
    cuda::CUfunction result = nullptr;
    CU(driver.cuModuleGetFunction(&result, loaded, name));
    return result;
  }
  template <class Args>
  void launch(const char* module, const char* name, int64_t grid_x, int64_t grid_y, int threads, int64_t shared,
              const Args& args) {
    const cuda::CUfunction f = function(module, name);
    check(cuda::launch(driver, f, static_cast<uint32_t>(grid_x), static_cast<uint32_t>(grid_y),
                       static_cast<uint32_t>(threads), static_cast<uint32_t>(shared), stream, args, error_));
  }
  void wait() { CU(driver.cuStreamSynchronize(stream)); }

  cuda::Driver driver;
  cuda::CUstream stream = nullptr;

 private:
  Error error_;
  cuda::Device device_;
  cuda::Compiler compiler_;
  std::string cache_;
  std::map<std::string, cuda::CUmodule> modules_;
};

// n elements on the device, filled with quiet NaNs (0x7fc00000) until written; some words of room behind.
template <class T>
class Device {
 public:
  Device(Gpu& gpu, int64_t n) : gpu_(gpu), n_(n) {
    const size_t words = (static_cast<size_t>(n) * sizeof(T) + 3) / 4;
    gpu.CU(gpu.driver.cuMemAlloc(&address_, words * 4 + 4));
    gpu.CU(gpu.driver.cuMemsetD32(address_, 0x7fc00000u, words));
    gpu.CU(gpu.driver.cuCtxSynchronize());  // the kernels' stream does not wait for fills and copies of the default one
  }
  Device(Gpu& gpu, const std::vector<T>& values) : Device(gpu, static_cast<int64_t>(values.size())) {
    if (!values.empty()) gpu.CU(gpu.driver.cuMemcpyHtoD(address_, values.data(), values.size() * sizeof(T)));
    gpu.CU(gpu.driver.cuCtxSynchronize());
  }
  ~Device() { gpu_.driver.cuMemFree(address_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  T* get(int64_t at = 0) const { return reinterpret_cast<T*>(address_) + at; }
  std::vector<T> read() const {
    gpu_.wait();
    std::vector<T> values(static_cast<size_t>(n_));
    gpu_.CU(gpu_.driver.cuMemcpyDtoH(values.data(), address_, values.size() * sizeof(T)));
    return values;
  }

 private:
  Gpu& gpu_;
  int64_t n_;
  cuda::CUdeviceptr address_ = 0;
};

// A random finite half of small magnitude.
inline uint16_t small_half() { return static_cast<uint16_t>((next_random() & 0x83ffu) | (6 + next_random() % 5) << 10); }
inline void put_half(uint8_t* at) {
  const uint16_t h = small_half();
  std::memcpy(at, &h, 2);
}

// Makes the scales of one random block finite and small; GGML type numbers.
inline void set_scales(int32_t type, uint8_t* block) {
  switch (type) {
    case 0: {
      const float value = random_float(1.0f);
      std::memcpy(block, &value, 4);
      return;
    }
    case 30: {
      const auto value = static_cast<uint16_t>((next_random() & 0x807fu) | (118 + next_random() % 12) << 7);
      std::memcpy(block, &value, 2);
      return;
    }
    case 3:
    case 7:
    case 12:
    case 13:
      put_half(block + 2);
      return put_half(block);
    case 39:
      block[0] = static_cast<uint8_t>(next_random() % 16 == 0 ? next_random() % 3 : 110 + next_random() % 12);
      return;
    case 40:
      return;  // every byte is a scale
    case 10:
      put_half(block + 80);
      return put_half(block + 82);
    case 11:
      return put_half(block + 108);
    case 14:
      return put_half(block + 208);
    case 34:
      return put_half(block + 52);
    case 35:
      return put_half(block + 64);
    case 29: {
      const uint16_t d = small_half();
      for (int w = 0; w < 4; ++w)
        block[49 + 2 * w] = static_cast<uint8_t>((block[49 + 2 * w] & 15) | (d >> (4 * w) & 15) << 4);
      return;
    }
    default:
      return put_half(block);
  }
}
inline std::vector<uint8_t> random_rows(const cpu::TypeKernels& facts, int64_t n_rows, int64_t n_cols) {
  std::vector<uint8_t> rows(static_cast<size_t>(n_rows * n_cols / facts.block * facts.block_bytes));
  for (uint8_t& byte : rows) byte = static_cast<uint8_t>(next_random());
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(facts.block_bytes)) set_scales(facts.type, &rows[at]);
  return rows;
}
// The matrix as the GPU holds it: interleaved where the type has such a layout, else the file's rows.
inline std::vector<uint8_t> packed_matrix(int32_t type, const std::vector<uint8_t>& rows, int64_t n_rows, int64_t n_cols) {
  std::vector<uint8_t> packed(static_cast<size_t>(cpu::packed_bytes(type, n_rows, n_cols)));
  cpu::pack_rows(type, rows.data(), 0, n_rows, n_rows, n_cols, packed.data());
  return packed;
}

// Activation rows of one form on both sides. GPU rows of A32 are longer by the pairs section.
inline int64_t gpu_act_bytes(cpu::ActForm form, int64_t n_cols) {
  return cpu::act_row_bytes(form, n_cols) + (form == cpu::ActForm::a32 ? cpu::align64(n_cols) : 0);
}
inline void round_on_gpu(Gpu& gpu, cpu::ActForm form, const float* x, int64_t x_stride, int64_t n_cols, int64_t n_rows,
                         uint8_t* acts, const int32_t* device_rows = nullptr) {
  const int64_t unit = form == cpu::ActForm::a32 ? 32 : 256;
  const cuda::ActArgs args{x, x_stride, acts, gpu_act_bytes(form, n_cols), n_cols, device_rows};
  gpu.launch("act", form == cpu::ActForm::a32 ? "k_act_a32" : "k_act_a256", (n_cols / unit + 7) / 8, n_rows, 256, 0, args);
}

// ---- comparisons ----------------------------------------------------------------------------------------------------

inline int& failures() {
  static int n = 0;
  return n;
}
inline int64_t& compared() {
  static int64_t n = 0;
  return n;
}
inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
// Bits of floats; a NaN equals any NaN.
inline void same_floats(const std::string& what, const std::vector<float>& got, const std::vector<float>& want) {
  size_t bad = 0, first = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same = std::isnan(want[i]) ? std::isnan(got[i]) : bits_of(got[i]) == bits_of(want[i]);
    if (!same && bad++ == 0) first = i;
  }
  compared() += static_cast<int64_t>(want.size());
  if (bad == 0) return;
  ++failures();
  std::printf("FAILED %s: %zu of %zu differ, first at %zu: %.9g (%08x), expected %.9g (%08x)\n", what.c_str(), bad,
              want.size(), first, static_cast<double>(got[first]), bits_of(got[first]), static_cast<double>(want[first]),
              bits_of(want[first]));
}
template <class T>
void same(const std::string& what, const std::vector<T>& got, const std::vector<T>& want) {
  ++compared();
  if (got == want) return;
  ++failures();
  size_t i = 0;
  while (i < want.size() && got[i] == want[i]) ++i;
  std::printf("FAILED %s: differs from element %zu on\n", what.c_str(), i);
}
inline int finish() {
  std::printf("%lld values compared, %d failures\n", static_cast<long long>(compared()), failures());
  return failures() == 0 && compared() > 0 ? 0 : 1;
}

}  // namespace kit
