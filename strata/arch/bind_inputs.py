"""Binding of what layers get of the token besides the stream. Only `bind` uses this."""

from __future__ import annotations

from strata.arch.bind_attention import bind_norm
from strata.arch.bind_keys import Keys
from strata.arch.bind_tensors import Claims
from strata.arch.bound import BoundLayerInput, BoundTokenInputs
from strata.arch.spec import LayerInputs, Norm

__all__ = ["LayerInputBinder"]

MAX_WIDTH = 2**16


class LayerInputBinder:
    """Binds one declaration; width 0 in the file: no layer has an input."""

    def __init__(self, keys: Keys, claims: Claims, spec: LayerInputs, norm: Norm) -> None:
        self._keys, self._claims, self._norm = keys, claims, norm
        self._width = keys.integer(spec.width, maximum=MAX_WIDTH)

    def token_inputs(self) -> BoundTokenInputs | None:
        """The parts that make the inputs of all layers from a token."""
        if self._width == 0:
            return None
        keys, claims, dims = self._keys, self._claims, self._keys.dims
        total = self._width * dims["n_layer"]
        return BoundTokenInputs(
            width=self._width,
            embedding=claims.matrix("per_layer_token_embd.weight", total, dims["n_vocab"]),
            projection=claims.linear("per_layer_model_proj", dims["n_embd"], total),
            norm=bind_norm(keys, claims, self._norm, "per_layer_proj_norm", self._width),
        )

    def layer(self, index: int) -> BoundLayerInput | None:
        """The parts that one layer takes its input in with."""
        if self._width == 0:
            return None
        keys, claims, n_embd, lead = self._keys, self._claims, self._keys.dims["n_embd"], f"blk.{index}."
        return BoundLayerInput(
            gate=claims.linear(f"{lead}inp_gate", n_embd, self._width),
            output=claims.linear(f"{lead}proj", self._width, n_embd),
            norm=bind_norm(keys, claims, self._norm, f"{lead}post_norm", n_embd),
        )
