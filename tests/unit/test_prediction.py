"""Predicted speeds: bytes over rates, term by term; the comparison with measured steps; calibration's file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from strata import calibration
from strata.engine.prediction import Rates, SpeedCheck, predict

GPU = Rates(ram=100e9, n_threads=12, vram=1000e9, link=50e9)
SIZES: dict[str, Any] = {"dense_bytes": 10**9, "expert_bytes": 2 * 10**9, "n_expert_layers": 36, "n_ops": 600}


def test_the_cpu_alone_reads_everything():
    found = predict(Rates(ram=100e9, n_threads=4), hit_share=0.0, **SIZES)
    assert found.token_s == pytest.approx(3e9 / 80e9)


def test_hits_take_bytes_from_the_cpu():
    cold, warm, all_hit = (predict(GPU, hit_share=share, **SIZES) for share in (0.0, 0.5, 1.0))
    assert cold.ram_s == pytest.approx(2 * warm.ram_s)
    assert all_hit.ram_s == all_hit.handoff_s == 0.0
    assert cold.tokens_per_s < warm.tokens_per_s < all_hit.tokens_per_s
    assert "RAM 12.50 ms" in warm.text()


def test_the_median_of_enough_steps_is_told_once():
    check = SpeedCheck()
    found = [check.note(0.001 * (k + 1)) for k in range(70)]
    assert [value for value in found if value is not None] == [pytest.approx(0.033)]
    assert found[63] is not None


class Machine:
    cpu_tier, cpu_count = "avx2", 16

    def __init__(self) -> None:
        self.n_measured = 0

    def gpu(self, ordinal: int) -> Any:
        return type("Gpu", (), {"name": f"card {ordinal}"})

    def gpu_rates(self, ordinal: int) -> tuple[float, float]:
        self.n_measured += 1
        return 3e12, 5e10

    def measure_read(self, n_threads: int, n_bytes: int) -> float:
        return {12: 109e9, 14: 105e9, 16: 101e9}[n_threads]


def test_the_best_thread_count_is_found_and_kept(tmp_path: Path, caplog):
    machine = Machine()
    first = calibration.calibrate(machine, 0, tmp_path)  # type: ignore[arg-type]
    assert first == Rates(ram=109e9, n_threads=12, vram=3e12, link=5e10)
    assert calibration.calibrate(machine, 0, tmp_path) == first  # type: ignore[arg-type]
    assert machine.n_measured == 1
    calibration.calibrate(machine, 1, tmp_path)  # type: ignore[arg-type]
    assert machine.n_measured == 2  # another card
    (tmp_path / "rates.json").write_text("{broken")
    with caplog.at_level(logging.WARNING):
        assert calibration.calibrate(machine, 0, tmp_path) == first  # type: ignore[arg-type]
    assert "measured anew" in caplog.text
