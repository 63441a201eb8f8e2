"""Every CUDA module compiles for every GPU generation, without a GPU; cache, determinism and refusals of the compiler."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cffi
import pytest
from conftest import LIBRARY, ROOT, declarations

ARCHITECTURES = (75, 80, 86, 89, 90, 120)
CAPACITY = 4 << 20
CPU_TYPES = 26  # weight types of the CPU kernels, each with CUDA kernels of its own


class Compiler:
    """The compiler's hook with Python values instead of pointers."""

    def __init__(self, ffi: cffi.FFI, lib: Any, nvrtc: Path) -> None:
        self.ffi, self.lib, self.nvrtc = ffi, lib, str(nvrtc).encode()
        names = (lib.strata_test_cuda_module_name(m) for m in range(lib.strata_test_cuda_n_modules()))
        self.modules = [ffi.string(name).decode() for name in names]

    def run(
        self, module: str, sm: int, cache: Path | None = None, nvrtc: str | None = None
    ) -> tuple[int, bytes, bool, str]:
        """Return status, machine code, whether it came from the cache, and the error's text."""
        ffi = self.ffi
        code, text = ffi.new("uint8_t[]", CAPACITY), ffi.new("char[]", 4096)
        size, cached = ffi.new("int64_t *"), ffi.new("int32_t *")
        path = self.nvrtc if nvrtc is None else nvrtc.encode()
        folder = ffi.NULL if cache is None else ffi.new("char[]", str(cache).encode())
        index = self.modules.index(module)
        status = self.lib.strata_test_cuda_compile(path, index, sm, folder, code, CAPACITY, size, cached, text, 4096)
        return status, bytes(ffi.buffer(code)[: size[0]]), bool(cached[0]), ffi.string(text).decode()


@pytest.fixture(scope="module", name="cuda_lib")
def _cuda_lib() -> tuple[cffi.FFI, Any]:
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY.relative_to(ROOT)} is not built")
    ffi = cffi.FFI()
    ffi.cdef(declarations((ROOT / "native/include/strata_test_cuda.h",)))
    return ffi, ffi.dlopen(str(LIBRARY))


@pytest.fixture(scope="module", name="compiler")
def _compiler(cuda_lib: tuple[cffi.FFI, Any]) -> Compiler:
    nvrtc = pytest.importorskip("nvidia.cuda_nvrtc", reason="the extra strata-moe[cuda] is not installed")
    return Compiler(*cuda_lib, Path(next(iter(nvrtc.__path__))) / "lib")


@pytest.mark.parametrize("sm", ARCHITECTURES)
def test_every_module_compiles(compiler: Compiler, sm: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda module: compiler.run(module, sm), compiler.modules))
    for module, (status, code, _, text) in zip(compiler.modules, results, strict=True):
        assert status == 0, f"{module}: {text}"
        assert code[:4] == b"\x7fELF", module
        # Machine code, not PTX: e_flags of a cubin hold the architecture (its low byte, or the byte above in newer ABIs).
        flags = int.from_bytes(code[48:52], "little")
        assert sm in (flags & 0xFF, flags >> 8 & 0xFF), f"{module}: e_flags {flags:#x}"


def test_every_weight_type_has_kernels(compiler: Compiler) -> None:
    types = {name.split(".")[1] for name in compiler.modules if name.startswith(("linear.", "rows."))}
    assert len(types) == CPU_TYPES


def test_cache_holds_the_same_code_and_a_damaged_file_is_compiled_anew(compiler: Compiler, tmp_path: Path) -> None:
    status, code, cached, text = compiler.run("rope", 89, tmp_path)
    assert (status, cached) == (0, False), text
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("rope-sm_89-")
    assert compiler.run("rope", 89, tmp_path)[:3] == (0, code, True)
    assert compiler.run("rope", 90, tmp_path)[2] is False
    for damaged in (file.read_bytes()[:-1], file.read_bytes()[:100] + b"?" + file.read_bytes()[101:], b""):
        file.write_bytes(damaged)
        assert compiler.run("rope", 89, tmp_path)[:3] == (0, code, False)
        assert compiler.run("rope", 89, tmp_path)[:3] == (0, code, True)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_cache_that_cannot_be_written_is_no_error(compiler: Compiler, tmp_path: Path) -> None:
    status, code, cached, text = compiler.run("rope", 89, tmp_path / "missing")
    assert (status, cached, code[:4]) == (0, False, b"\x7fELF"), text


def test_refusals_say_what_is_missing(compiler: Compiler, tmp_path: Path) -> None:
    status, _, _, text = compiler.run("rope", 89, nvrtc=str(tmp_path))
    assert status == -8
    assert "no NVRTC in" in text and "strata-moe[cuda]" in text
    status, _, _, text = compiler.run("rope", 12)
    assert status == -12
    assert "could not compile rope for sm_12" in text


def test_no_driver_is_a_refusal(cuda_lib: tuple[cffi.FFI, Any], tmp_path: Path) -> None:
    ffi, lib = cuda_lib
    text = ffi.new("char[]", 1024)
    assert lib.strata_test_cuda_driver(str(tmp_path / "libcuda.so.1").encode(), text, 1024) == -8
    assert "no CUDA driver" in ffi.string(text).decode()
    # A library without the driver's functions: this one.
    assert lib.strata_test_cuda_driver(str(LIBRARY).encode(), text, 1024) == -8
    assert "has no cuInit" in ffi.string(text).decode()
