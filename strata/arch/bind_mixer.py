"""Binding of recurrent mixers: which layers have one, its numbers and its tensors.

Only `bind` calls this. Errors: BindError for metadata at once; tensor problems are collected in the claims.
"""

from __future__ import annotations

from strata.arch.bind_keys import Keys
from strata.arch.bind_tensors import Claims
from strata.arch.bound_mixer import BoundConv, BoundMixer, BoundShortConv
from strata.arch.spec import Recurrent, ShortConv

__all__ = ["MixerBinder"]

MAX_TAPS = 64


class MixerBinder:
    """Binds the recurrent layers of one file."""

    def __init__(self, keys: Keys, claims: Claims, recurrent: Recurrent) -> None:
        self._keys, self._claims, self._spec = keys, claims, recurrent
        if recurrent.layers == "no-kv-heads":
            self._flags = [n_head_kv == 0 for _, n_head_kv in keys.heads]
        else:
            self._flags = keys.recurrent_flags(recurrent.layers)

    def has_layer(self, index: int) -> bool:
        """Whether the mixer stands in the place of this block's attention."""
        return self._flags[index]

    def layer(self, index: int) -> BoundMixer:
        """The mixer of one block."""
        return self._short_conv(self._spec.mixer, f"blk.{index}.")

    def _conv(self, name: str, width: int, taps: int) -> BoundConv:
        return BoundConv(width=width, taps=taps, weight=self._claims.flat(f"{name}.weight", (taps, width)))

    def _short_conv(self, spec: ShortConv, lead: str) -> BoundShortConv:
        claims, n_embd = self._claims, self._keys.dims["n_embd"]
        taps = self._keys.integer(spec.taps, minimum=2, maximum=MAX_TAPS)
        b, c, x = claims.split(f"{lead}shortconv.in_proj", n_embd, (n_embd,) * 3)
        return BoundShortConv(
            b=b,
            c=c,
            x=x,
            conv=self._conv(f"{lead}shortconv.conv", n_embd, taps),
            output=claims.linear(f"{lead}shortconv.out_proj", n_embd, n_embd),
        )
