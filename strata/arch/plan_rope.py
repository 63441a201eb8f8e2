"""Rotary frequencies, in double precision. Magnitudes are the binder's."""

from __future__ import annotations

import math

from strata.arch.bound import BoundRope

__all__ = ["frequencies"]


def frequencies(rope: BoundRope) -> tuple[float, ...]:
    """Radians per position of each pair, n_rot / 2 of them, with linear or YaRN scaling applied; 0 of those that stand.

    YaRN leaves fast pairs alone, slows slow ones by freq_scale, and blends in between. Its range is rounded outwards to
    whole pairs, as llama.cpp does; gpt-oss's original configuration does not round.
    Source: YaRN (arXiv 2309.00071) section 3.2.
    """
    turning = [0.0 if p in rope.still else rope.base ** (-2.0 * p / rope.n_rot) for p in range(rope.n_rot // 2)]
    if not rope.yarn:
        return tuple(f * rope.freq_scale for f in turning)
    low = max(0.0, math.floor(_turning_pair(rope, rope.beta_fast)))
    high = min(rope.n_rot - 1.0, math.ceil(_turning_pair(rope, rope.beta_slow)))
    scaled: list[float] = []
    for p, f in enumerate(turning):
        keep = 1.0 - min(1.0, max(0.0, (p - low) / max(0.001, high - low)))
        scaled.append(f * (rope.freq_scale * (1.0 - keep) + keep))
    return tuple(scaled)


def _turning_pair(rope: BoundRope, turns: float) -> float:
    """The (fractional) pair that turns `turns` times over the original context."""
    return rope.n_rot * math.log(rope.n_ctx_orig / (turns * 2.0 * math.pi)) / (2.0 * math.log(rope.base))
