#include "cuda/compiler.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

namespace strata::cuda {
namespace {

constexpr int32_t kOldest = 12080, kNewestMajor = 13;
constexpr const char* kOptions[] = {"--std=c++17",     "--fmad=false",     "--ftz=false",
                                    "--prec-div=true", "--prec-sqrt=true", "-default-device"};
constexpr int32_t kNOptions = sizeof kOptions / sizeof kOptions[0];

// FNV-1a with 64 bits; two of them with different starts make the 128 bits of a key.
uint64_t hash_bytes(uint64_t hash, const char* text, size_t n) {
  for (size_t i = 0; i < n; ++i) hash = (hash ^ static_cast<uint8_t>(text[i])) * 0x100000001b3u;
  return hash;
}
uint64_t hash_text(uint64_t hash, const char* text) { return hash_bytes(hash, text, strlen(text) + 1); }

uint64_t hash_module(uint64_t hash, const Module& module, int32_t sm, int32_t version) {
  for (int32_t i = 0; i < kNSources; ++i) hash = hash_text(hash_text(hash, kSources[i].name), kSources[i].text);
  for (int32_t i = 0; i < kNOptions; ++i) hash = hash_text(hash, kOptions[i]);
  hash = hash_text(hash_text(hash, module.source), module.define != nullptr ? module.define : "");
  const int32_t numbers[] = {sm, version};
  return hash_bytes(hash, reinterpret_cast<const char*>(numbers), sizeof numbers);
}

// A cache file: this head, then the machine code. `hash` is of the machine code: a damaged file is compiled anew.
struct CacheHead {
  char magic[8];
  uint64_t n_bytes;
  uint64_t hash;
};
constexpr char kMagic[8] = {'S', 'T', 'R', 'C', 'U', 'B', '0', '1'};
constexpr uint64_t kStart = 0xcbf29ce484222325u, kOtherStart = 0x9ae16a3b2f90404fu;

bool read_cache(const char* path, Array<char>& cubin) {
  FILE* file = fopen(path, "rb");
  if (file == nullptr) return false;
  CacheHead head;
  struct stat info;
  bool ok = fread(&head, sizeof head, 1, file) == 1 && memcmp(head.magic, kMagic, sizeof kMagic) == 0 &&
            fstat(fileno(file), &info) == 0 && static_cast<uint64_t>(info.st_size) == sizeof head + head.n_bytes &&
            cubin.resize(static_cast<int64_t>(head.n_bytes));
  ok = ok && fread(cubin.data(), 1, head.n_bytes, file) == head.n_bytes &&
       hash_bytes(kStart, cubin.data(), head.n_bytes) == head.hash;
  fclose(file);
  return ok;
}

// A cache that cannot be written (read-only, full) costs time at the next start and is no error.
void write_cache(const char* path, const Array<char>& cubin) {
  static std::atomic<uint32_t> counter{0};
  char temporary[1100];
  snprintf(temporary, sizeof temporary, "%s.%d.%u.tmp", path, static_cast<int>(getpid()), counter.fetch_add(1));
  FILE* file = fopen(temporary, "wb");
  if (file == nullptr) return;
  CacheHead head{};
  memcpy(head.magic, kMagic, sizeof kMagic);
  head.n_bytes = static_cast<uint64_t>(cubin.size());
  head.hash = hash_bytes(kStart, cubin.data(), head.n_bytes);
  bool ok = fwrite(&head, sizeof head, 1, file) == 1 && fwrite(cubin.data(), 1, head.n_bytes, file) == head.n_bytes;
  ok = fclose(file) == 0 && ok;
  if (!ok || rename(temporary, path) != 0) unlink(temporary);
}

// libnvrtc opens libnvrtc-builtins by name, which the loader finds only where it is loaded already (or installed).
void load_builtins(const char* folder) {
  DIR* entries = opendir(folder);
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    if (strncmp(entry->d_name, "libnvrtc-builtins.so.", 21) != 0) continue;
    char path[1100];
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  }
  closedir(entries);
}

void* open_in_folder(const char* folder) {
  load_builtins(folder);
  for (const char* name : {"libnvrtc.so.12", "libnvrtc.so.13"}) {
    char path[1100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

void* open_library(const char* path) {
  struct stat info;
  if (path != nullptr) {
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return open_in_folder(path);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  for (const char* name : {"libnvrtc.so.12", "libnvrtc.so.13"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return open_in_folder("/usr/local/cuda/lib64");
}

}  // namespace

Status Compiler::load(const char* path, Error& error) {
  void* library = open_library(path);
  if (library == nullptr) {
    const char* text = dlerror();
    return error.fail(STRATA_E_UNSUPPORTED, "no NVRTC in %s: %s; pip install 'strata-moe[cuda]' brings it",
                      path != nullptr ? path : "the system", text != nullptr ? text : "no such library there");
  }
  struct Entry {
    void** member;
    const char* symbol;
  };
  const Entry entries[] = {
      {reinterpret_cast<void**>(&nvrtc_.version), "nvrtcVersion"},
      {reinterpret_cast<void**>(&nvrtc_.error_string), "nvrtcGetErrorString"},
      {reinterpret_cast<void**>(&nvrtc_.create), "nvrtcCreateProgram"},
      {reinterpret_cast<void**>(&nvrtc_.destroy), "nvrtcDestroyProgram"},
      {reinterpret_cast<void**>(&nvrtc_.compile), "nvrtcCompileProgram"},
      {reinterpret_cast<void**>(&nvrtc_.log_size), "nvrtcGetProgramLogSize"},
      {reinterpret_cast<void**>(&nvrtc_.log), "nvrtcGetProgramLog"},
      {reinterpret_cast<void**>(&nvrtc_.cubin_size), "nvrtcGetCUBINSize"},
      {reinterpret_cast<void**>(&nvrtc_.cubin), "nvrtcGetCUBIN"},
  };
  for (const Entry& entry : entries) {
    *entry.member = dlsym(library, entry.symbol);
    if (*entry.member == nullptr) return error.fail(STRATA_E_UNSUPPORTED, "the NVRTC library has no %s", entry.symbol);
  }
  return STRATA_OK;
}

Status Compiler::open(const char* path, Error& error) {
  STRATA_TRY(load(path, error));
  int32_t major = 0, minor = 0;
  if (nvrtc_.version(&major, &minor) != 0) return error.fail(STRATA_E_UNSUPPORTED, "NVRTC does not tell its version");
  version_ = 1000 * major + 10 * minor;
  if (version_ < kOldest || major > kNewestMajor) {
    return error.fail(STRATA_E_UNSUPPORTED, "NVRTC %d.%d found; 12.8 up to 13 works", major, minor);
  }
  return STRATA_OK;
}

Status Compiler::finish(Program program, int32_t result, const Module& module, int32_t sm, Array<char>& cubin,
                        Error& error) const {
  size_t n = 0;
  Array<char> log;
  if (nvrtc_.log_size(program, &n) == 0 && n > 1 && log.resize(static_cast<int64_t>(n) + 1)) nvrtc_.log(program, log.data());
  const char* text = log.size() > 0 ? log.data() : "";
  if (result != 0) {
    return error.fail(STRATA_E_INTERNAL, "NVRTC could not compile %s for sm_%d: %s: %s", module.name, sm,
                      nvrtc_.error_string(result), text);
  }
  if (strstr(text, "warning") != nullptr)
    return error.fail(STRATA_E_INTERNAL, "NVRTC warns of %s for sm_%d: %s", module.name, sm, text);
  if (nvrtc_.cubin_size(program, &n) != 0 || n == 0)
    return error.fail(STRATA_E_INTERNAL, "NVRTC gave no machine code of %s for sm_%d", module.name, sm);
  if (!cubin.resize(static_cast<int64_t>(n))) return error.fail(STRATA_E_MEMORY, "no memory for machine code");
  if (nvrtc_.cubin(program, cubin.data()) != 0)
    return error.fail(STRATA_E_INTERNAL, "NVRTC kept the machine code of %s for sm_%d", module.name, sm);
  return STRATA_OK;
}

Status Compiler::build(const Module& module, int32_t sm, Array<char>& cubin, Error& error) const {
  Array<const char*> names, texts;
  if (!names.resize(kNSources) || !texts.resize(kNSources)) return error.fail(STRATA_E_MEMORY, "no memory for sources");
  for (int32_t i = 0; i < kNSources; ++i) {
    names[i] = kSources[i].name;
    texts[i] = kSources[i].text;
  }
  char text[256], arch[32], define[128];
  snprintf(text, sizeof text, "#include \"cuda/prelude.cuh\"\n#include \"%s\"\n", module.source);
  snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d", sm);
  snprintf(define, sizeof define, "-D%s", module.define != nullptr ? module.define : "STRATA_PLAIN");
  const char* options[kNOptions + 2];
  for (int32_t i = 0; i < kNOptions; ++i) options[i] = kOptions[i];
  options[kNOptions] = arch;
  options[kNOptions + 1] = define;
  Program program = nullptr;
  int32_t result = nvrtc_.create(&program, text, module.name, kNSources, texts.data(), names.data());
  if (result != 0) return error.fail(STRATA_E_INTERNAL, "NVRTC: %s", nvrtc_.error_string(result));
  result = nvrtc_.compile(program, kNOptions + 2, options);
  const Status status = finish(program, result, module, sm, cubin, error);
  nvrtc_.destroy(&program);
  return status;
}

Status Compiler::compile(const Module& module, int32_t sm, const char* cache_dir, Array<char>& cubin, bool* from_cache,
                         Error& error) const {
  if (from_cache != nullptr) *from_cache = false;
  const bool cached = cache_dir != nullptr && cache_dir[0] != 0;
  char path[1024];
  if (cached) {
    const int n = snprintf(path, sizeof path, "%s/%s-sm_%d-%016llx%016llx.cubin", cache_dir, module.name, sm,
                           static_cast<unsigned long long>(hash_module(kStart, module, sm, version_)),
                           static_cast<unsigned long long>(hash_module(kOtherStart, module, sm, version_)));
    if (n >= static_cast<int>(sizeof path))
      return error.fail(STRATA_E_ARGUMENT, "the cache's path is too long: %s", cache_dir);
    if (read_cache(path, cubin)) {
      if (from_cache != nullptr) *from_cache = true;
      return STRATA_OK;
    }
  }
  STRATA_TRY(build(module, sm, cubin, error));
  if (cached) write_cache(path, cubin);
  return STRATA_OK;
}

}  // namespace strata::cuda
