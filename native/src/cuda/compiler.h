// NVRTC by dlopen: compiles the library's CUDA sources to machine code of one GPU, and keeps the results on disk.
//
// The machine code (cubin) depends on the sources, the options, the GPU's architecture and the compiler's version; the
// cache's file name holds a hash of all of them, so a stale file is never read. Files are written beside their place and
// renamed, so that two processes never see half a file. Compiling needs no GPU and no driver.
#pragma once
#include <cstdint>

#include "base/arena.h"
#include "base/error.h"
#include "cuda/modules.h"

namespace strata::cuda {

// The compiler's functions; open once, used by any number of threads.
class Compiler {
 public:
  // `path`: the NVRTC library, or the folder that holds it (the wheel's); null: the system's libnvrtc.so.12 or .13.
  // STRATA_E_UNSUPPORTED: none found, or older than 12.8.
  Status open(const char* path, Error& error);
  int32_t version() const { return version_; }  // 12080: NVRTC 12.8

  // Machine code of `module` for compute capability sm (89: 8.9). `cache_dir` null or empty: no cache. `from_cache`, when
  // not null, says whether the file was there. Warnings of the compiler are errors.
  Status compile(const Module& module, int32_t sm, const char* cache_dir, Array<char>& cubin, bool* from_cache,
                 Error& error) const;

 private:
  using Program = struct NvrtcProgram*;
  struct Functions {
    int32_t (*version)(int32_t* major, int32_t* minor);
    const char* (*error_string)(int32_t result);
    int32_t (*create)(Program* program, const char* source, const char* name, int32_t n_headers, const char* const* headers,
                      const char* const* names);
    int32_t (*destroy)(Program* program);
    int32_t (*compile)(Program program, int32_t n_options, const char* const* options);
    int32_t (*log_size)(Program program, size_t* bytes);
    int32_t (*log)(Program program, char* text);
    int32_t (*cubin_size)(Program program, size_t* bytes);
    int32_t (*cubin)(Program program, char* bytes);
  };

  Status load(const char* path, Error& error);
  Status build(const Module& module, int32_t sm, Array<char>& cubin, Error& error) const;
  Status finish(Program program, int32_t result, const Module& module, int32_t sm, Array<char>& cubin, Error& error) const;

  Functions nvrtc_{};
  int32_t version_ = 0;
};

}  // namespace strata::cuda
