#!/usr/bin/env bash
# Refuses machines that Strata cannot be built on, naming what is missing and the command that brings it.
set -u
fail() { printf 'strata: %s\n' "$*" >&2; exit 1; }

[ "$(uname -s)" = Linux ] || fail "this system is $(uname -s); Strata runs on Linux (on Windows: inside WSL2)"
[ "$(uname -m)" = x86_64 ] || fail "this processor is $(uname -m); Strata's kernels are written for x86-64"

missing=()
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  missing+=(python3 python3-venv)
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  fail "$("$python" --version) is too old; Python 3.11 or newer is needed (PYTHON=/path/to/python3 chooses another)"
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  missing+=("python3-venv")
fi
if ! command -v "${CXX:-c++}" >/dev/null; then
  missing+=(g++)
elif ! echo 'int main() { if constexpr (true) return 0; }' | "${CXX:-c++}" -std=c++17 -x c++ -fsyntax-only - 2>/dev/null; then
  fail "${CXX:-c++} does not accept C++17; install g++ 9 or newer: sudo apt install g++"
fi
if [ ${#missing[@]} -gt 0 ]; then
  fail "missing: ${missing[*]}. Install with: sudo apt install ${missing[*]}"
fi
