// The emulator's driver: memory is the host's, streams are threads, kernels are functions that run as fibers.
//
// Only what cuda/driver.h names exists. Fresh memory is filled with a pattern, so that nothing counts on zeros.
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fibers.h"

namespace {

using Work = std::function<void()>;
constexpr int kInvalid = 1, kOutOfMemory = 2, kNotReady = 600, kNotFound = 500;
constexpr size_t kTotalBytes = size_t{16} << 30;

std::mutex kernels;  // one block at a time in the whole process
std::mutex memory;
std::map<uint64_t, size_t> blocks;
size_t n_bytes_used = 0;

struct Event {
  std::atomic<uint64_t> recorded{0}, reached{0};
  std::atomic<int64_t> time_ns{0};
};

struct Graph {
  std::vector<Work> work;
};

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    add([this] { closing_ = true; });
    thread_.join();
  }
  void add(Work work) {
    if (capture != nullptr) {
      capture->work.push_back(std::move(work));
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
  }
  Graph* capture = nullptr;

 private:
  void run() {
    while (!closing_) {
      Work work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
      }
      work();
      {
        std::lock_guard<std::mutex> lock(mutex_);
        busy_ = false;
      }
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool busy_ = false, closing_ = false;
  std::thread thread_;
};

std::mutex streams_mutex;
std::vector<Stream*> streams;

struct Function {
  void* code;
  std::string name;
};
struct Module {
  void* library;
  std::map<std::string, Function> functions;
};

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

void run_kernel(const Function& function, EmuDim grid, EmuDim dim, size_t shared, const std::vector<uint8_t>& arguments) {
  std::lock_guard<std::mutex> lock(kernels);
  std::vector<uint64_t> room(shared / 8 + 2, 0x7ff4dead7fc0deadu);
  emu_state.grid = grid;
  emu_state.dim = dim;
  emu_state.dynamic_shared = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(room.data()) + 15) & ~uintptr_t{15});
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) {
      emu_state.block = {x, y, 0};
      emu_run_block(function.code, function.name.c_str(), arguments.data(), dim.x);
    }
  }
}

size_t image_bytes(const void* image) {
  const auto* head = static_cast<const Elf64_Ehdr*>(image);
  return head->e_shoff + static_cast<size_t>(head->e_shnum) * head->e_shentsize;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuInit(unsigned) { return 0; }
EXPORT int cuDriverGetVersion(int* version) { return *version = 12080, 0; }
EXPORT int cuGetErrorName(int, const char** name) { return *name = "EMULATOR_ERROR", 0; }
EXPORT int cuGetErrorString(int, const char** text) { return *text = "an error of the emulator", 0; }
EXPORT int cuDeviceGetCount(int* n) { return *n = 1, 0; }
EXPORT int cuDeviceGet(int* device, int) { return *device = 0, 0; }
EXPORT int cuDeviceGetName(char* name, int capacity, int) {
  return snprintf(name, static_cast<size_t>(capacity), "emulator"), 0;
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 16 ? 4 : attribute == 75 ? 9 : 0;
  return 0;
}
EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = kTotalBytes, 0; }
EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
  static int made;
  return *context = &made, 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
