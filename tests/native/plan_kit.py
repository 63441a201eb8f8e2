"""Small hand-made plans, run through the public ABI: any op's result comes back as logits.

A plan starts with EMBED of a float32 table, so that token t brings row t of any inputs that a test wants (views cut the
row into operands), and ends with GATHER and a HEAD whose matrix is the identity: dot products with it are exact, so the
logits are the op's result, bit for bit (a negative zero becomes zero).
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

Floats = npt.NDArray[np.float32]
TOKENS, OUTPUTS = 0, 1
MATRIX, VECTOR, EXPERT_MATRIX, EXPERT_VECTOR = range(4)
F32 = GGMLQuantizationType.F32
BLOCK = 64


def round_up(n: int, multiple: int) -> int:
    """Return the next multiple."""
    return -(-n // multiple) * multiple


@dataclass
class Matrix:
    """Weights of one type: file bytes [n_mats, n_rows, row bytes], and their exact values."""

    quant: GGMLQuantizationType
    data: npt.NDArray[np.uint8]

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """Return float64 [n_mats, n_rows, n_cols]."""
        if self.quant == F32:
            return self.data.view(np.float32).astype(np.float64)
        flat = dequantize(self.data.reshape(-1, self.data.shape[-1]), self.quant).astype(np.float64)
        return flat.reshape(*self.data.shape[:2], -1)

    @property
    def n_cols(self) -> int:
        """Return the number of inputs."""
        block, block_bytes = GGML_QUANT_SIZES[self.quant]
        return self.data.shape[-1] // block_bytes * block


def f32_matrix(values: Any) -> Matrix:
    """Make a float32 matrix of [n_rows, n_cols] or [n_mats, n_rows, n_cols]."""
    w = np.ascontiguousarray(values, np.float32)
    w = w if w.ndim == 3 else w[None]
    return Matrix(F32, w.view(np.uint8).reshape(*w.shape[:2], -1))


@dataclass
class Plan:
    """Tables under construction; ids are indices into them."""

    ffi: Any
    lib: Any
    n_batch: int = 64
    tensors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    bytes_of: list[npt.NDArray[np.uint8]] = field(default_factory=list[npt.NDArray[np.uint8]])
    buffers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    ropes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    freqs: list[float] = field(default_factory=list[float])
    kv_layers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    expert_sets: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    ops: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    states: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    weights_bytes: int = 0
    activations_bytes: int = 0
    n_vocab: int = 0

    # ---- tensors

    def matrix_bytes(self, m: Matrix) -> int:
        """Return the packed size of one matrix."""
        return int(self.lib.strata_packed_bytes(int(m.quant), m.data.shape[1], m.n_cols))

    def add_tensor(self, role: int, m: Matrix, offset: int, stride: int) -> int:
        """Append a tensor at a place of the arena."""
        is_vector = role in (VECTOR, EXPERT_VECTOR)
        shape = {"n_cols": m.n_cols, "n_rows": m.data.shape[1], "n_mats": m.data.shape[0]}
        if is_vector and role == VECTOR:
            shape["n_mats"] = 1
        where = {"arena_offset": offset, "mat_stride_bytes": stride, "source_first": -1}
        self.tensors.append({"type": int(m.quant), "role": role, **shape, **where})
        self.bytes_of.append(m.data)
        return len(self.tensors) - 1

    def matrix(self, m: Matrix) -> int:
        """Append a MATRIX tensor at the arena's end."""
        one = self.matrix_bytes(m)
        offset, self.weights_bytes = self.weights_bytes, self.weights_bytes + one * m.data.shape[0]
        return self.add_tensor(MATRIX, m, offset, one)

    def vector(self, values: Any) -> int:
        """Append a VECTOR tensor."""
        m = f32_matrix(np.asarray(values, np.float32)[None])
        offset, self.weights_bytes = self.weights_bytes, round_up(self.weights_bytes + m.n_cols * 4, 64)
        return self.add_tensor(VECTOR, m, offset, m.n_cols * 4)

    def experts(self, glu: int, parts: dict[str, Matrix], n_used: int, **fields: Any) -> int:
        """Append an expert set. parts: gate, up, down [n_expert, rows, cols]; biases and scales [n_expert, 1, n]."""
        names = [part + suffix for suffix in ("", "_bias", "_scale") for part in ("gate", "up", "down")]
        present = [name for name in names if name in parts]
        sizes = {n: parts[n].n_cols * 4 if "_" in n else self.matrix_bytes(parts[n]) for n in present}
        slot = sum(round_up(size, 64) for size in sizes.values())
        n_expert, n_ff, _ = parts["up"].data.shape
        ids = dict.fromkeys(names, -1)
        at = self.weights_bytes
        for name in present:
            ids[name] = self.add_tensor(EXPERT_VECTOR if "_" in name else EXPERT_MATRIX, parts[name], at, slot)
            at += round_up(sizes[name], 64)
        place = {"arena_offset": self.weights_bytes, "slot_bytes": slot}
        self.weights_bytes += slot * n_expert
        shape = {"n_in": parts["up"].n_cols, "n_ff": n_ff, "n_out": parts["down"].data.shape[1]}
        self.expert_sets.append({"n_expert": n_expert, "n_used": n_used, "glu": glu, **shape, **ids, **place, **fields})
        return len(self.expert_sets) - 1

    def state(self, n_floats: int) -> int:
        """Append a recurrent state of each sequence."""
        self.states.append({"n_floats": n_floats})
        return len(self.states) - 1

    # ---- buffers and ops

    def buffer(self, width: int, rows: int = TOKENS, pad: int = 0) -> int:
        """Append a buffer of its own bytes; `pad` more floats lie between rows."""
        stride = width + pad
        self.buffers.append({"offset": self.activations_bytes, "width": width, "row_stride": stride, "rows": rows})
        self.activations_bytes = round_up(self.activations_bytes + self.n_batch * stride * 4, 64)
        return len(self.buffers) - 1

    def view(self, buffer: int, first: int, width: int) -> int:
        """Append a view of columns [first, first + width)."""
        of = self.buffers[buffer]
        self.buffers.append({**of, "offset": of["offset"] + first * 4, "width": width})
        return len(self.buffers) - 1

    def op(
        self, kind: str, ins: Sequence[int], outs: Sequence[int], weights: Sequence[int] = (), /, **params: Any
    ) -> None:
        """Append an op; parameters by their names in strata.h, lower case."""
        i, f = [0] * 12, [0.0] * 4
        for name, value in params.items():
            if hasattr(self.lib, f"STRATA_{kind}_F_{name.upper()}"):
                f[getattr(self.lib, f"STRATA_{kind}_F_{name.upper()}")] = float(value)
            else:
                i[getattr(self.lib, f"STRATA_{kind}_I_{name.upper()}")] = int(value)

        def full(ids: Sequence[int], n: int) -> list[int]:
            return [*ids, *[-1] * (n - len(ids))]

        ids = {"in": full(ins, 4), "out": full(outs, 4), "weight": full(weights, 12)}
        self.ops.append({"kind": getattr(self.lib, f"STRATA_OP_{kind}"), "layer": 0, **ids, "i": i, "f": f})

    def inputs(self, table: Any, n_vocab: int = 0, pad: int = 0) -> int:
        """Start the plan: token t brings table[t]. Returns the buffer."""
        rows = np.zeros((max(len(table), n_vocab), table.shape[1]), np.float32)
        rows[: len(table)] = table
        self.n_vocab = len(rows)
        out = self.buffer(rows.shape[1], pad=pad)
        self.op("EMBED", [], [out], [self.matrix(f32_matrix(rows))], scale=1.0)
        return out

    def result(self, buffer: int) -> None:
        """End the plan: the buffer's rows become the first entries of the logits."""
        width = self.buffers[buffer]["width"]
        assert width <= self.n_vocab, "give inputs() a larger n_vocab"
        gathered, logits = self.buffer(width, OUTPUTS), self.buffer(self.n_vocab, OUTPUTS)
        self.op("GATHER", [buffer], [gathered], width=width)
        self.op("HEAD", [gathered], [logits], [self.matrix(f32_matrix(np.eye(self.n_vocab, width)))], scale=1.0)

    # ---- running

    def text(self) -> str:
        """Return the library's last error."""
        return self.ffi.string(self.lib.strata_last_error()).decode()

    def check(self, status: int) -> None:
        """Raise on a failed call."""
        if status != 0:
            raise RuntimeError(f"{status}: {self.text()}")

    @contextmanager
    def model(self) -> Iterator[Any]:
        """Open the model and fill its weights."""
        ffi = self.ffi
        desc = ffi.new("strata_model_desc *")
        desc.struct_size = ffi.sizeof("strata_model_desc")
        desc.abi_version = self.lib.STRATA_ABI_VERSION
        keep = []
        for name in ("tensors", "buffers", "ropes", "kv_layers", "expert_sets", "ops", "states"):
            rows = getattr(self, name)
            array = ffi.new(f"strata_{name[:-1]}[]", rows)
            keep.append(array)
            setattr(desc, name, array)
            setattr(desc, f"n_{name}", len(rows))
        freqs = ffi.new("double[]", self.freqs or [0.0])
        desc.freqs, desc.n_freqs = freqs, len(self.freqs)
        desc.n_layer, desc.n_vocab, desc.n_embd = 1, self.n_vocab, self.buffers[0]["width"]
        desc.n_batch = desc.n_outputs_max = self.n_batch
        desc.weights_bytes, desc.activations_bytes = self.weights_bytes, self.activations_bytes
        handle = ffi.new("strata_model **")
        self.check(self.lib.strata_model_open(desc, handle))
        self.check(self.lib.strata_model_reserve(handle[0]))
        for tensor, data in enumerate(self.bytes_of):
            for mat, rows in enumerate(data):
                raw = np.ascontiguousarray(rows)
                pointer = ffi.cast("uint8_t *", raw.ctypes.data)
                self.check(self.lib.strata_model_fill(handle[0], tensor, mat, 0, len(rows), pointer, raw.nbytes))
        try:
            yield handle[0]
        finally:
            self.check(self.lib.strata_model_close(handle[0]))

    @contextmanager
    def engine(self, model: Any, **config: Any) -> Iterator[Engine]:
        """Open an engine on the model; fields of strata_engine_config by name."""
        ffi = self.ffi
        fields = {
            "n_threads": 1,
            "n_kv_blocks": 16,
            "max_seqs": 4,
            "n_state_slots": 16,
            "tier": -1,
            "spin_us": -1,
            "queue_steps": 2,
            "poison": 1,
        }
        c = ffi.new("strata_engine_config *", {**fields, **config})
        c.struct_size = ffi.sizeof("strata_engine_config")
        handle = ffi.new("strata_engine **")
        self.check(self.lib.strata_engine_open(model, c, handle))
        try:
            yield Engine(self, handle[0])
        finally:
            self.check(self.lib.strata_engine_close(handle[0]))


