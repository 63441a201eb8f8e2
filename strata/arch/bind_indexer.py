"""Binding of the indexers that choose keys for latent attention. Only `bind_attention` uses this."""

from __future__ import annotations

import msgspec

from strata.arch.bind_keys import Keys
from strata.arch.bind_tensors import Claims
from strata.arch.bound import BoundIndexer, BoundLinear, BoundNorm, BoundRope
from strata.arch.spec import Indexer, Key

__all__ = ["IndexerBinder"]

MAX_HEADS, MAX_WIDTH, MAX_KEYS = 1024, 4096, 2**20
FIRST_OWNERS, PERIOD = 3, 4  # of the layers that have an indexer where the file does not say which


class IndexerBinder:
    """Binds the indexer of each layer that has one."""

    def __init__(self, keys: Keys, claims: Claims, indexer: Indexer) -> None:
        self._keys, self._claims, self._spec = keys, claims, indexer
        self._owners = self._flags()
        self._latest = -1

    def _flags(self) -> list[bool]:
        """By block, whether it has an indexer of its own."""
        keys, spec = self._keys, self._spec
        if spec.owners is not None and (keys.has(spec.owners.name) or spec.owners.default is not None):
            return [flag == 1 for flag in keys.per_layer_int(spec.owners, maximum=1)]
        period = PERIOD if 0 < spec.sparse_from <= keys.dims["n_ctx"] else 1
        return [i < FIRST_OWNERS or (i - FIRST_OWNERS + 1) % period == 0 for i in range(keys.dims["n_block"])]

    def layer(self, index: int, rope: BoundRope, q_rank: int) -> tuple[BoundIndexer | None, int]:
        """The indexer of a layer, and the layer whose choice it uses. Layers are asked for in ascending order.

        rope: of the layer's attention.
        """
        keys, claims, spec, lead = self._keys, self._claims, self._spec, f"blk.{index}.indexer."
        if not self._owners[index]:
            names = ("attn_q_b.weight", "attn_k.weight", "k_norm.weight", "k_norm.bias", "proj.weight")
            idle = [f"{lead}{name}" for name in names if claims.has(f"{lead}{name}")]
            claims.ignore(idle, "the layer uses an earlier one's choice")
            if self._latest < 0:
                assert spec.owners is not None
                raise keys.error(spec.owners.name, 0, f"1 in layer {index}: no earlier layer has an indexer")
            return None, self._latest
        self._latest = index
        n_head = keys.integer(spec.n_head, minimum=1, maximum=MAX_HEADS)
        width = keys.integer(spec.width, minimum=1, maximum=MAX_WIDTH)
        if width < rope.n_rot:
            raise keys.error(spec.width.name, width, f"at least the {rope.n_rot} entries that rotate")
        n_embd = keys.dims["n_embd"]
        bound = BoundIndexer(
            n_head=n_head,
            width=width,
            top_k=keys.integer(spec.top_k, minimum=1, maximum=MAX_KEYS),
            rope=msgspec.structs.replace(rope, style=spec.style),
            rotated_first=width - rope.n_rot if spec.rotated == "last" else 0,
            q=BoundLinear(weight=claims.matrix(f"{lead}attn_q_b.weight", q_rank, n_head * width)),
            k=BoundLinear(weight=claims.matrix(f"{lead}attn_k.weight", n_embd, width)),
            k_norm=BoundNorm(
                kind="layer",
                eps=keys.real(spec.eps, minimum=0.0) if isinstance(spec.eps, Key) else spec.eps,
                gain=claims.vector(f"{lead}k_norm.weight", width),
                bias=claims.vector(f"{lead}k_norm.bias", width),
            ),
            weights=BoundLinear(weight=claims.matrix(f"{lead}proj.weight", n_embd, n_head)),
        )
        return bound, index
