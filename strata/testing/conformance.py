"""Proves an architecture on tiny random models: every reading of a file must give the same logits.

For authors of plugins. A case is a dict: `arch`, `keys` (metadata without the architecture's prefix), `tensors` (GGUF
shapes by name) and, where the usual spread does not fit, `deviations` (of tensors whose names hold a part):

    path = conformance.write_case(CASE, folder / "tiny.gguf")
    result = conformance.compare(ARCH, path, peer=path)
    assert not result.problems()

Four readings are compared: llama.cpp's (package xllamacpp), the numpy reference's, the numpy walk over the plan, and
the native engine's, the last in two chunk sizes whose bits must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.arch.bind import bind
from strata.arch.bound import BoundArch, BoundFfn, BoundGqa, BoundMoe
from strata.arch.plan import plan
from strata.arch.plan_tables import ModelPlan
from strata.arch.spec import Arch
from strata.engine.backend import KV_BLOCK_TOKENS, BatchRow, StepBatch
from strata.ffi.library import Library
from strata.ffi.native import EngineOptions, NativeBackend, NativeModel
from strata.gguf.quants import GgmlType
from strata.gguf.reader import read_gguf
from strata.reference import ops
from strata.reference.model import Reference
from strata.reference.walk import PlanWalk
from strata.reference.weights import FileWeights
from strata.testing import oracle
from strata.testing.tiny_gguf import Given, Random, write_tiny_gguf

__all__ = [
    "N_TOKENS",
    "N_VOCAB",
    "Case",
    "Comparison",
    "agree",
    "compare",
    "half_precision_gelu",
    "has_gelu",
    "native_logits",
    "prompt",
    "step_tokens",
    "write_case",
]

Case = dict[str, Any]
Logits = NDArray[Any]

N_TOKENS = 90  # of the prompts that models are compared on
N_VOCAB = 272  # token ids of the prompts are below this; the smallest vocabulary that a case may have
CHUNK, SMALL_CHUNK = 64, 7  # tokens a step of the native engine
PEER_KL, OWN_KL = 1e-6, 1e-9  # of the worst token: another engine's float32 sums, and our own
WALK_DIFFERENCE = 1e-9  # largest difference of two float64 computations
GELU_SHARE, GELU_KL = 0.9, 1e-4


def write_case(
    case: Case,
    path: Path,
    quantise: dict[str, gguf.GGMLQuantizationType] | None = None,
    given: dict[str, NDArray[np.float32]] | None = None,
    seed: int = 0,
) -> Path:
    """Write the case with random weights whose logits spread and whose routers choose; without a quantiser in F32.

    quantise: types by parts of tensor names. given: values to use as they are.
    """
    tensors: dict[str, Random | Given] = {}
    for name, ne in case["tensors"].items():
        kind = next((kind for part, kind in (quantise or {}).items() if part in name), None)
        if kind is None or len(ne) < 2 or ne[0] % gguf.GGML_QUANT_SIZES[kind][0] != 0:
            kind = gguf.GGMLQuantizationType.F32
        spread = next((std for part, std in case.get("deviations", {}).items() if part in name), None)
        drawn = Random(tuple(ne), GgmlType(kind), spread)
        tensors[name] = drawn if given is None else Given(given[name], GgmlType(kind))
    vocabulary = _vocabulary(case["tensors"]["token_embd.weight"][1])
    return write_tiny_gguf(path, case["arch"], case["keys"] | vocabulary, tensors, seed=seed)


def _vocabulary(n_vocab: int) -> dict[str, Any]:
    """SentencePiece-style: three special tokens, the bytes, and words that nothing spells."""
    if n_vocab < N_VOCAB:
        raise ValueError(f"token_embd.weight has {n_vocab} rows; accepted: at least {N_VOCAB}, the prompts' token ids")
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [f"w{k}" for k in range(n_vocab - len(words))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": [-float(k) for k in range(n_vocab)],
        "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256, *[1] * (n_vocab - 259)], np.int32),
    }


def prompt(n: int) -> list[int]:
    """n token ids; a shorter prompt is the beginning of a longer one."""
    return np.random.default_rng(7).integers(3, N_VOCAB, n).tolist()


def step_tokens(bound: BoundArch, n: int) -> int:
    """n, or the whole prompt where every token sees every other."""
    causal = (layer.attention.causal for layer in bound.layers if isinstance(layer.attention, BoundGqa))
    return n if all(causal) else N_TOKENS


def native_logits(
    table: ModelPlan, tokens: Sequence[int], chunk: int, library: Path | None = None, **options: Any
) -> NDArray[np.float32]:
    """The native engine's logits of every token, float32 [n_tokens, n_vocab], `chunk` tokens a step.

    The engine is poisoned and keeps keys and values in float32. library: default the installed one.
    """
    n_blocks = len(tokens) // KV_BLOCK_TOKENS + 1
    settings: dict[str, Any] = {
        "n_threads": 2,
        "n_kv_blocks": n_blocks,
        "n_state_slots": 1,
        "kv_type": "f32",
        "poison": True,
    }
    settings |= options
    parts: list[NDArray[np.float32]] = []
    with NativeModel(Library(library), table) as model:
        model.load(mode="buffered", n_threads=1)
        backend = NativeBackend(model, EngineOptions(**settings), n_ctx=n_blocks * KV_BLOCK_TOKENS)
        try:
            for first in range(0, len(tokens), chunk):
                part = tuple(tokens[first : first + chunk])
                row = BatchRow(
                    seq_id=0,
                    tokens=part,
                    first_pos=first,
                    blocks=tuple(range((first + len(part) - 1) // KV_BLOCK_TOKENS + 1)),
                    all_logits=True,
                )
                parts.append(np.array(backend.run_sync(StepBatch(rows=(row,))).logits))
        finally:
            backend.close()
    return np.concatenate(parts)


# ---- comparison


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What the readings of one file gave. KL divergences are of the worst token, in nats.

    peer_*: llama.cpp against the native engine; None: llama.cpp was not asked. peer_kl_median: of the usual token.
    peer_agrees: llama.cpp against the reference, by `agree`. spread: deviation of the logits, which says whether the
    comparison means anything.
    """

    spread: float
    n_experts_chosen: int
    walk_difference: float
    native_kl: float
    same_bits: bool
    peer_kl: float | None = None
    peer_kl_median: float | None = None
    peer_top1: float | None = None
    peer_agrees: bool | None = None

    def problems(self) -> list[str]:
        """One line for each difference that is larger than rounding."""
        found: list[str] = []
        if self.peer_agrees is False:
            found.append("llama.cpp's logits differ from the reference's: the declaration says something else")
        if not self.walk_difference < WALK_DIFFERENCE:
            found.append(f"the plan differs from the reference by {self.walk_difference:.2g}")
        if not self.native_kl < OWN_KL:
            found.append(f"the engine's KL divergence from the reference is {self.native_kl:.2g}")
        if not self.same_bits:
            found.append("the engine's bits depend on chunks or threads")
        return found