@dataclass
class Rows:
    """Rows of one sequence in a step; its states lie in the slot numbered as its first block."""

    tokens: Sequence[int]
    first_pos: int = 0
    blocks: Sequence[int] = (0, 1, 2, 3)


@dataclass
class Engine:
    """An open engine and its plan."""

    plan: Plan
    handle: Any
    completion: Any = None
    sampled: Any = None

    def step(self, *sequences: Rows, samples: Any = None, ints: Any = None, floats: Any = None) -> Floats:
        """Run one step; logits [n_tokens, n_vocab] of every row. Samples fill self.sampled, failed steps too."""
        ffi, lib = self.plan.ffi, self.plan.lib
        tokens = [t for rows in sequences for t in rows.tokens]
        max_blocks = max(len(rows.blocks) for rows in sequences)
        table = [[*rows.blocks, *[-1] * (max_blocks - len(rows.blocks))] for rows in sequences]
        arrays = {
            "token": tokens,
            "pos": [rows.first_pos + k for rows in sequences for k in range(len(rows.tokens))],
            "seq": [s for s, rows in enumerate(sequences) for _ in rows.tokens],
            "block_table": [block for row in table for block in row],
            "output_row": list(range(len(tokens))),
            "state_slot": [rows.blocks[0] for rows in sequences],
        }
        keep = {name: ffi.new("int32_t[]", values) for name, values in arrays.items()}
        logits = np.zeros((len(tokens), self.plan.n_vocab), np.float32)
        step = ffi.new("strata_step *", keep)
        step.struct_size = ffi.sizeof("strata_step")
        step.n_tokens = step.n_outputs = len(tokens)
        step.n_seqs, step.max_blocks = len(sequences), max_blocks
        step.logits_out = ffi.cast("float *", logits.ctypes.data)
        if samples is not None:
            step.samples, step.n_samples, step.ints, step.floats = samples, len(samples), ints, floats
            step.n_ints, step.n_floats = len(ints), len(floats)
            self.sampled = ffi.new("strata_sampled[]", len(samples))
            step.sampled_out = self.sampled
        ticket = ffi.new("uint64_t *")
        self.plan.check(lib.strata_engine_submit(self.handle, step, ticket))
        self.completion = ffi.new("strata_completion *")
        self.completion.struct_size = ffi.sizeof("strata_completion")
        done = ffi.new("int32_t *")
        while done[0] == 0:
            select.select([lib.strata_engine_eventfd(self.handle)], [], [], 30)
            self.plan.check(lib.strata_engine_poll(self.handle, self.completion, 1, done))
        if self.completion.status != 0:
            text = ffi.new("char[]", 800)
            lib.strata_engine_error(self.handle, ticket[0], text, 800)
            raise RuntimeError(f"{self.completion.status}: {ffi.string(text).decode()}")
        return logits


