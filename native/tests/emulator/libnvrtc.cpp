// The emulator's NVRTC: "machine code" is a shared library that the host's compiler makes of a module's sources.
//
// EMU_PRELUDE: path of prelude.h (set by the build). Warnings stay silent; errors go to the program's log.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>

namespace {

struct Program {
  std::string source, log, code;
  std::map<std::string, std::string> headers;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    mkdir(path.substr(0, at).c_str(), 0755);
  std::ofstream(path, std::ios::binary) << text;
}

// Memory of a size that the launch gives becomes a pointer.
std::string adapt(const std::string& text) {
  static const std::regex dynamic("extern __shared__ (\\w+) (\\w+)\\[\\];");
  static const std::regex aligned("__shared__ alignas\\((\\w+)\\)");
  const std::string made = std::regex_replace(text, dynamic, "$1* const $2 = static_cast<$1*>(emu->dynamic_shared);");
  return std::regex_replace(made, aligned, "alignas($1) __shared__");
}

int compile(Program& program, const std::string& define) {
  char folder[] = "/tmp/strata-emulator-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  const std::string root = folder;
  for (const auto& [name, text] : program.headers) {
    if (name == "stdint.h" || name == "cstdint" || name == "cstring") continue;
    write_file(root + "/" + name, name == "cuda/prelude.cuh" ? read_file(EMU_PRELUDE) : adapt(text));
  }
  write_file(root + "/module.cpp", program.source);
  const std::string command =
      std::string(EMU_CXX) +
      " -std=c++17 -O2 -march=native -shared -fPIC -w -ffp-contract=off -fno-math-errno -fno-exceptions "
      "-fno-strict-aliasing " +
      define + " -I" + root + " " + root + "/module.cpp -o " + root + "/module.so > " + root + "/log 2>&1";
  const int failed = std::system(command.c_str());
  program.log = failed == 0 ? "" : read_file(root + "/log").substr(0, 4000);
  program.code = failed == 0 ? read_file(root + "/module.so") : "";
  if (std::getenv("STRATA_EMULATOR_KEEP") == nullptr) std::system(("rm -r " + root).c_str());
  return failed == 0 ? 0 : 6;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 8;
  return 0;
}
EXPORT const char* nvrtcGetErrorString(int result) { return result == 0 ? "no error" : "the emulator's compiler failed"; }
EXPORT int nvrtcCreateProgram(Program** program, const char* source, const char*, int n, const char* const* headers,
                              const char* const* names) {
  *program = new Program{source, "", "", {}};
  for (int i = 0; i < n; ++i) (*program)->headers[names[i]] = headers[i];
  return 0;
}
EXPORT int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}
EXPORT int nvrtcCompileProgram(Program* program, int n, const char* const* options) {
  std::string define;
  for (int i = 0; i < n; ++i) {
    if (strncmp(options[i], "-D", 2) == 0) define += std::string(" '") + options[i] + "'";
  }
  return compile(*program, define);
}
EXPORT int nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
  *bytes = program->log.size() + 1;
  return 0;
}
EXPORT int nvrtcGetProgramLog(Program* program, char* text) {
  memcpy(text, program->log.c_str(), program->log.size() + 1);
  return 0;
}
EXPORT int nvrtcGetCUBINSize(Program* program, size_t* bytes) {
  *bytes = program->code.size();
  return 0;
}
EXPORT int nvrtcGetCUBIN(Program* program, char* bytes) {
  memcpy(bytes, program->code.data(), program->code.size());
  return 0;
}
