"""Claiming tensors: each wanted one is found and checked; what stays unclaimed is ignored by rule or is an error.

Problems are collected, not raised one by one, so that `strata inspect` can show all of them. Only `bind` uses this.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase

import msgspec

from strata.arch.bound import BoundLinear, BoundTensor, ModelFile, Part, TensorEntry
from strata.gguf.quants import GgmlType, row_bytes, type_info, type_name

__all__ = ["Claims"]

VECTOR_TYPES = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
# Weights beside which the format knows `.scale` and `.input_scale` tensors; `output` has them in NVFP4 files only.
SCALED_STEMS = (
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "attn_gate",
    "ssm_in",
    "ssm_out",
    "ssm_alpha",
    "ssm_beta",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
)
SCALED_EXPERT_STEMS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def _padded(ne: tuple[int, ...]) -> tuple[int, ...]:
    """`ne` with four entries: trailing dimensions of 1 may be left out of a file."""
    return (*ne, *([1] * (4 - len(ne))))


def _shown(ne: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, ne)) + "]"


class Claims:
    """Which tensors of a file are used, ignored, missing or wrong."""

    def __init__(self, file: ModelFile, scales_applied: tuple[str, ...]) -> None:
        self.used: set[str] = set()
        self.ignored: dict[str, str] = {}
        self.missing: list[str] = []
        self.wrong: list[str] = []
        self.unexpected: list[str] = []
        self._tensors = file.tensors
        self._scales_applied = frozenset(scales_applied)

    def has(self, name: str) -> bool:
        """Whether the file holds a tensor of this name."""
        return name in self._tensors

    def n_rows(self, name: str) -> int:
        """Rows of a matrix of the file, 0 without one."""
        entry = self._tensors.get(name)
        return 0 if entry is None else _padded(entry.ne)[1]

    def problems(self) -> list[str]:
        """Every complaint so far, one sentence each."""
        return [*self.missing, *self.wrong, *self.unexpected]

    def matrix(self, name: str, n_cols: int, n_rows: int, n_mats: int = 1) -> BoundTensor:
        """A required matrix (or n_mats of them)."""
        return self._claim(name, (n_cols, n_rows, n_mats, 1), "matrix")

    def rows(self, name: str, n_cols: int, rows: range, n_rows_total: int) -> BoundTensor:
        """Some rows of a required matrix of n_rows_total rows."""
        whole = self._claim(name, (n_cols, n_rows_total, 1, 1), "matrix")
        return _row_range(whole, rows)

    def vector(self, name: str, length: int) -> BoundTensor:
        """A required vector."""
        return self._claim(name, (length, 1, 1, 1), "vector")

    def flat(self, name: str, ne: tuple[int, ...]) -> BoundTensor:
        """A required small tensor of this shape as one vector, in the file's order."""
        whole = self._claim(name, _padded(ne), "vector")  # pyright: ignore[reportArgumentType]
        return msgspec.structs.replace(whole, n_cols=math.prod(ne))

    def split(self, stem: str, n_in: int, counts: tuple[int, ...]) -> list[BoundLinear]:
        """The parts of a required projection whose rows are several results one after the other; no bias."""
        scale = self.scale(stem) if self.has(f"{stem}.weight") else None
        made: list[BoundLinear] = []
        start = 0
        for n in counts:
            rows = self.rows(f"{stem}.weight", n_in, range(start, start + n), sum(counts))
            made.append(BoundLinear(weight=rows, scale=scale))
            start += n
        return made

    def vector_rows(self, name: str, rows: range, length: int) -> BoundTensor:
        """Some entries of a required vector of `length` entries."""
        whole = self._claim(name, (length, 1, 1, 1), "vector")
        item_bytes = 4 if whole.type == GgmlType.F32 else 2
        return BoundTensor(
            name=name,
            role="vector",
            type=whole.type,
            n_cols=len(rows),
            n_rows=1,
            n_mats=1,
            shard=whole.shard,
            file_offset=whole.file_offset + rows.start * item_bytes,
            file_stride_bytes=0,
            row_first=rows.start,
        )

    def optional_vector(self, name: str, length: int) -> BoundTensor | None:
        """The vector, or None when the file has none of this name."""
        return self.vector(name, length) if self.has(name) else None

    def present_vector(self, name: str, length: int, presence: str) -> BoundTensor | None:
        """A vector whose presence the declaration rules: required, if-present or absent."""
        if presence == "required":
            return self.vector(name, length)
        return self.optional_vector(name, length) if presence == "if-present" else None

    def expert_matrix(self, name: str, n_cols: int, n_rows: int, n_expert: int) -> BoundTensor:
        """A required stack of expert matrices."""
        return self._claim(name, (n_cols, n_rows, n_expert, 1), "expert-matrix")

    def expert_rows(self, name: str, n_cols: int, rows: range, n_rows_total: int, n_expert: int) -> BoundTensor:
        """Some rows of each matrix of a required expert stack."""
        return _row_range(self._claim(name, (n_cols, n_rows_total, n_expert, 1), "expert-matrix"), rows)

    def expert_parts(self, names: list[str], n_cols: int, n_rows: int) -> BoundTensor:
        """Expert matrices that the file holds as one tensor each, all of one type."""
        singles = [self._claim(name, (n_cols, n_rows, 1, 1), "expert-matrix") for name in names]
        first = singles[0]
        for single in singles[1:]:
            if single.type != first.type:
                self.wrong.append(
                    f"{single.name} has type {type_name(single.type)}; the other experts of its layer have"
                    f" {type_name(first.type)}, and they must agree"
                )
        return BoundTensor(
            name=first.name,
            role="expert-matrix",
            type=first.type,
            n_cols=n_cols,
            n_rows=n_rows,
            n_mats=len(names),
            shard=first.shard,
            file_offset=first.file_offset,
            file_stride_bytes=first.file_stride_bytes,
            parts=tuple(Part(name=one.name, shard=one.shard, file_offset=one.file_offset) for one in singles),
        )

    def expert_vector(self, name: str, length: int, n_expert: int) -> BoundTensor:
        """A required vector per expert, ne [length, n_expert]."""
        return self._expert_vector(name, (length, n_expert, 1, 1), length, n_expert)

    def expert_scale(self, stem: str, n_expert: int) -> BoundTensor | None:
        """The applied scale of an expert stack: one float per expert, ne [n_expert], or None."""
        name = f"{stem}.scale"
        if stem.rpartition(".")[2] not in self._scales_applied or not self.has(name):
            return None
        return self._expert_vector(name, (n_expert, 1, 1, 1), 1, n_expert)

    def scale(self, stem: str) -> BoundTensor | None:
        """The applied scale [1] of a weight, or None. A scale that is not applied is swept up by `settle`."""
        name = f"{stem}.scale"
        kind = stem.rpartition(".")[2]
        if kind not in self._scales_applied or not self.has(name):
            return None
        if kind == "output" and self._tensors[f"{stem}.weight"].type != GgmlType.NVFP4:
            return None
        return self.vector(name, 1)

    def linear(self, stem: str, n_in: int, n_out: int, bias: str = "absent") -> BoundLinear:
        """`stem`.weight with its bias and its applied scale."""
        weight = self.matrix(f"{stem}.weight", n_in, n_out)
        return BoundLinear(
            weight=weight,
            bias=self.present_vector(f"{stem}.bias", n_out, bias),
            scale=self.scale(stem) if self.has(f"{stem}.weight") else None,
        )

    def ignore(self, names: list[str], why: str) -> None:
        """Mark tensors as deliberately unused."""
        self.ignored.update((name, why) for name in names)

    def settle(self, globs: tuple[str, ...]) -> None:
        """Ignore what the rules name; whatever then is left is unexpected."""
        for name in self._tensors:
            if name in self.used or name in self.ignored:
                continue
            glob = next((pattern for pattern in globs if fnmatchcase(name, pattern)), None)
            if glob is not None:
                self.ignored[name] = f"the declaration ignores {glob}"
            elif self._is_idle_scale(name):
                self.ignored[name] = "a scale that this architecture does not apply"
            else:
                ne = self._tensors[name].ne
                self.unexpected.append(f"{name} {_shown(ne)} is not part of this architecture with these keys")

    def _is_idle_scale(self, name: str) -> bool:
        stem, _, kind = name.rpartition(".")
        if kind not in ("scale", "input_scale") or f"{stem}.weight" not in self.used:
            return False
        what = stem.rpartition(".")[2]
        ne = self._tensors[name].ne
        count = _padded(ne)[0] if len(ne) >= 1 else 1
        if what in SCALED_EXPERT_STEMS:
            return count == self._tensors[f"{stem}.weight"].ne[2] and _padded(ne)[1:] == (1, 1, 1)
        if what == "output" and self._tensors[f"{stem}.weight"].type != GgmlType.NVFP4:
            return False
        return what in (*SCALED_STEMS, "output") and _padded(ne) == (1, 1, 1, 1)

    def _expert_vector(self, name: str, ne: tuple[int, int, int, int], length: int, n_expert: int) -> BoundTensor:
        whole = self._claim(name, ne, "vector")
        return BoundTensor(
            name=name,
            role="expert-vector",
            type=whole.type,
            n_cols=length,
            n_rows=1,
            n_mats=n_expert,
            shard=whole.shard,
            file_offset=whole.file_offset,
            file_stride_bytes=length * (4 if whole.type == GgmlType.F32 else 2),
        )

    def _claim(self, name: str, ne: tuple[int, int, int, int], role: str) -> BoundTensor:
        """Find `name` with exactly this shape; on a problem note it and return a tensor that leads nowhere."""
        entry = self._tensors.get(name)
        if entry is None:
            self.missing.append(f"{name} {_trimmed(ne)} is missing")
            return _made(name, GgmlType.F32, ne, role, None)
        self.used.add(name)
        if _padded(entry.ne) != ne:
            self.wrong.append(f"{name} has shape {_shown(entry.ne)}; expected {_trimmed(ne)}")
            return _made(name, GgmlType.F32, ne, role, None)
        self._check_type(entry, role)
        return _made(name, entry.type, ne, role, entry)

    def _check_type(self, entry: TensorEntry, role: str) -> None:
        if role == "vector":
            if entry.type not in VECTOR_TYPES:
                self.wrong.append(f"{entry.name} has type {type_name(entry.type)}; accepted: F32, F16, BF16")
            return
        info = type_info(entry.type)
        if info is None or not info.act:
            self.wrong.append(f"{entry.name} has type {type_name(entry.type)}, which is no type of a weight matrix")
        elif entry.ne[0] % info.block != 0:
            self.wrong.append(
                f"{entry.name} has rows of {entry.ne[0]}, no multiple of {info.name}'s block of {info.block}"
            )


