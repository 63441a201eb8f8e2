"""The CUDA backend without a GPU: the shipped kernels, host code and driver calls, on a driver that runs kernels on the CPU.

It proves arithmetic, order, indexing and the protocol of the kernels as they are written; not the GPU's memory model, nor
what NVRTC makes of them. `make emulate` runs all of tests/gpu/test_cuda_model.py this way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / "build/native-tests/emulator"
# Few enough for every run: a decode step, a chunk with a graph, a large step, a swap before every step, a cache type.
CHOSEN = (
    "test_slots_and_chunks[7-half-tiny-gpt-oss]",
    "test_slots_and_chunks[64-half-tiny-gpt-oss]",
    "test_slots_and_chunks[1-one-tiny-deepseek2]",
    "test_slots_and_chunks[64-all-tiny-qwen3moe]",
    "test_slots_and_chunks[512-none-tiny-llama]",
    "test_a_swap_before_every_step[tiny-qwen3moe]",
    "test_cache_types[tiny-qwen3moe-q8_0]",
)


def test_chosen_models_have_the_cpus_bits() -> None:
    if not (EMULATOR / "libcuda.so.1").exists():
        pytest.skip("the emulator is not built (x86-64 only)")
    home = EMULATOR / "home"
    home.mkdir(exist_ok=True)
    tests = [f"tests/gpu/test_cuda_model.py::{name}" for name in CHOSEN]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(EMULATOR),
            "STRATA_ENGINE_NVRTC_PATH": str(EMULATOR / "libnvrtc.so.12"),
            "STRATA_ENGINE_DEADLINE_SCALE": "100",
            "STRATA_ENGINE_N_THREADS": "1",
            "HOME": str(home),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"{len(CHOSEN)} passed" in done.stdout, done.stdout[-2000:]
