"""ModelPlan -> strata_model_desc: the plan's rows as C tables. No numbers are decided here.

Ops name their parameters; the header's STRATA_<OP>_I_<NAME> and STRATA_<OP>_F_<NAME> say where each one goes, so a
parameter that the header does not know is an error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from strata.arch.plan_tables import ModelPlan, PlanOp

__all__ = ["ModelDesc"]

_ABSENT = -1


class ModelDesc:
    """A strata_model_desc and the tables it points at; keep it until strata_model_open has returned.

    Raises: ValueError for an op or a parameter that the header does not name.
    """

    def __init__(self, ffi: Any, plan: ModelPlan) -> None:
        self._ffi = ffi
        self._keep: list[Any] = []
        desc = ffi.new("strata_model_desc *")
        desc.struct_size = ffi.sizeof("strata_model_desc")
        desc.abi_version = ffi.integer_const("STRATA_ABI_VERSION")
        for name in ("n_layer", "n_vocab", "n_embd", "n_batch", "n_outputs_max", "weights_bytes", "activations_bytes"):
            setattr(desc, name, getattr(plan, name))
        desc.n_paths, desc.paths = len(plan.paths), self._paths(plan.paths)
        desc.n_freqs, desc.freqs = len(plan.freqs), self._array("double", plan.freqs)
        for name, c_type, rows in (
            ("tensors", "strata_tensor", plan.tensors),
            ("sources", "strata_source", plan.sources),
            ("buffers", "strata_buffer", plan.buffers),
            ("ropes", "strata_rope", plan.ropes),
            ("kv_layers", "strata_kv_layer", plan.kv_layers),
            ("expert_sets", "strata_expert_set", plan.expert_sets),
            ("states", "strata_state", plan.states),
        ):
            setattr(desc, f"n_{name}", len(rows))
            setattr(desc, name, self._array(c_type, [self._row(c_type, row) for row in rows]))
        desc.n_ops = len(plan.ops)
        desc.ops = self._array("strata_op", [self._op(index, op) for index, op in enumerate(plan.ops)])
        self.desc = desc

    def _array(self, c_type: str, rows: Sequence[Any]) -> Any:
        """A kept C array; NULL when empty."""
        if not rows:
            return self._ffi.NULL
        made = self._ffi.new(f"{c_type}[]", list(rows))
        self._keep.append(made)
        return made

    def _paths(self, paths: Sequence[str]) -> Any:
        texts = [self._ffi.new("char[]", os.fsencode(path)) for path in paths]
        self._keep.append(texts)
        return self._array("char *", texts)

    def _row(self, c_type: str, row: msgspec.Struct) -> dict[str, Any]:
        """The row's fields that the C struct has, by name. A field the struct has and the row lacks is reserved: 0."""
        fields = {name for name, _ in self._ffi.typeof(c_type).fields}
        return {name: value for name, value in msgspec.structs.asdict(row).items() if name in fields}

    def _op(self, index: int, op: PlanOp) -> dict[str, Any]:
        word = op.kind.upper()
        where = f"op {index} {op.kind}"
        return {
            "kind": self._constant(f"STRATA_OP_{word}", where),
            "layer": op.layer,
            "in": _padded(op.ins, self._ffi.integer_const("STRATA_OP_N_IN"), where),
            "out": _padded(op.outs, self._ffi.integer_const("STRATA_OP_N_OUT"), where),
            "weight": _padded(op.weights, self._ffi.integer_const("STRATA_OP_N_WEIGHT"), where),
            "i": self._parameters(word, "I", op.i, where),
            "f": self._parameters(word, "F", op.f, where),
        }

    def _parameters(self, word: str, letter: str, values: dict[str, Any], where: str) -> list[Any]:
        placed: list[Any] = [0] * self._ffi.integer_const(f"STRATA_OP_N_{letter}")
        for name, value in values.items():
            placed[self._constant(f"STRATA_{word}_{letter}_{name.upper()}", where)] = value
        return placed

    def _constant(self, name: str, where: str) -> int:
        try:
            return int(self._ffi.integer_const(name))
        except AttributeError as error:
            raise ValueError(f"{where}: strata.h has no {name}") from error


def _padded(ids: Sequence[int], n: int, where: str) -> list[int]:
    if len(ids) > n:
        raise ValueError(f"{where}: {len(ids)} operands, at most {n}")
    return [*ids, *[_ABSENT] * (n - len(ids))]
