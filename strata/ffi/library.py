"""Finds and opens libstrata, and checks that it is the one this package was built for.

Only modules of `strata.ffi` use the handle; the few facts about the machine that others need are methods here.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import strata
from strata.errors import StrataError
from strata.ffi import _abi
from strata.ffi.check import Checker

__all__ = ["Gpu", "Library"]

LIBRARY_NAME = "libstrata.so"
DISTRIBUTION = "strata-moe"

ffi: Any = _abi.ffi


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU. free_bytes: beside all that runs on it, this process's own context included."""

    name: str
    sm: int  # compute capability: 89 is 8.9
    total_bytes: int
    free_bytes: int


class Library:
    """An opened libstrata. `lib` has its functions, `ffi` its types and constants."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the library at `path`, default the installed one.

        Raises: StrataError when it is missing, cannot be opened, or was built from another header.
        """
        self.path = path if path is not None else find()
        self.ffi = ffi
        try:
            self.lib: Any = ffi.dlopen(str(self.path))
        except OSError as error:
            raise StrataError(f"{self.path} cannot be opened: {error}") from error
        self._handshake()
        self.checker = Checker(ffi, self.lib)

    def _handshake(self) -> None:
        """Compare version and struct sizes: a stale library would read garbage."""
        wanted, found = ffi.integer_const("STRATA_ABI_VERSION"), self.lib.strata_abi_version()
        if wanted != found:
            raise StrataError(f"{self.path} has ABI version {found}, this package needs {wanted}; {_REBUILD}")
        for name in ffi.list_types()[0]:
            here, there = _size(name), self.lib.strata_struct_bytes(name.encode())
            if here >= 0 and here != there:
                raise StrataError(f"{self.path}: {name} has {there} bytes, this package expects {here}; {_REBUILD}")

    @property
    def build_info(self) -> str:
        """Compiler, optimisation and instruction-set tiers of the build."""
        return ffi.string(self.lib.strata_build_info()).decode()

    @property
    def cpu_tier(self) -> str:
        """Best instruction-set tier of this processor."""
        return ffi.string(self.lib.strata_cpu_tier()).decode()

    @property
    def cpu_count(self) -> int:
        """Processors this process may use, by affinity mask and cgroup quota."""
        return int(self.lib.strata_cpu_count())

    def measure_read(self, n_threads: int, n_bytes: int) -> float:
        """Bytes per second that n_threads read from n_bytes of memory; blocks for about a second."""
        rate = ffi.new("double *")
        self.checker.check(self.lib.strata_measure_read(n_threads, n_bytes, rate), "strata_measure_read")
        return float(rate[0])

    def gpu(self, ordinal: int) -> Gpu:
        """What is known about a GPU. Raises: NativeError when there is none that works."""
        made = self.ffi.new("strata_gpu *")
        made.struct_size = self.ffi.sizeof("strata_gpu")
        self.checker.check(self.lib.strata_gpu_info(ordinal, made), "strata_gpu_info")
        return Gpu(
            name=self.ffi.string(made.name).decode("utf-8", "replace"),
            sm=made.sm,
            total_bytes=made.total_bytes,
            free_bytes=made.free_bytes,
        )

    def gpu_rates(self, ordinal: int) -> tuple[float, float]:
        """Bytes per second of the GPU's memory and of the link to it; blocks for some tenths of a second."""
        memory, link = self.ffi.new("double *"), self.ffi.new("double *")
        self.checker.check(self.lib.strata_gpu_measure(ordinal, memory, link), "strata_gpu_measure")
        return float(memory[0]), float(link[0])

    def packed_bytes(self, ggml_type: int, n_rows: int, n_cols: int) -> int:
        """Bytes of a matrix in the arena; -1 for an unknown type or a ragged row."""
        return int(self.lib.strata_packed_bytes(ggml_type, n_rows, n_cols))


_REBUILD = "build and install the package again (`pip install .`, or `make`)"


def find() -> Path:
    """The library inside the installed package. Raises: StrataError that says where it was looked for."""
    tried: list[str] = []
    for path in _places():
        if path.is_file():
            return path
        tried.append(str(path))
    raise StrataError(f"{LIBRARY_NAME} was not found (looked at {', '.join(tried)}); {_REBUILD}")


def _places() -> Iterator[Path]:
    """Inside the package's folders, then where the installer recorded it (an editable install keeps it apart)."""
    for folder in strata.__path__:
        yield Path(folder) / "lib" / LIBRARY_NAME
    try:
        files = importlib.metadata.distribution(DISTRIBUTION).files or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name == LIBRARY_NAME:
            yield Path(str(file.locate()))


def _size(name: str) -> int:
    """sizeof a struct; -1 for the opaque ones."""
    try:
        return int(ffi.sizeof(name))
    except ffi.error:
        return -1
