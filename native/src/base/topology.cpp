// How many processors this process may use.
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cstdio>

#include "base/threads.h"

namespace strata {
namespace {

constexpr int kPathBytes = 4096;

// First line of a file; false when it cannot be read.
bool read_line(const char* path, char* line, int capacity) {
  FILE* file = fopen(path, "re");
  if (file == nullptr) return false;
  const bool read = fgets(line, capacity, file) != nullptr;
  fclose(file);
  return read;
}

// Quota of one group directory in whole processors, 0 when it sets none.
int32_t group_cpus(const char* directory, bool v2) {
  char path[kPathBytes + 32], line[128];
  long long quota = -1, period = 0;
  if (v2) {
    snprintf(path, sizeof path, "%s/cpu.max", directory);
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lld %lld", &quota, &period) != 2) return 0;
  } else {
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory);
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &quota) != 1) return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1) return 0;
  }
  if (quota <= 0 || period <= 0) return 0;
  const long long cpus = quota / period;  // a spinning thread on a fraction of a processor would be throttled
  return cpus < 1 ? 1 : cpus > kMaxWorkers ? kMaxWorkers : static_cast<int32_t>(cpus);
}

// Smallest quota of the group and all groups above it, up to the mount. In a container the named path may not exist
// below the mount, which then is the group itself.
int32_t tree_cpus(const char* mount, const char* group, bool v2) {
  char directory[kPathBytes];
  if (snprintf(directory, sizeof directory, "%s%s", mount, group) >= kPathBytes) return 0;
  const size_t mount_length = strlen(mount);
  int32_t least = 0;
  for (;;) {
    const int32_t cpus = group_cpus(directory, v2);
    if (cpus > 0 && (least == 0 || cpus < least)) least = cpus;
    char* slash = strrchr(directory, '/');
    if (strlen(directory) <= mount_length || slash == nullptr) return least;
    *slash = 0;
  }
}

bool has_controller(const char* list, const char* name) {
  const size_t length = strlen(name);
  for (const char* at = list; at != nullptr; at = strchr(at, ',')) {
    if (*at == ',') ++at;
    if (strncmp(at, name, length) == 0 && (at[length] == 0 || at[length] == ',')) return true;
  }
  return false;
}

}  // namespace

int32_t cgroup_cpus(const char* root, const char* proc_cgroup) {
  FILE* file = fopen(proc_cgroup, "re");
  if (file == nullptr) return 0;
  char line[kPathBytes];
  int32_t least = 0;
  while (fgets(line, sizeof line, file) != nullptr) {
    line[strcspn(line, "\n")] = 0;  // "id:controllers:path"; version 2 has no controllers
    char* controllers = strchr(line, ':');
    char* group = controllers == nullptr ? nullptr : strchr(controllers + 1, ':');
    if (group == nullptr) continue;
    *group++ = 0;
    ++controllers;
    const bool v2 = *controllers == 0;
    if (!v2 && !has_controller(controllers, "cpu")) continue;
    const char* const mounts[] = {v2 ? "" : "/cpu", v2 ? "/unified" : "/cpu,cpuacct"};
    for (const char* sub : mounts) {
      char mount[kPathBytes];
      if (snprintf(mount, sizeof mount, "%s%s", root, sub) >= kPathBytes) continue;
      const int32_t cpus = tree_cpus(mount, strcmp(group, "/") == 0 ? "" : group, v2);
      if (cpus > 0 && (least == 0 || cpus < least)) least = cpus;
    }
  }
  fclose(file);
  return least;
}

int32_t cpu_count() {
  int32_t n = 0;
  for (int n_bits = 1024; n_bits <= 1 << 16; n_bits *= 4) {  // the kernel refuses masks smaller than its own
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(n_bits));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(n_bits));
    CPU_ZERO_S(bytes, set);
    const bool read = sched_getaffinity(0, bytes, set) == 0;
    if (read) n = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    if (read) break;
  }
  if (n < 1) n = static_cast<int32_t>(sysconf(_SC_NPROCESSORS_ONLN));
  const int32_t quota = cgroup_cpus("/sys/fs/cgroup", "/proc/self/cgroup");
  if (quota > 0 && quota < n) n = quota;
  return n < 1 ? 1 : n;
}

}  // namespace strata