def _trimmed(ne: tuple[int, ...]) -> str:
    kept = list(ne)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return _shown(tuple(kept))


def _made(name: str, type_: int, ne: tuple[int, int, int, int], role: str, entry: TensorEntry | None) -> BoundTensor:
    """The bound form of a claimed tensor; without an entry it only keeps the binder going."""
    vector = role == "vector"
    info = type_info(type_)
    matrix_bytes = 0
    if entry is not None and not vector and info is not None and ne[0] % info.block == 0:
        matrix_bytes = row_bytes(type_, ne[0]) * ne[1]
    return BoundTensor(
        name=name,
        role=role,  # pyright: ignore[reportArgumentType]
        type=type_,
        n_cols=ne[0],
        n_rows=1 if vector else ne[1],
        n_mats=1 if vector else ne[2],
        shard=entry.shard if entry is not None else 0,
        file_offset=entry.offset if entry is not None else 0,
        file_stride_bytes=matrix_bytes,
    )


def _row_range(whole: BoundTensor, rows: range) -> BoundTensor:
    bytes_per_row = whole.file_stride_bytes // whole.n_rows
    return BoundTensor(
        name=whole.name,
        role=whole.role,
        type=whole.type,
        n_cols=whole.n_cols,
        n_rows=len(rows),
        n_mats=whole.n_mats,
        shard=whole.shard,
        file_offset=whole.file_offset + rows.start * bytes_per_row,
        file_stride_bytes=whole.file_stride_bytes,
        row_first=rows.start,
    )
