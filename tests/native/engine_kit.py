"""A hand-made model of one block: attention, router, four experts. Small enough to compute again in a few lines.

x = embed(tokens); q, k, v = linear(norm(x)); rope(q, k); x += linear(attention(q, k, v))
h = norm(x); s = router(linear(h)); x += combine(experts(h, s), s); logits = head(norm(gather(x)))
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.arch.plan_tables import ExpertSet, KvLayer, ModelPlan, PlanBuffer, PlanOp, PlanRope, PlanTensor
from strata.engine.backend import BatchRow, SampleSpec, StepBatch
from strata.ffi.library import Library
from strata.ffi.native import EngineOptions, NativeBackend, NativeModel
from strata.types import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / os.environ.get("NATIVE_TESTS", "build/native-tests") / "libstrata_test.so"
F32, F16, Q8_0 = 0, 1, 8
N_VOCAB, N_EMBD, N_FF, N_EXPERT, N_USED = 70, 64, 32, 4, 2
N_HEAD, N_HEAD_KV, HEAD = 4, 2, 16
N_BATCH = 24
EPS = 1e-5
GREEDY = SamplingParams(temperature=0.0, repeat_penalty=1.0)
MATRIX, VECTOR, EXPERT_MATRIX, EXPERT_VECTOR = range(4)


def round_up(n: int, multiple: int = 64) -> int:
    return (n + multiple - 1) // multiple * multiple


def encode(values: NDArray[np.float32], ggml_type: int) -> bytes:
    """The file's bytes of some rows."""
    if ggml_type == F32:
        return values.astype("<f4").tobytes()
    if ggml_type == F16:
        return values.astype("<f2").tobytes()
    blocks = values.reshape(-1, 32)
    scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype("<f2")
    quants = np.rint(blocks / np.maximum(scale.astype("<f4"), 1e-12)).astype("i1")
    return b"".join(s.tobytes() + q.tobytes() for s, q in zip(scale, quants, strict=True))


