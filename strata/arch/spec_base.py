"""What every word is made of: dimensions, metadata keys, the norm. Plugins import it from `strata.arch.spec`."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Case", "Dim", "DimName", "Key", "Norm", "Power", "Presence", "Scalar", "Word"]

Presence = Literal["required", "if-present", "absent"]
DimName = Literal[
    "n_embd", "n_layer", "n_vocab", "n_ctx", "n_head", "n_head_kv", "head_k", "n_ff", "n_expert", "n_expert_used"
]
Scalar = bool | int | float | str


class Word(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every word: immutable, and a misspelt field is an error."""


class Dim(Word, frozen=True, tag="dim"):
    """A default that follows from dimensions: name // over."""

    name: DimName
    over: DimName | None = None


class Power(Word, frozen=True, tag="power"):
    """A default that follows from a dimension: factor * name ** exponent."""

    factor: float
    name: DimName
    exponent: float


class Case(Word, frozen=True, kw_only=True):
    """A value for files of certain shapes; an empty tuple matches every number."""

    value: Scalar
    n_layer: tuple[int, ...] = ()
    n_vocab: tuple[int, ...] = ()


class Key(Word, frozen=True, tag="key"):
    """A number, flag or name that the file's metadata holds.

    name: without the architecture's prefix.
    default: taken when the key is missing, perhaps another key's value; None: the key is required.
    unset: stored values that mean "missing" (writers that save every field store zeros).
    cases: defaults for certain shapes; they go before `default`.
    fixed: for these shapes the value is this, whatever the file says.
    accepted: the only values that are computed with; empty: any.
    """

    name: str
    default: Scalar | Dim | Power | Key | None = None
    unset: tuple[Scalar, ...] = ()
    cases: tuple[Case, ...] = ()
    fixed: tuple[Case, ...] = ()
    accepted: tuple[Scalar, ...] = ()


class Norm(Word, frozen=True, kw_only=True):
    """rms: x / sqrt(mean(x^2) + eps) * gain.  layer: (x - mean) / sqrt(var + eps) * gain + bias, biased variance.

    or_rms: where this key is neither missing nor 0, the kind is rms and the key's value its eps.
    """

    kind: Literal["rms", "layer"] = "rms"
    eps: Key = Key("attention.layer_norm_rms_epsilon")
    bias: Presence = "absent"
    or_rms: Key | None = None
