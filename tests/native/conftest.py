"""Finds the library of per-op hooks and its declarations; its absence is a visible skip.

`make native-tests` builds it: `cmake -S native -B build/native-tests -G Ninja -DSTRATA_TESTS=ON`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cffi
import pytest

ROOT = Path(__file__).resolve().parents[2]
# The sanitizer targets point NATIVE_TESTS at builds of their own.
LIBRARY = ROOT / os.environ.get("NATIVE_TESTS", "build/native-tests") / "libstrata_test.so"
HEADERS = tuple(ROOT / "native" / "include" / name for name in ("strata_test.h", "strata_test_generic.h"))


ABI_HEADERS = tuple(ROOT / "native" / "include" / name for name in ("strata.h", "strata_test_ops.h"))


def declarations(headers: tuple[Path, ...] = HEADERS) -> str:
    """Return the marked regions of headers."""
    regions = []
    for header in headers:
        region = header.read_text(encoding="utf-8").split("/* cffi: begin", 1)[1].split("*/", 1)[1]
        regions.append(region.split("/* cffi: end */", 1)[0])
    return "".join(regions).replace("STRATA_API ", "")


@pytest.fixture(scope="session")
def ffi() -> cffi.FFI:
    """Return a cffi instance that knows every hook."""
    instance = cffi.FFI()
    instance.cdef(declarations())
    return instance


@pytest.fixture(scope="session")
def native(ffi: cffi.FFI) -> Any:
    """Return the opened libstrata_test, or skip the test."""
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY.relative_to(ROOT)} is not built")
    return ffi.dlopen(str(LIBRARY))


@pytest.fixture(scope="session")
def abi_ffi() -> cffi.FFI:
    """Return a cffi instance that knows the public ABI and the sampler's hooks."""
    instance = cffi.FFI()
    instance.cdef(declarations(ABI_HEADERS))
    return instance


@pytest.fixture(scope="session")
def abi(abi_ffi: cffi.FFI) -> Any:
    """Return libstrata_test with the public ABI, or skip the test."""
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY.relative_to(ROOT)} is not built")
    return abi_ffi.dlopen(str(LIBRARY))
