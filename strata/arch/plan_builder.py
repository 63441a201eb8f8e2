"""Collects ops over values and tensors, then lays both out: the mechanical half of planning.

`plan` and its parts say which ops a model needs; this file knows no attention and no experts' mathematics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strata.arch.bound import BoundArch, BoundExperts, BoundRope, BoundTensor
from strata.arch.plan_memory import Value, arena_bytes, place_values, round_up
from strata.arch.plan_rope import frequencies
from strata.arch.plan_tables import (
    ExpertSet,
    KvLayer,
    ModelPlan,
    PlanOp,
    PlanRope,
    PlanSource,
    PlanState,
    PlanTensor,
    Role,
    RopeStyle,
    Rows,
)
from strata.gguf.quants import row_bytes

__all__ = ["PlanBuilder"]

ROLES = {
    "matrix": Role.MATRIX,
    "vector": Role.VECTOR,
    "expert-matrix": Role.EXPERT_MATRIX,
    "expert-vector": Role.EXPERT_VECTOR,
}
ROPE_STYLES = {"norm": RopeStyle.NORM, "neox": RopeStyle.NEOX}
SLOT_PARTS = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias", "gate_scale", "up_scale", "down_scale")
N_LINEAR = 4  # results of one LINEAR op


class PlanBuilder:
    """Tables under construction. Values and tensors are interned; order of first use is order in the arena."""

    def __init__(self, n_ctx: int) -> None:
        self.layer = -1
        self._n_ctx = n_ctx
        self._values: list[Value] = []
        self._ops: list[tuple[PlanOp, tuple[Value | None, ...], tuple[Value, ...]]] = []
        self._tensors: list[BoundTensor] = []
        self._tensor_ids: dict[tuple[str, int, int, str], int] = {}
        self._slots: list[tuple[dict[str, Any], dict[str, BoundTensor | None]]] = []
        self._ropes: dict[PlanRope, int] = {}
        self._freqs: list[float] = []
        self._freq_first: dict[tuple[float, ...], int] = {}
        self._kv_layers: list[KvLayer] = []
        self._kv_of_layer: dict[int, int] = {}
        self._states: list[PlanState] = []
        self.choices: dict[int, Value] = {}  # by layer: the keys that its indexer chose

    def value(self, width: int, rows: Rows = Rows.TOKENS) -> Value:
        """A new activation of `width` floats a row."""
        made = Value(len(self._values), width, rows)
        self._values.append(made)
        return made

    def tensor(self, tensor: BoundTensor | None) -> int:
        """The id of a weight, -1 for none."""
        if tensor is None:
            return -1
        key = (tensor.name, tensor.row_first, tensor.n_rows, tensor.role)
        if key not in self._tensor_ids:
            self._tensor_ids[key] = len(self._tensors)
            self._tensors.append(tensor)
        return self._tensor_ids[key]

    def op(
        self,
        kind: str,
        ins: Sequence[Value | None],
        outs: Sequence[Value],
        weights: Sequence[BoundTensor | None] = (),
        /,
        **parameters: float,
    ) -> None:
        """Append an op. Whole-number parameters go to `i`, floating-point ones to `f`; zeros are left out."""
        ids = [self.tensor(weight) for weight in weights]
        row = PlanOp(
            kind=kind,
            layer=self.layer,
            weights=_trimmed(ids),
            i={name: value for name, value in parameters.items() if isinstance(value, int) and value != 0},
            f={name: value for name, value in parameters.items() if isinstance(value, float) and value != 0.0},
        )
        self._ops.append((row, tuple(ins), tuple(outs)))

    def rope(self, rope: BoundRope) -> int:
        """The index of a rotary table; equal tables are one."""
        freqs = frequencies(rope)
        if freqs not in self._freq_first:
            self._freq_first[freqs] = len(self._freqs)
            self._freqs.extend(freqs)
        factors = rope.factors_long if self._n_ctx > rope.n_ctx_orig else rope.factors
        row = PlanRope(
            style=int(ROPE_STYLES[rope.style]),
            n_rot=rope.n_rot,
            freq_first=self._freq_first[freqs],
            factors=self.tensor(factors),
            magnitude=rope.magnitude,
        )
        return self._ropes.setdefault(row, len(self._ropes))

    def kv_layer(self, n_head_kv: int, head_k: int, head_v: int, v_in_k: bool = False) -> int:
        """A new attention cache, the present layer's."""
        self._kv_of_layer[self.layer] = len(self._kv_layers)
        self._kv_layers.append(KvLayer(n_head_kv=n_head_kv, head_k=head_k, head_v=head_v, v_in_k=int(v_in_k)))
        return len(self._kv_layers) - 1

    def kv_layer_of(self, layer: int) -> int:
        """The attention cache of an earlier layer."""
        return self._kv_of_layer[layer]

    def state(self, n_floats: int) -> int:
        """A new recurrent state of each sequence."""
        self._states.append(PlanState(n_floats=n_floats))
        return len(self._states) - 1

    def expert_set(self, experts: BoundExperts, numbers: dict[str, Any]) -> int:
        """A new set; `numbers` are the fields that are neither tensors nor places."""
        parts = {part: getattr(experts, part) for part in SLOT_PARTS}
        self._slots.append((numbers, parts))
        return len(self._slots) - 1

    def finish(self, bound: BoundArch, n_batch: int, n_outputs_max: int) -> ModelPlan:
        """Lay everything out."""
        uses = [{value.id for value in (*ins, *outs) if value is not None} for _, ins, outs in self._ops]
        where, buffers, activations_bytes = place_values(self._values, uses, n_batch, n_outputs_max)
        sources: list[PlanSource] = []
        rows, dense_bytes = self._dense_rows()
        sets, weights_bytes = self._expert_rows(rows, sources, dense_bytes)
        return ModelPlan(
            arch=bound.name,
            paths=bound.paths,
            n_layer=bound.n_layer,
            n_vocab=bound.n_vocab,
            n_embd=bound.n_embd,
            n_ctx_train=bound.n_ctx_train,
            n_ctx=self._n_ctx,
            n_batch=n_batch,
            n_outputs_max=n_outputs_max,
            weights_bytes=weights_bytes,
            activations_bytes=activations_bytes,
            expert_bytes=sum(one.n_expert * one.slot_bytes for one in sets),
            read_bytes_per_token=self._read_bytes(sets),
            kv_values_per_token=sum(_kv_values(kv) for kv in self._kv_layers),
            tensors=tuple(rows),
            sources=tuple(sources),
            buffers=tuple(buffers),
            ropes=tuple(self._ropes),
            freqs=tuple(self._freqs),
            kv_layers=tuple(self._kv_layers),
            expert_sets=tuple(sets),
            ops=tuple(_placed(row, ins, outs, where) for row, ins, outs in self._ops),
            states=tuple(self._states),
        )

    def _dense_rows(self) -> tuple[list[PlanTensor], int]:
        rows: list[PlanTensor] = []
        at = 0
        for tensor in self._tensors:
            stride = round_up(arena_bytes(tensor))
            rows.append(_row(tensor, at, stride, -1))
            at += stride * tensor.n_mats
        return rows, at

    def _expert_rows(self, rows: list[PlanTensor], sources: list[PlanSource], at: int) -> tuple[list[ExpertSet], int]:
        """Append the experts' tensors to `rows`; their sets, and the end of the arena."""
        sets: list[ExpertSet] = []
        for numbers, parts in self._slots:
            present = [tensor for tensor in parts.values() if tensor is not None]
            slot_bytes = sum(round_up(arena_bytes(tensor)) for tensor in present)
            ids: dict[str, int] = {}
            inside = 0
            for part, tensor in parts.items():
                ids[part] = -1 if tensor is None else len(rows)
                if tensor is None:
                    continue
                source_first = len(sources) if tensor.parts else -1
                sources.extend(PlanSource(shard=one.shard, file_offset=one.file_offset) for one in tensor.parts)
                rows.append(_row(tensor, at + inside, slot_bytes, source_first))
                inside += round_up(arena_bytes(tensor))
            sets.append(ExpertSet(**numbers, **ids, arena_offset=at, slot_bytes=slot_bytes))
            at += slot_bytes * numbers["n_expert"]
        return sets, at

    def _read_bytes(self, sets: list[ExpertSet]) -> int:
        """Weights that one token reads: one embedding row, all other dense weights, the chosen experts."""
        total = 0
        for row, _, _ in self._ops:
            if row.kind == "embed":
                embedding = self._tensors[row.weights[0]]
                total += row_bytes(embedding.type, embedding.n_cols)
                continue
            dense = (self._tensors[k] for k in row.weights if k >= 0)
            total += sum(arena_bytes(tensor) * tensor.n_mats for tensor in dense)
        return total + sum(one.n_used * one.slot_bytes for one in sets)