def tiers(plan: Plan) -> list[int]:
    """Return the instruction-set tiers of this processor."""
    best = plan.ffi.string(plan.lib.strata_cpu_tier())
    return {b"scalar": [0], b"avx2": [0, 1], b"avx512": [0, 1, 2], b"neon": [0, 3]}[best]


def same_everywhere(plan: Plan, tokens: Sequence[int], **config: Any) -> Floats:
    """Run tokens as one sequence in many ways, insist on the same bits, and return the logits [n_tokens, n_vocab].

    Ways: tiers, 1 to 3 threads, chunks of 1 and 7 tokens, and other sequences before and behind in the same step.
    """
    with plan.model() as model:
        with plan.engine(model, **config) as engine:
            expected = engine.step(Rows(tokens))

        def same(engine: Engine, what: str) -> None:
            whole = engine.step(Rows(tokens))
            assert whole.tobytes() == expected.tobytes(), what
            for chunk in (1, 7):
                parts = [
                    engine.step(Rows(tokens[k : k + chunk], k, (7, 6, 5, 4))) for k in range(0, len(tokens), chunk)
                ]
                assert np.concatenate(parts).tobytes() == expected.tobytes(), f"{what}, chunks of {chunk}"
            others = Rows(list(reversed(tokens))[:3], 0, (8, 9, 10, 11)), Rows(tokens[:1], 0, (12, 13, 14, 15))
            crowd = engine.step(others[0], Rows(tokens), others[1])
            assert crowd[3 : 3 + len(tokens)].tobytes() == expected.tobytes(), f"{what}, with neighbours"

        for tier in tiers(plan):
            with plan.engine(model, **{**config, "tier": tier}) as engine:
                same(engine, f"tier {tier}")
        for n_threads in (2, 3):
            with plan.engine(model, **{**config, "n_threads": n_threads}) as engine:
                same(engine, f"{n_threads} threads")
    return expected