EXPORT int cuCtxSetCurrent(void*) { return 0; }
EXPORT int cuCtxSynchronize() {
  std::lock_guard<std::mutex> lock(streams_mutex);
  for (Stream* stream : streams) stream->wait();
  return 0;
}
EXPORT int cuModuleLoadData(Module** module, const void* image) {
  char path[] = "/tmp/strata-module-XXXXXX";
  const int fd = mkstemp(path);
  const size_t n = image_bytes(image);
  const bool written = fd >= 0 && write(fd, image, n) == static_cast<ssize_t>(n);
  if (fd >= 0) close(fd);
  void* library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (library == nullptr) fprintf(stderr, "emulator: %s\n", written ? dlerror() : "a module could not be written");
  unlink(path);
  if (library == nullptr) return kInvalid;
  reinterpret_cast<void (*)(EmuState*)>(dlsym(library, "emu_bind"))(&emu_state);
  *module = new Module{library, {}};
  return 0;
}
EXPORT int cuModuleUnload(Module* module) {
  dlclose(module->library);
  delete module;
  return 0;
}
EXPORT int cuModuleGetFunction(Function** function, Module* module, const char* name) {
  void* code = dlsym(module->library, name);
  if (code == nullptr) return kNotFound;
  Function& made = module->functions[name];
  made = {code, name};
  *function = &made;
  return 0;
}
EXPORT int cuFuncGetAttribute(int* value, int, void*) { return *value = 0, 0; }
EXPORT int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  std::lock_guard<std::mutex> lock(memory);
  *total_bytes = kTotalBytes;
  *free_bytes = kTotalBytes - (size_t{300} << 20) - n_bytes_used;
  return 0;
}
EXPORT int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(memory);
  void* made = aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (made == nullptr || n_bytes_used + bytes > kTotalBytes) return kOutOfMemory;
  memset(made, 0xcd, bytes);
  *address = reinterpret_cast<uint64_t>(made);
  blocks[*address] = bytes;
  n_bytes_used += bytes;
  return 0;
}
EXPORT int cuMemFree_v2(uint64_t address) {
  std::lock_guard<std::mutex> lock(memory);
  n_bytes_used -= blocks[address];
  blocks.erase(address);
  free(reinterpret_cast<void*>(address));
  return 0;
}
EXPORT int cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *address == nullptr ? kOutOfMemory : 0;
}
EXPORT int cuMemFreeHost(void* address) { return free(address), 0; }
EXPORT int cuMemHostGetDevicePointer_v2(uint64_t* device, void* host, unsigned) {
  return *device = reinterpret_cast<uint64_t>(host), 0;
}
EXPORT int cuMemHostRegister_v2(void*, size_t, unsigned) { return 0; }
EXPORT int cuMemHostUnregister(void*) { return 0; }
EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t n) {
  return memcpy(reinterpret_cast<void*>(to), from, n), 0;
}
EXPORT int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t n) { return memcpy(to, reinterpret_cast<void*>(from), n), 0; }
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t n, Stream* stream) {
  stream->add([=] { memcpy(reinterpret_cast<void*>(to), from, n); });
  return 0;
}
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, Stream* stream) {
  stream->add([=] { memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n); });
  return 0;
}
static void fill(uint64_t to, uint32_t value, size_t n) {
  for (size_t i = 0; i < n; ++i) reinterpret_cast<uint32_t*>(to)[i] = value;
}
EXPORT int cuMemsetD32_v2(uint64_t to, uint32_t value, size_t n) { return fill(to, value, n), 0; }
EXPORT int cuMemsetD32Async(uint64_t to, uint32_t value, size_t n, Stream* stream) {
  stream->add([=] { fill(to, value, n); });
  return 0;
}
EXPORT int cuStreamCreate(Stream** stream, unsigned) {
  *stream = new Stream;
  std::lock_guard<std::mutex> lock(streams_mutex);
  streams.push_back(*stream);
  return 0;
}
EXPORT int cuStreamDestroy_v2(Stream* stream) {
  {
    std::lock_guard<std::mutex> lock(streams_mutex);
    for (size_t i = 0; i < streams.size(); ++i)
      if (streams[i] == stream) streams.erase(streams.begin() + static_cast<std::ptrdiff_t>(i));
  }
  delete stream;
  return 0;
}
EXPORT int cuStreamSynchronize(Stream* stream) { return stream->wait(), 0; }
EXPORT int cuStreamBeginCapture_v2(Stream* stream, int) { return stream->capture = new Graph, 0; }
EXPORT int cuStreamEndCapture(Stream* stream, Graph** graph) {
  *graph = stream->capture;
  stream->capture = nullptr;
  return 0;
}
EXPORT int cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, unsigned long long) {
  return *exec = new Graph(*graph), 0;
}
EXPORT int cuGraphLaunch(Graph* exec, Stream* stream) {
  for (const Work& work : exec->work) stream->add(work);
  return 0;
}
EXPORT int cuGraphExecDestroy(Graph* exec) { return delete exec, 0; }
EXPORT int cuGraphDestroy(Graph* graph) { return delete graph, 0; }
EXPORT int cuEventCreate(Event** event, unsigned) { return *event = new Event, 0; }
EXPORT int cuEventDestroy_v2(Event* event) { return delete event, 0; }
EXPORT int cuEventRecord(Event* event, Stream* stream) {
  const uint64_t turn = ++event->recorded;
  stream->add([=] {
    event->time_ns = now_ns();
    event->reached = turn;
  });
  return 0;
}
EXPORT int cuEventQuery(Event* event) { return event->reached >= event->recorded ? 0 : kNotReady; }
EXPORT int cuEventSynchronize(Event* event) {
  while (event->reached < event->recorded) usleep(20);
  return 0;
}
EXPORT int cuEventElapsedTime(float* ms, Event* start, Event* end) {
  *ms = static_cast<float>(end->time_ns - start->time_ns) * 1e-6f;
  return 0;
}
EXPORT int cuLaunchKernel(Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, Stream* stream, void** arguments, void**) {
  if (gx == 0 || gy == 0 || gz != 1 || bx == 0 || bx > 1024 || by != 1 || bz != 1 || gy > 65535 || shared > 48 << 10)
    return kInvalid;
  std::vector<uint8_t> copy(kArgumentBytes);
  memcpy(copy.data(), arguments[0], kArgumentBytes);
  stream->add([=, code = *function] { run_kernel(code, {gx, gy, 1}, {bx, 1, 1}, shared, copy); });
  return 0;
}