def compare(arch: Arch, path: Path, *, peer: Path | None = None, library: Path | None = None) -> Comparison:
    """Read one file in every way.

    peer: the file that llama.cpp reads, None: it is not asked. That is `path` where llama.cpp knows the architecture;
    else perhaps the same case written under the name of one that computes the same.
    """
    bound = bind(arch, read_gguf(path))
    weights, tokens = FileWeights(bound.paths), prompt(N_TOKENS)
    reference = Reference(bound, weights)
    ours = reference.logits(tokens)
    chosen = {expert for _, ids in reference.routing for expert in ids}
    chunk, small = step_tokens(bound, CHUNK), step_tokens(bound, SMALL_CHUNK)
    table = plan(bound, n_batch=chunk, n_outputs_max=chunk)
    walked = PlanWalk(table, weights).logits(tokens, chunk)
    native = native_logits(table, tokens, chunk, library)
    again = native_logits(table, tokens, small, library, n_threads=1)
    result = Comparison(
        spread=float(ours.std()),
        n_experts_chosen=len(chosen),
        walk_difference=float(np.abs(walked - ours).max()),
        native_kl=float(oracle.kl_divergence(ours, native).max()),
        same_bits=bool(np.array_equal(native, again)),
    )
    if peer is None:
        return result
    theirs = oracle.logits(peer, tokens, n_threads=1)
    divergences = oracle.kl_divergence(theirs, native)
    return msgspec.structs.replace(
        result,
        peer_kl=float(divergences.max()),
        peer_kl_median=float(np.median(divergences)),
        peer_top1=float((theirs.argmax(-1) == native.argmax(-1)).mean()),
        peer_agrees=agree(theirs, ours, bound),
    )


def agree(theirs: Logits, ours: Logits, bound: BoundArch) -> bool:
    """Whether llama.cpp's logits are the reference's, but for the order of float32 sums.

    Where the model has a GELU, the reference is run again with llama.cpp's, a table of half-precision values; a
    rounding that falls the other way is seen by later tokens, so a few of them may differ more.
    """
    if not has_gelu(bound):
        return bool(oracle.kl_divergence(theirs, ours).max() < PEER_KL)
    with half_precision_gelu():
        divergences = oracle.kl_divergence(theirs, Reference(bound, FileWeights(bound.paths)).logits(prompt(N_TOKENS)))
    return bool(np.quantile(divergences, GELU_SHARE) < PEER_KL and divergences.max() < GELU_KL)


def has_gelu(bound: BoundArch) -> bool:
    """Whether an activation of the model is GELU."""
    return any(layer.ffn is not None and _is_gelu(layer.ffn) for layer in bound.layers)


def _is_gelu(ffn: BoundFfn | BoundMoe) -> bool:
    return (ffn.experts if isinstance(ffn, BoundMoe) else ffn).act == "gelu"


@contextmanager
def half_precision_gelu() -> Generator[None]:
    """Inside, the reference's GELU is looked up as llama.cpp's CPU backend does it."""
    exact = ops.gelu_tanh
    ops.gelu_tanh = _rounded(exact)
    try:
        yield
    finally:
        ops.gelu_tanh = exact


def _rounded(function: Callable[[ops.Array], ops.Array]) -> Callable[[ops.Array], ops.Array]:
    def rounded(x: ops.Array) -> ops.Array:
        y = function(x.astype(np.float32).astype(np.float16).astype(np.float64))
        return np.where(x <= -10, 0.0, np.where(x >= 10, x, y.astype(np.float32).astype(np.float16)))

    return rounded
