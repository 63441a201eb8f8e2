"""The CUDA kernels against the CPU kernels, bit for bit, by the native test programs; compute-sanitizer where it is there.

Run with `pytest -m gpu tests/gpu` on a machine with an NVIDIA GPU, after `make native-tests`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("NATIVE_TESTS", "build/native-tests")
NO_GPU = 77

pytestmark = pytest.mark.gpu


def nvrtc_folder() -> str:
    """Return the wheel's folder, or nothing for the system's library."""
    spec = find_spec("nvidia.cuda_nvrtc") if find_spec("nvidia") else None
    return str(Path(next(iter(spec.submodule_search_locations or []))) / "lib") if spec else ""


def run(program: str, cache: Path, *args: str, wrapper: tuple[str, ...] = ()) -> str:
    """Run a test program; skip without a GPU; return what it printed."""
    if not (BUILD / program).exists():
        pytest.skip(f"{program} is not built")
    command = [*wrapper, str(BUILD / program), nvrtc_folder(), str(cache), *args]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    if done.returncode == NO_GPU:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("program", ["test_cuda_ops", "test_cuda_kernels"])
def test_bits_equal_the_cpus(program: str, tmp_path: Path) -> None:
    output = run(program, tmp_path)
    assert ", 0 failures" in output
    n_compared = int(output.rsplit(" values compared", 1)[0].rsplit("\n", 1)[1])
    assert n_compared > 100_000


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("program", ["test_cuda_ops", "test_cuda_kernels"])
def test_compute_sanitizer_is_clean(tool: str, program: str, tmp_path: Path) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    run(program, tmp_path, "short", wrapper=(sanitizer, "--tool", tool, "--error-exitcode", "9"))
