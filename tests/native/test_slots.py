"""The slot table and the mailbox's memory map: the native program decides."""

from __future__ import annotations

import subprocess

import engine_kit as kit
import pytest


def test_slots_and_mailbox_program() -> None:
    program = kit.LIBRARY.parent / "test_slots"
    if not program.exists():
        pytest.skip("test_slots is not built")
    run = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout
