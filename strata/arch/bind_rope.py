"""Binding of rotation: which layers rotate, and the numbers of their tables. Only `bind_attention` uses this."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from strata.arch.bind_keys import Keys
from strata.arch.bind_tensors import Claims
from strata.arch.bound import BoundRope, BoundTensor
from strata.arch.spec import Key, Rope, Yarn

__all__ = ["RopeBinder"]

ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
MIN_ROPE_BASE = 1.001  # pairs would not differ in speed, and YaRN divides by its logarithm
MIN_ROPE_FACTOR = 0.01  # keeps 1 + 0.1 ln(factor), which YaRN divides by, well above zero


def _mscale(factor: float, multiplier: float) -> float:
    """YaRN's magnitude for a context stretched by `factor`. Source: YaRN (arXiv 2309.00071) section 3.4."""
    return 1.0 if factor <= 1.0 else 1.0 + 0.1 * multiplier * math.log(factor)


class _Scaling(NamedTuple):
    """What rope.scaling.* says for a layer."""

    kind: str
    factor: float
    magnitude: float
    magnitude_base: float


class RopeBinder:
    """Binds one declaration for each layer. windowed, dense: by block, whether it has a window, a dense FFN."""

    def __init__(self, keys: Keys, claims: Claims, rope: Rope, windowed: list[bool], dense: list[bool]) -> None:
        self._keys, self._claims, self._rope = keys, claims, rope
        self._windowed, self._dense = windowed, dense
        n_block = keys.dims["n_block"]
        self._on = [True] * n_block if rope.switch is None else keys.flags(rope.switch)
        self._ignore_unused()
        self.log_multiplier = 0.0
        if rope.yarn.log_multiplier is not None:
            self.log_multiplier = keys.real(rope.yarn.log_multiplier) / rope.yarn.log_divisor

    def _ignore_unused(self) -> None:
        """Lists of factors are part of the architecture even where no layer reads them."""
        rope = self._rope
        readers = [i for i in range(self._keys.dims["n_layer"]) if self.rotates(i)]
        if rope.full_factors:
            readers = [i for i in readers if not self._windowed[i]]
        if rope.factors is not False and not readers:
            names = [name for name in FACTOR_TENSORS if self._claims.has(name)]
            self._claims.ignore(names, "no layer rotates by it")

    def rotates(self, index: int) -> bool:
        """Whether a layer rotates at all."""
        rope, exception = self._rope, self._rope.unrotated
        if rope.rotated == "none":
            return False
        if rope.rotated == "windowed" and not self._windowed[index]:
            return False
        if rope.rotated == "windowed-or-dense" and not (self._windowed[index] or self._dense[index]):
            return False
        if exception is not None and not self._excepted(exception.unless_n_layer, exception.windowed_only):
            still = 0 if exception.place == "first" else exception.period - 1
            if index % exception.period == still:
                return False
        return self._on[index]

    def _excepted(self, n_layers: tuple[int, ...], windowed_only: bool) -> bool:
        return self._keys.dims["n_layer"] in n_layers or (windowed_only and not any(self._windowed))

    def layer(self, index: int, head: int) -> BoundRope:
        """The table of a layer whose rotated vectors are `head` wide."""
        keys, rope = self._keys, self._rope
        windowed = self._windowed[index]
        n_rot, n_listed = self._n_rot(windowed, head)
        scaling = self._scaling(windowed)
        factors, factors_long = self._factors(scaling.kind, n_rot // 2, n_listed // 2, windowed)
        base = keys.real(rope.base, minimum=MIN_ROPE_BASE)
        if windowed and rope.window_base is not None:
            base = self._window_base(rope.window_base, base)
        n_ctx = keys.dims["n_ctx"]
        beta_fast, beta_slow = (
            keys.real(beta, minimum=MIN_ROPE_FACTOR) if isinstance(beta, Key) else beta
            for beta in (rope.yarn.beta_fast, rope.yarn.beta_slow)
        )
        return BoundRope(
            style=self._style(),
            n_rot=n_rot,
            base=base,
            freq_scale=1.0 / scaling.factor,
            yarn=scaling.kind == "yarn",
            n_ctx_orig=keys.integer(Key("rope.scaling.original_context_length", n_ctx, unset=(0,)), minimum=1),
            beta_fast=beta_fast,
            beta_slow=beta_slow,
            magnitude=scaling.magnitude,
            magnitude_base=scaling.magnitude_base,
            factors=factors,
            factors_long=factors_long,
            still=self._still(n_rot // 2),
        )

    def _n_rot(self, windowed: bool, head: int) -> tuple[int, int]:
        """A layer's n_rot, and the largest of all layers, for which lists of factors are made."""
        keys, rope = self._keys, self._rope
        stored = keys.integer(rope.n_rot, minimum=1)
        full, key = stored // rope.full_n_rot_over, rope.n_rot
        window = stored
        if rope.window_n_rot is not None:
            key = rope.window_n_rot if windowed else key
            window = keys.integer(rope.window_n_rot) or stored
        n_rot = window if windowed else full
        if n_rot < 2 or n_rot % 2 != 0 or n_rot > head or (rope.whole_head and n_rot != head):
            rule = f"the head's width, {head}" if rope.whole_head else f"an even number up to the head's {head}"
            raise keys.error(key.name, n_rot, rule)
        return n_rot, max(full, window) if any(self._windowed) else full

    def _scaling(self, windowed: bool) -> _Scaling:
        keys, rope = self._keys, self._rope
        if not rope.scaling or (windowed and rope.window_scaling == "none"):
            return _Scaling("none", 1.0, 1.0, 1.0)
        kind = keys.choice(Key("rope.scaling.type", "linear"), ROPE_SCALINGS)
        extra = keys.real(Key("rope.scaling.attn_factor", 1.0, unset=(0.0,)))
        self._check_ext(rope.yarn, kind)
        if windowed and rope.window_scaling == "unscaled":
            return _Scaling("none", 1.0, extra, extra)
        factor = self._factor() if kind != "none" else 1.0
        return _Scaling(kind, factor, *self._magnitude(rope.yarn, kind, factor, extra))

    def _check_ext(self, yarn: Yarn, kind: str) -> None:
        if yarn.ext is not None:
            ext, own = self._keys.real(yarn.ext), 1.0 if kind == "yarn" else 0.0
            if ext >= 0.0 and ext != own:
                raise self._keys.error(yarn.ext.name, ext, f"{own:g} with scaling type {kind}, or a negative number")

    def _window_base(self, key: Key, base: float) -> float:
        if self._keys.real(key) == 0.0:
            return base
        return self._keys.real(key, minimum=MIN_ROPE_BASE)

    def _factor(self) -> float:
        old = self._keys.real(Key("rope.scale_linear", 1.0, unset=(0.0,)), minimum=0.0)
        return self._keys.real(Key("rope.scaling.factor", old, unset=(0.0,)), minimum=MIN_ROPE_FACTOR)

    def _magnitude(self, yarn: Yarn, kind: str, factor: float, extra: float) -> tuple[float, float]:
        """Magnitude of cos and sin, and the same before YaRN's own 1 + 0.1 ln(factor) is multiplied in.

        With a log multiplier YaRN leaves the rotation alone or weakens it; the scores' scale takes the rest.
        """
        if kind != "yarn":
            return extra, extra
        if self.log_multiplier == 0.0:
            magnitude = extra * _mscale(factor, 1.0)
        elif yarn.cancels:
            magnitude = extra
        else:
            magnitude = extra * _mscale(factor, 1.0) / _mscale(factor, self.log_multiplier)
        return magnitude, magnitude / (1.0 + 0.1 * math.log(factor))

    def _factors(
        self, kind: str, n_pair: int, n_listed: int, windowed: bool
    ) -> tuple[BoundTensor | None, BoundTensor | None]:
        """Divisors for short and for long contexts: the first n_pair entries of lists of n_listed."""
        claims, rope = self._claims, self._rope
        pairs = range(n_pair)
        used = not (windowed and rope.full_factors)

        def take(name: str) -> BoundTensor | None:
            if used:
                return claims.vector_rows(name, pairs, n_listed)
            return None

        both = kind == "longrope"
        if rope.factors == "long-short":
            both = both or any(claims.has(f"rope_factors_{x}.weight") for x in ("short", "long"))
        if both:
            if rope.factors is False:
                raise self._keys.error("rope.scaling.type", kind, "none, linear, yarn")
            return take("rope_factors_short.weight"), take("rope_factors_long.weight")
        if rope.factors is not True or not claims.has("rope_freqs.weight"):
            return None, None
        freqs = take("rope_freqs.weight")
        return freqs, freqs

    def _sections(self) -> list[int]:
        """Counts of pairs; empty in files that have none."""
        sections = self._rope.sections
        counts = [0] * 4 if sections is None else self._keys.counts(sections.key, 4)
        return counts if counts[0] > 0 and counts[1] > 0 else []

    def _style(self) -> Literal["norm", "neox"]:
        sections = self._rope.sections
        if sections is None or sections.style is None or not self._sections():
            return self._rope.style
        return sections.style

    def _still(self, n_pair: int) -> tuple[int, ...]:
        """Pairs that the fourth position turns, which is 0 in text."""
        sections, counts = self._rope.sections, self._sections()
        if sections is None or not counts:
            return ()
        return tuple(p for p in range(n_pair) if _is_still(p % sum(counts), counts, sections.form))


def _is_still(p: int, counts: list[int], form: str) -> bool:
    time, height, width, _ = counts
    if form == "blocks":
        return p >= time + height + width
    first, turn = (3 * time, 3 * height, 3 * width), p % 3
    return p >= first[turn]
