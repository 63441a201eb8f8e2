"""Naive sampling in numpy float64, one obvious function for each step, and a caller of the native sampler.

The order is that of strata.h: bias, mask, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature,
draw. Every filter takes and returns a list of (logit, id), best first, lower id first among equals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Candidates = list[tuple[float, int]]
NEVER = -math.inf


@dataclass(frozen=True)
class Params:
    """strata_sample with plain lists instead of pool indices. Defaults: every step off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = -1
    seed: int = 0
    counter: int = 0
    min_keep: int = 1
    n_logprobs: int = -1
    history: Sequence[int] = ()
    breakers: Sequence[int] = ()
    bias: Sequence[tuple[int, float]] = ()
    allowed: Sequence[int] | None = None


@dataclass
class Sampled:
    """What the native sampler returned."""

    status: int
    token: int
    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])


SCALARS = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "penalty_last_n",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_last_n",
    "seed",
    "counter",
    "min_keep",
    "n_logprobs",
]


def fill_sample(sample: Any, params: Params, n_vocab: int, ints: list[int], floats: list[float]) -> None:
    """Write params into a strata_sample; lists go to the end of the pools."""

    def pool(values: Sequence[int]) -> int:
        ints.extend(values)
        return len(ints) - len(values)

    for name in SCALARS:
        setattr(sample, name, getattr(params, name))
    sample.history_first, sample.n_history = pool(params.history), len(params.history)
    sample.breakers_first, sample.n_breakers = pool(params.breakers), len(params.breakers)
    sample.bias_first, sample.n_bias = pool([token for token, _ in params.bias]), len(params.bias)
    sample.bias_value_first = len(floats)
    floats.extend(value for _, value in params.bias)
    sample.mask_first = -1
    if params.allowed is not None:
        words = np.zeros((n_vocab + 31) // 32, np.uint32)
        for token in params.allowed:
            words[token // 32] |= np.uint32(1 << (token % 32))
        sample.mask_first = pool([int(word) for word in words.view(np.int32)])


def sampled(out: Any, status: int) -> Sampled:
    """Read a strata_sampled."""
    return Sampled(status, out.token, out.logprob, [(out.top_token[i], out.top_logprob[i]) for i in range(out.n_top)])


def native_sample(ffi: Any, lib: Any, logits: Floats, params: Params, tier: int = 0, repeats: int = 1) -> Sampled:
    """Draw one token with libstrata."""
    ints, floats = [0], [0.0]
    sample, out = ffi.new("strata_sample *"), ffi.new("strata_sampled *")
    fill_sample(sample, params, len(logits), ints, floats)
    c_ints, c_floats = ffi.new("int32_t[]", ints), ffi.new("float[]", floats)
    data = np.ascontiguousarray(logits, np.float32)
    pointer = ffi.cast("float *", data.ctypes.data)
    status = lib.strata_test_sample(tier, pointer, len(data), sample, c_ints, c_floats, 4097, repeats, out)
    return sampled(out, status)


# ---- the reference ------------------------------------------------------------------------------------------------


def adjust(logits: Floats, params: Params) -> npt.NDArray[np.float64]:
    """Apply bias, mask, penalties and DRY."""
    x = logits.astype(np.float64)
    for token, value in params.bias:
        x[token] += value
    if params.allowed is not None:
        banned = np.ones(len(x), bool)
        banned[list(params.allowed)] = False
        x[banned] = NEVER
    history = list(params.history)
    recent = (
        history if params.penalty_last_n < 0 else history[len(history) - min(params.penalty_last_n, len(history)) :]
    )
    for token, count in Counter(recent).items():
        x[token] = x[token] / params.repeat_penalty if x[token] > 0 else x[token] * params.repeat_penalty
        x[token] -= count * params.frequency_penalty + params.presence_penalty
    for token, penalty in dry_penalties(params).items():
        x[token] -= penalty
    return x


def dry_penalties(params: Params) -> dict[int, float]:
    """Punish each token that once followed what the newest tokens repeat; a repeat stops at a breaker."""
    history = list(params.history)
    if params.dry_multiplier == 0 or params.dry_base < 1 or params.dry_last_n == 0:
        return {}
    if params.dry_last_n > 0:
        history = history[max(0, len(history) - params.dry_last_n) :]
    limit = next((i for i, token in enumerate(reversed(history)) if token in params.breakers), len(history))
    if len(history) <= params.dry_allowed_length or limit < params.dry_allowed_length:
        return {}
    longest: dict[int, int] = {}
    for end in range(1, len(history)):  # history[:end] ends like history does; history[end] came next
        length = 0
        while length < min(end, limit) and history[end - 1 - length] == history[-1 - length]:
            length += 1
        if length >= params.dry_allowed_length:
            longest[history[end]] = max(length, longest.get(history[end], 0))
    return {t: params.dry_multiplier * params.dry_base ** (n - params.dry_allowed_length) for t, n in longest.items()}


def probabilities(candidates: Candidates) -> list[float]:
    """Softmax of the candidates' logits."""
    best = candidates[0][0]
    weights = [math.exp(logit - best) for logit, _ in candidates]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def keep_mass(candidates: Candidates, order: Sequence[int], enough: Any, min_keep: int) -> Candidates:
    """Keep candidates in this order until their mass is enough; the result is best first again."""
    p = probabilities(candidates)
    mass = 0.0
    for n, index in enumerate(order, 1):
        mass += p[index]
        if enough(mass) and n >= min_keep:
            return [candidates[i] for i in sorted(order[:n])]
    return candidates


def filtered(logits: Floats, params: Params, xtc_uniform: float = 1.0) -> Candidates:
    """Return the candidates that are left before the draw."""
    x = adjust(logits, params)
    keep = params.min_keep
    candidates = sorted(((float(v), i) for i, v in enumerate(x) if v > NEVER), key=lambda c: (-c[0], c[1]))
    if params.top_n_sigma > 0:
        bound = candidates[0][0] - params.top_n_sigma * float(np.std(x[x > NEVER]))
        candidates = [c for i, c in enumerate(candidates) if c[0] >= bound or i < keep]
    if params.top_k > 0:
        candidates = candidates[: max(params.top_k, keep)]
    if params.typical_p < 1:
        p = probabilities(candidates)
        entropy = -math.fsum(q * math.log(q) for q in p if q > 0)
        surprise = [abs(-math.log(q) - entropy) if q > 0 else math.inf for q in p]
        order = sorted(range(len(p)), key=lambda i: (surprise[i], i))
        candidates = keep_mass(candidates, order, lambda mass: mass > params.typical_p, keep)
    if params.top_p < 1:
        candidates = keep_mass(candidates, range(len(candidates)), lambda mass: mass >= params.top_p, keep)
    if params.min_p > 0:
        bound = candidates[0][0] + math.log(params.min_p)
        candidates = [c for i, c in enumerate(candidates) if c[0] >= bound or i < keep]
    if params.xtc_threshold <= 0.5 and xtc_uniform < params.xtc_probability:
        above = sum(q >= params.xtc_threshold for q in probabilities(candidates))
        if above > 1 and len(candidates) - (above - 1) >= keep:
            candidates = candidates[above - 1 :]
    return candidates


def draw(candidates: Candidates, temperature: float, uniform: float) -> int:
    """Return the id at which the cumulative probability passes `uniform`."""
    p = probabilities([(logit / temperature, i) for logit, i in candidates])
    mass = 0.0
    for q, (_, token) in zip(p, candidates, strict=True):
        mass += q
        if mass > uniform:
            return token
    return candidates[-1][1]