def _kv_values(kv: KvLayer) -> int:
    return kv.n_head_kv * (kv.head_k if kv.v_in_k else kv.head_k + kv.head_v)


def _row(tensor: BoundTensor, arena_offset: int, stride: int, source_first: int) -> PlanTensor:
    return PlanTensor(
        name=tensor.name,
        type=tensor.type,
        role=int(ROLES[tensor.role]),
        n_cols=tensor.n_cols,
        n_rows=tensor.n_rows,
        n_mats=tensor.n_mats,
        shard=tensor.shard,
        source_first=source_first,
        file_offset=tensor.file_offset,
        file_stride_bytes=tensor.file_stride_bytes,
        arena_offset=arena_offset,
        mat_stride_bytes=stride,
    )


def _placed(row: PlanOp, ins: tuple[Value | None, ...], outs: tuple[Value, ...], where: list[int]) -> PlanOp:
    return PlanOp(
        kind=row.kind,
        layer=row.layer,
        ins=_trimmed([-1 if value is None else where[value.id] for value in ins]),
        outs=tuple(where[value.id] for value in outs),
        weights=row.weights,
        i=row.i,
        f=row.f,
    )


def _trimmed(ids: list[int]) -> tuple[int, ...]:
    while ids and ids[-1] == -1:
        ids.pop()
    return tuple(ids)
