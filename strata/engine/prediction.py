"""How fast a token should be decoded, from bytes and measured rates, and how that compares with what it took. Pure.

One token reads its dense weights and its resident experts from the GPU's memory and its missed experts from RAM, and
makes one hand-off for each layer with misses. What runs side by side is counted at its longer part: resident and missed
experts of a layer overlap, the dense parts do not.
"""

from __future__ import annotations

import msgspec

__all__ = ["LAUNCH_S", "Prediction", "Rates", "SpeedCheck", "predict"]

LAUNCH_S = 1.5e-6  # of one kernel inside a captured graph, its start and its end
HANDOFF_S = 8e-6
CPU_READ_FRAC = 0.8  # of the plain read rate that the expert kernels reach
GPU_READ_FRAC = 0.6
CHECK_TOKENS = 64


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine's memories and link give, in bytes per second, and with how many threads RAM is read fastest."""

    ram: float
    n_threads: int
    vram: float = 0.0  # 0: no GPU
    link: float = 0.0


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one decoded token, term by term."""

    ram_s: float  # the CPU reads missed experts (without a GPU: all weights)
    vram_s: float  # the GPU reads dense weights and resident experts
    handoff_s: float
    launch_s: float

    @property
    def token_s(self) -> float:
        return self.ram_s + self.vram_s + self.handoff_s + self.launch_s

    @property
    def tokens_per_s(self) -> float:
        return 1.0 / self.token_s

    def text(self) -> str:
        return (
            f"{self.tokens_per_s:.1f} tok/s: RAM {self.ram_s * 1e3:.2f} ms, GPU memory {self.vram_s * 1e3:.2f} ms, "
            f"hand-offs {self.handoff_s * 1e3:.2f} ms, launches {self.launch_s * 1e3:.2f} ms"
        )


def predict(
    rates: Rates, *, dense_bytes: int, expert_bytes: int, hit_share: float, n_expert_layers: int, n_ops: int
) -> Prediction:
    """dense_bytes, expert_bytes: read by one token. hit_share: of the expert uses that are resident."""
    if rates.vram <= 0:
        return Prediction(
            ram_s=(dense_bytes + expert_bytes) / (rates.ram * CPU_READ_FRAC), vram_s=0.0, handoff_s=0.0, launch_s=0.0
        )
    missed = expert_bytes * (1.0 - hit_share)
    layers_with_misses = n_expert_layers * min(
        1.0, (1.0 - hit_share) * 4
    )  # of four experts or more, one is missed soon
    return Prediction(
        ram_s=missed / (rates.ram * CPU_READ_FRAC),
        vram_s=dense_bytes / (rates.vram * GPU_READ_FRAC),
        handoff_s=layers_with_misses * HANDOFF_S,
        launch_s=n_ops * LAUNCH_S,
    )


class SpeedCheck:
    """Collects decode steps of one sequence until there are enough to compare with the prediction."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self.done = False

    def note(self, run_s: float) -> float | None:
        """A step that decoded one token. The median of CHECK_TOKENS steps, once, when they are there."""
        if self.done:
            return None
        self._times.append(run_s)
        if len(self._times) < CHECK_TOKENS:
            return None
        self.done = True
        return sorted(self._times)[CHECK_TOKENS // 2]
