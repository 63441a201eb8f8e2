"""Binding of residuals that are more than one vector. Only `bind` uses this."""

from __future__ import annotations

from strata.arch.bind_keys import Keys
from strata.arch.bind_tensors import Claims
from strata.arch.bound import BoundCheckpoints, BoundLinear, BoundNorm, BoundStreamGates, BoundStreams
from strata.arch.spec import Arch, Block, Streams
from strata.errors import BindError

__all__ = ["StreamBinder", "bind_checkpoints"]

MAX_STREAMS = 16


def bind_checkpoints(keys: Keys, claims: Claims, arch: Arch) -> BoundCheckpoints | None:
    """What all layers share; None: an ordinary residual."""
    if arch.checkpoints is None or keys.integer(arch.checkpoints.every) == 0:
        return None
    if arch.block != Block() or arch.layer_inputs is not None or arch.streams is not None:
        raise BindError(f"{arch.name} declares checkpoints; accepted beside them: the default Block, one residual")
    return BoundCheckpoints(
        every=keys.integer(arch.checkpoints.every),
        eps=keys.real(arch.norm.eps, minimum=0.0),
        head=claims.vector("output_res_score.weight", keys.dims["n_embd"]),
    )


class StreamBinder:
    """Binds one declaration."""

    def __init__(self, keys: Keys, claims: Claims, spec: Streams, arch: Arch) -> None:
        self._keys, self._claims, self._spec, self._norm = keys, claims, spec, arch.norm
        if arch.block != Block() or arch.layer_inputs is not None:
            raise BindError(f"{arch.name} declares streams; accepted beside them: the default Block, no LayerInputs")
        self._count = keys.integer(spec.count, minimum=1, maximum=MAX_STREAMS)

    def streams(self) -> BoundStreams:
        """What all layers share, and the model's end."""
        keys, spec = self._keys, self._spec
        return BoundStreams(
            count=self._count,
            eps=keys.real(spec.eps, minimum=0.0),
            magnitude=keys.real(spec.magnitude),
            norm=BoundNorm(kind="rms", eps=keys.real(self._norm.eps, minimum=0.0), gain=None),
            head=self._logits("output_hc", 0, 1),
        )

    def gates(self, index: int, sublayer: str) -> BoundStreamGates:
        """Of one sublayer of a block."""
        stem = f"blk.{index}.hc_{sublayer}"
        return BoundStreamGates(read=self._logits(stem, 0, 2), write=self._logits(stem, 1, 2))

    def _logits(self, stem: str, part: int, n_parts: int) -> BoundLinear:
        """Part of a projection of n_parts times `count` rows, each part with a scale of its own."""
        claims, count = self._claims, self._count
        rows, n_rows = range(count * part, count * (part + 1)), count * n_parts
        return BoundLinear(
            weight=claims.rows(f"{stem}_fn.weight", count * self._keys.dims["n_embd"], rows, n_rows),
            bias=claims.vector_rows(f"{stem}_base.weight", rows, n_rows),
            scale=claims.vector_rows(f"{stem}_scale.weight", range(part, part + 1), n_parts),
        )