def row_bytes(ggml_type: int, n_cols: int) -> int:
    return {F32: 4 * n_cols, F16: 2 * n_cols, Q8_0: n_cols // 32 * 34}[ggml_type]


@dataclass
class Tiny:
    """The model's values, its file image and its plan."""

    plan: ModelPlan
    values: dict[str, NDArray[np.float32]]
    image: bytes
    names: list[str] = field(default_factory=list)

    def logits(self, tokens: list[int]) -> NDArray[np.float64]:
        """All logits of one sequence, in float64."""
        return reference(self.values, tokens)


def random_values(seed: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def gain(n: int) -> NDArray[np.float32]:
        return (1 + 0.1 * rng.standard_normal((1, 1, n))).astype(np.float32)

    return {
        "embed": matrix(1, N_VOCAB, N_EMBD) * 4,
        "attn_norm": gain(N_EMBD),
        "q": matrix(1, N_HEAD * HEAD, N_EMBD),
        "k": matrix(1, N_HEAD_KV * HEAD, N_EMBD),
        "v": matrix(1, N_HEAD_KV * HEAD, N_EMBD),
        "o": matrix(1, N_EMBD, N_HEAD * HEAD),
        "ffn_norm": gain(N_EMBD),
        "router": matrix(1, N_EXPERT, N_EMBD),
        "out_norm": gain(N_EMBD),
        "head": matrix(1, N_VOCAB, N_EMBD),
        "gate": matrix(N_EXPERT, N_FF, N_EMBD),
        "up": matrix(N_EXPERT, N_FF, N_EMBD),
        "down": matrix(N_EXPERT, N_EMBD, N_FF),
        "down_bias": matrix(N_EXPERT, 1, N_EMBD),
    }


def make(library: Library, folder: Path | None = None, *, seed: int = 1, experts: int = F32) -> Tiny:
    """Build the model; with a folder its file is written there, without one the plan has no file."""
    values = random_values(seed)
    types = {name: experts if name in ("gate", "up", "down") else F32 for name in values}
    types["out_norm"] = F16
    values["out_norm"] = values["out_norm"].astype(np.float16).astype(np.float32)
    tensors, image, slot, slot_at = _tensors(library, values, types)
    if folder is not None:
        (folder / "tiny.bin").write_bytes(image)
    plan = ModelPlan(
        arch="tiny",
        paths=(str(folder / "tiny.bin"),) if folder is not None else (),
        n_layer=1,
        n_vocab=N_VOCAB,
        n_embd=N_EMBD,
        n_ctx_train=256,
        n_ctx=256,
        n_batch=N_BATCH,
        n_outputs_max=N_BATCH,
        weights_bytes=slot_at + N_EXPERT * slot,
        activations_bytes=len(_BUFFERS) * _PLACE,
        expert_bytes=N_EXPERT * slot,
        read_bytes_per_token=0,
        kv_values_per_token=0,
        tensors=tuple(tensors),
        sources=(),
        buffers=tuple(
            PlanBuffer(offset=i * _PLACE, width=width, row_stride=width, rows=rows)
            for i, (width, rows) in enumerate(_BUFFERS.values())
        ),
        ropes=(PlanRope(style=1, n_rot=HEAD, freq_first=0, factors=-1, magnitude=1.0),),
        freqs=tuple(_freqs()),
        kv_layers=(KvLayer(n_head_kv=N_HEAD_KV, head_k=HEAD, head_v=HEAD, v_in_k=0),),
        expert_sets=(_expert_set(list(values), slot_at, slot),),
        ops=_ops({name: i for i, name in enumerate(values)}, {name: i for i, name in enumerate(_BUFFERS)}),
    )
    return Tiny(plan, values, image, list(values))


def _freqs() -> list[float]:
    return [10000.0 ** (-2 * p / HEAD) for p in range(HEAD // 2)]


# width in floats, rows (0 TOKENS, 1 OUTPUTS); every buffer has a place of its own
_BUFFERS = {
    "x": (N_EMBD, 0),
    "h": (N_EMBD, 0),
    "q": (N_HEAD * HEAD, 0),
    "k": (N_HEAD_KV * HEAD, 0),
    "v": (N_HEAD_KV * HEAD, 0),
    "a": (N_HEAD * HEAD, 0),
    "y": (N_EMBD, 0),
    "scores": (N_EXPERT, 0),
    "selection": (2 * N_USED, 0),
    "rows": (N_USED * N_EMBD, 0),
    "wanted": (N_EMBD, 1),
    "logits": (N_VOCAB, 1),
}
_PLACE = N_BATCH * 128 * 4


def _tensors(
    library: Library, values: dict[str, NDArray[np.float32]], types: dict[str, int]
) -> tuple[list[PlanTensor], bytes, int, int]:
    rows: list[PlanTensor] = []
    image = bytearray(b"\x5a" * 100)  # offsets are not aligned to anything
    at = slot = 0
    slot_at = -1
    for name, value in values.items():
        n_mats, n_rows, n_cols = value.shape
        vector = name.endswith(("norm", "bias"))
        in_slot = n_mats > 1
        n_bytes = n_cols * 4 if vector else library.packed_bytes(types[name], n_rows, n_cols)
        if in_slot and slot_at < 0:
            slot_at = at
        rows.append(
            PlanTensor(
                name=name,
                type=types[name],
                role=(EXPERT_VECTOR if vector else EXPERT_MATRIX) if in_slot else VECTOR if vector else MATRIX,
                n_cols=n_cols,
                n_rows=n_rows,
                n_mats=n_mats,
                shard=0,
                source_first=-1,
                file_offset=len(image),
                file_stride_bytes=n_rows * row_bytes(types[name], n_cols),
                arena_offset=slot_at + slot if in_slot else at,
                mat_stride_bytes=0 if in_slot else round_up(n_bytes),
            )
        )
        image += encode(value, types[name]) + b"\x5a" * 7
        if in_slot:
            slot += round_up(n_bytes)
        else:
            at += round_up(n_bytes)
    tensors = [msgspec.structs.replace(row, mat_stride_bytes=slot) if row.n_mats > 1 else row for row in rows]
    return tensors, bytes(image), slot, slot_at


def _expert_set(names: list[str], slot_at: int, slot: int) -> ExpertSet:
    return ExpertSet(
        layer=0,
        n_expert=N_EXPERT,
        n_used=N_USED,
        glu=0,
        n_in=N_EMBD,
        n_ff=N_FF,
        n_out=N_EMBD,
        weight_on_input=0,
        gate=names.index("gate"),
        up=names.index("up"),
        down=names.index("down"),
        gate_bias=-1,
        up_bias=-1,
        down_bias=names.index("down_bias"),
        gate_scale=-1,
        up_scale=-1,
        down_scale=-1,
        p0=0.0,
        p1=0.0,
        arena_offset=slot_at,
        slot_bytes=slot,
    )


def _ops(t: dict[str, int], b: dict[str, int]) -> tuple[PlanOp, ...]:
    def op(
        kind: str, ins: str, outs: str, weights: str = "", f: dict[str, float] | None = None, layer: int = 0, **i: int
    ) -> PlanOp:
        return PlanOp(
            kind=kind,
            layer=layer,
            ins=tuple(b[name] for name in ins.split()),
            outs=tuple(b[name] for name in outs.split()),
            weights=tuple(t[name] for name in weights.split()),
            i=i,
            f=f or {},
        )

    def norm(source: str, target: str, gain: str, layer: int = 0) -> PlanOp:
        return op("norm", source, target, gain, {"eps": EPS}, layer, n_vec=1, width=N_EMBD)

    one = {"a": 1.0, "b": 1.0}
    return (
        op("embed", "", "x", "embed", {"scale": 1.0}, -1),
        norm("x", "h", "attn_norm"),
        op("linear", "h", "q k v", "q k v", n=3),
        op("rope", "q", "q", n_head=N_HEAD, stride=HEAD),
        op("rope", "k", "k", n_head=N_HEAD_KV, stride=HEAD),
        op("attention", "q k v", "a", "", {"scale": HEAD**-0.5}, n_head=N_HEAD, causal=1),
        op("linear", "a", "y", "o", n=1),
        op("add", "x y", "x", "", one, width=N_EMBD),
        norm("x", "h", "ffn_norm"),
        op("linear", "h", "scores", "router", n=1),
        op(
            "router",
            "scores",
            "selection",
            "",
            {"scale": 1.0},
            n_expert=N_EXPERT,
            n_used=N_USED,
            scores=1,
            normalize=1,
        ),
        op("experts", "h selection", "rows"),
        op("combine", "rows selection", "y", n_used=N_USED, width=N_EMBD),
        op("add", "x y", "x", "", one, width=N_EMBD),
        op("gather", "x", "wanted", layer=-1, width=N_EMBD),
        norm("wanted", "wanted", "out_norm", -1),
        op("head", "wanted", "logits", "head", {"scale": 1.0}, -1),
    )


def reference(values: dict[str, NDArray[np.float32]], tokens: list[int]) -> NDArray[np.float64]:
    """float64 [n_tokens, N_VOCAB]."""
    w = {name: value.astype(np.float64) for name, value in values.items()}
    x = w["embed"][0][tokens]
    h = _rms(x, w["attn_norm"][0, 0])
    n = len(tokens)
    q = _rope((h @ w["q"][0].T).reshape(n, N_HEAD, HEAD))
    k = _rope((h @ w["k"][0].T).reshape(n, N_HEAD_KV, HEAD))
    v = (h @ w["v"][0].T).reshape(n, N_HEAD_KV, HEAD)
    a = np.zeros((n, N_HEAD, HEAD))
    for head in range(N_HEAD):
        kv = head // (N_HEAD // N_HEAD_KV)
        scores = q[:, head] @ k[:, kv].T * HEAD**-0.5
        scores[np.triu_indices(n, 1)] = -np.inf
        a[:, head] = _softmax(scores) @ v[:, kv]
    x = x + a.reshape(n, -1) @ w["o"][0].T
    h = _rms(x, w["ffn_norm"][0, 0])
    probabilities = _softmax(h @ w["router"][0].T)
    for t in range(n):
        chosen = np.argsort(-probabilities[t], kind="stable")[:N_USED]
        weights = probabilities[t, chosen] / probabilities[t, chosen].sum()
        for e, weight in zip(chosen, weights, strict=True):
            gate, up = h[t] @ w["gate"][e].T, h[t] @ w["up"][e].T
            x[t] += weight * (gate / (1 + np.exp(-gate)) * up @ w["down"][e].T + w["down_bias"][e, 0])
    return _rms(x, w["out_norm"][0, 0]) @ w["head"][0].T


def _rms(x: NDArray[np.float64], gain: NDArray[np.float64]) -> NDArray[np.float64]:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * gain


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _rope(x: NDArray[np.float64]) -> NDArray[np.float64]:
    angles = np.arange(len(x))[:, None] * np.array(_freqs())
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], -1)


def loaded(library: Library, folder: Path, **kinds: Any) -> tuple[Tiny, NativeModel]:
    """The model with its weights read from a file."""
    tiny = make(library, folder, **kinds)
    model = NativeModel(library, tiny.plan)
    model.load(mode="buffered", n_threads=1)
    return tiny, model


def backend(model: NativeModel, **options: Any) -> NativeBackend:
    settings: dict[str, Any] = {"n_threads": 1, "n_kv_blocks": 8, "max_seqs": 4, "kv_type": "f32", "poison": True}
    return NativeBackend(model, EngineOptions(**{**settings, **options}), n_ctx=256)


def row(
    tokens: list[int],
    first_pos: int = 0,
    blocks: tuple[int, ...] = (0, 1),
    *,
    sample: bool = False,
    logits: bool = True,
    seq_id: int = 0,
) -> BatchRow:
    spec = SampleSpec(params=GREEDY, seed=1, counter=0) if sample else None
    return BatchRow(
        seq_id=seq_id, tokens=tuple(tokens), first_pos=first_pos, blocks=blocks, sample=spec, all_logits=logits
    )


def logits_of(engine: NativeBackend, *rows: BatchRow) -> NDArray[np.float32]:
    """Logits of one step."""
    found = engine.run_sync(StepBatch(rows=rows)).logits
    assert isinstance(found, np.ndarray)
    return found


def tokens(n: int, seed: int = 3) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, N_VOCAB, n)]
