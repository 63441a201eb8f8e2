"""Arch + metadata + tensor directory -> BoundArch: every key resolved, every shape checked, every tensor accounted for.

Nothing here reads tensor data. `inspect_binding` collects what `bind` would raise, for `strata inspect`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from strata.arch.bind_attention import AttentionBinder, bind_norm
from strata.arch.bind_ffn import FfnBinder
from strata.arch.bind_inputs import LayerInputBinder
from strata.arch.bind_keys import Keys
from strata.arch.bind_mixer import MixerBinder
from strata.arch.bind_streams import StreamBinder, bind_checkpoints
from strata.arch.bind_tensors import Claims
from strata.arch.bound import BoundArch, BoundCheckpoints, BoundLayer, BoundNorm, ModelFile
from strata.arch.spec import Arch, Dim, Key, Mla
from strata.errors import BindError

__all__ = ["Binding", "bind", "inspect_binding"]

MAX_LAYERS = 512
MAX_WIDTH = 2**20
MIN_DIVISOR = 1e-6
_LISTED_PROBLEMS = 20


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of binding, good or bad. `bound` is complete only when the three problem lists are empty."""

    bound: BoundArch
    used: tuple[str, ...]
    missing: tuple[str, ...]
    wrong: tuple[str, ...]
    unexpected: tuple[str, ...]


class Binders(NamedTuple):
    """What binds the parts of one file's layers. mixer None: no layer is recurrent; streams None: one residual."""

    keys: Keys
    claims: Claims
    attention: AttentionBinder
    mixer: MixerBinder | None
    ffn: FfnBinder
    inputs: LayerInputBinder | None
    streams: StreamBinder | None
    checkpoints: BoundCheckpoints | None


def bind(arch: Arch, file: ModelFile) -> BoundArch:
    """Bind `file` to its architecture.

    Raises: BindError naming the file and each missing, misshapen or unexpected tensor, or the metadata key, its value
    and what is accepted.
    """
    binding = inspect_binding(arch, file)
    problems = [*binding.missing, *binding.wrong, *binding.unexpected]
    if problems:
        more = len(problems) - _LISTED_PROBLEMS
        lines = problems[:_LISTED_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
        raise BindError(f"{binding.bound.file} does not fit architecture {arch.name}:\n  " + "\n  ".join(lines))
    return binding.bound


def inspect_binding(arch: Arch, file: ModelFile) -> Binding:
    """Bind without refusing tensors. Raises: BindError for metadata only."""
    keys = Keys(file, arch.name)
    claims = Claims(file, arch.scales_applied)
    _read_dims(keys, arch)
    ffn = FfnBinder(keys, claims, arch)
    attention = AttentionBinder(keys, claims, arch.attention, arch.norm, ffn.dense)
    mixer = None if arch.recurrent is None else MixerBinder(keys, claims, arch.recurrent, arch.norm)
    inputs = None if arch.layer_inputs is None else LayerInputBinder(keys, claims, arch.layer_inputs, arch.norm)
    streams = None if arch.streams is None else StreamBinder(keys, claims, arch.streams, arch)
    checkpoints = bind_checkpoints(keys, claims, arch)
    binders = Binders(keys, claims, attention, mixer, ffn, inputs, streams, checkpoints)
    layers = tuple(_layer(arch, binders, i) for i in range(keys.dims["n_layer"]))
    parts = {
        "token_inputs": None if inputs is None else inputs.token_inputs(),
        "streams": None if streams is None else streams.streams(),
        "checkpoints": checkpoints,
    }
    bound = msgspec.structs.replace(_whole(arch, keys, claims, layers, file), **parts)
    return Binding(
        bound=bound,
        used=tuple(sorted(claims.used)),
        missing=tuple(claims.missing),
        wrong=tuple(claims.wrong),
        unexpected=tuple(claims.unexpected),
    )


def _read_dims(keys: Keys, arch: Arch) -> None:
    """Dimensions that every architecture has. `n_block` counts next-token blocks too, `n_layer` does not."""
    dims = keys.dims
    dims["n_block"] = keys.integer(Key("block_count"), minimum=1, maximum=MAX_LAYERS)
    n_nextn = keys.integer(Key("nextn_predict_layers", 0))
    if n_nextn and (not arch.nextn or n_nextn >= dims["n_block"]):
        accepted = f"0 to {dims['n_block'] - 1}" if arch.nextn else "0"
        raise keys.error("nextn_predict_layers", n_nextn, accepted)
    dims["n_layer"] = dims["n_block"] - n_nextn
    dims["n_ctx"] = keys.integer(Key("context_length"), minimum=1)
    dims["n_embd"] = keys.integer(Key("embedding_length"), minimum=1, maximum=MAX_WIDTH)
    dims["n_vocab"] = keys.n_vocab()
    _read_heads(keys, arch)
    head_k = Key("attention.key_length", Dim("n_embd", over="n_head"), unset=(0,))
    dims["head_k"] = keys.integer(head_k, minimum=1, maximum=MAX_WIDTH)
    dims["n_ff"] = keys.per_layer_int(Key("feed_forward_length", 0))[0]
    judged = isinstance(arch.attention, Mla) or arch.attention.causal is True
    if judged and not keys.flag(Key("attention.causal", True)):
        raise keys.error("attention.causal", False, "true")


def _read_heads(keys: Keys, arch: Arch) -> None:
    """Head counts of each block; the dimensions are those of the first block that has heads.

    Layers of a hybrid may have none, or another number.
    """
    dims, key, key_kv = keys.dims, Key("attention.head_count"), Key("attention.head_count_kv", Dim("n_head"))
    if arch.recurrent is None and not arch.attention.heads_by_layer:
        dims["n_head"] = keys.integer(key, minimum=1, maximum=MAX_WIDTH)
        dims["n_head_kv"] = keys.integer(key_kv, minimum=1, maximum=dims["n_head"])
        keys.heads = [(dims["n_head"], dims["n_head_kv"])] * dims["n_block"]
        return
    counts = keys.per_layer_int(key, maximum=MAX_WIDTH)
    dims["n_head"] = next((n for n in counts if n > 0), 0)
    if dims["n_head"] == 0:
        raise keys.error(key.name, counts, f"1 to {MAX_WIDTH} in one layer at least")
    counts_kv = keys.per_layer_int(key_kv, maximum=max(counts)) if keys.has(key_kv.name) else counts
    keys.heads = list(zip(counts, counts_kv, strict=True))
    dims["n_head_kv"] = next((n for n in counts_kv if n > 0), dims["n_head"])


def _layer(arch: Arch, binders: Binders, index: int) -> BoundLayer:
    keys, claims, attention, mixer, ffn, inputs, streams, checkpoints = binders
    block, lead, n_embd = arch.block, f"blk.{index}.", keys.dims["n_embd"]

    def norm(stems: str | tuple[str, ...] | None) -> BoundNorm | None:
        if stems is None:
            return None
        names = (stems,) if isinstance(stems, str) else stems
        found = next((stem for stem in names if claims.has(f"{lead}{stem}.weight")), names[0])
        return bind_norm(keys, claims, arch.norm, lead + found, n_embd)

    has_ffn = block.residual != "single" or ffn.has_layer(index)
    mixed = None
    if block.residual != "single" or not has_ffn:
        mixed = mixer.layer(index) if mixer is not None and mixer.has_layer(index) else attention.layer(index)
    attention_mix = None
    if checkpoints is not None and index > 0:
        attention_mix = claims.vector(f"{lead}attn_res_score.weight", n_embd)
    elif checkpoints is not None:
        idle = f"{lead}attn_res_score.weight"
        claims.ignore([idle] if claims.has(idle) else [], "no layer has kept a residual before")
    return BoundLayer(
        index=index,
        attention_norm=bind_norm(keys, claims, arch.norm, lead + block.attention_norm, n_embd),
        attention=mixed,
        ffn=ffn.layer(index) if has_ffn else None,
        ffn_norm=norm(block.ffn_norm),
        post_attention_norm=norm(block.post_attention_norm),
        post_ffn_norm=norm(block.post_ffn_norm),
        beside=ffn.beside(index),
        token_input=None if inputs is None else inputs.layer(index),
        output_scale=claims.optional_vector(f"{lead}layer_output_scale.weight", 1) if block.output_scale else None,
        attention_gates=None if streams is None else streams.gates(index, "attn"),
        ffn_gates=None if streams is None else streams.gates(index, "ffn"),
        attention_mix=attention_mix,
        ffn_mix=None if checkpoints is None else claims.vector(f"{lead}ffn_res_score.weight", n_embd),
    )


def _whole(arch: Arch, keys: Keys, claims: Claims, layers: tuple[BoundLayer, ...], file: ModelFile) -> BoundArch:
    n_embd, n_vocab = keys.dims["n_embd"], keys.dims["n_vocab"]
    tied = arch.head.tied and not claims.has("output.weight")
    head = claims.linear("token_embd" if tied else "output", n_embd, n_vocab)
    if arch.head.bias != "absent":
        head = msgspec.structs.replace(head, bias=claims.present_vector("output.bias", n_vocab, arch.head.bias))
    embedding = claims.matrix("token_embd.weight", n_embd, n_vocab)
    output_norm = bind_norm(keys, claims, arch.norm, arch.head.norm, n_embd)
    head_scale = keys.real(arch.head.scale) if arch.head.scale is not None else 1.0
    if arch.head.divisor is not None:
        head_scale /= keys.real(arch.head.divisor, minimum=MIN_DIVISOR)
    residual_scale = keys.real(arch.block.residual_scale) if arch.block.residual_scale is not None else 1.0
    softcap = keys.real(arch.head.softcap, minimum=0.0) if arch.head.softcap is not None else 0.0
    embedding_scale = 1.0
    if arch.embedding_scale == "sqrt-n_embd":
        embedding_scale = math.sqrt(n_embd)
    elif isinstance(arch.embedding_scale, Key):
        embedding_scale = keys.real(arch.embedding_scale)
    _ignore_nextn(keys, claims, file)
    claims.settle(arch.ignore)
    return BoundArch(
        name=arch.name,
        file=keys.file_name,
        paths=tuple(str(path) for path in file.paths),
        n_layer=keys.dims["n_layer"],
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_ctx_train=keys.dims["n_ctx"],
        embedding=embedding,
        layers=layers,
        output_norm=output_norm,
        head=head,
        tied=tied,
        embedding_scale=embedding_scale,
        residual_scale=residual_scale or 1.0,
        head_scale=head_scale,
        softcap=softcap,
        parallel_residual=arch.block.residual == "parallel",
        normed_residual=arch.block.residual == "normed",
        ignored=dict(sorted(claims.ignored.items())),
        unread_keys=keys.unread(),
    )


def _ignore_nextn(keys: Keys, claims: Claims, file: ModelFile) -> None:
    leads = tuple(f"blk.{i}." for i in range(keys.dims["n_layer"], keys.dims["n_block"]))
    if leads:
        claims.ignore([name for name in file.tensors if name.startswith(leads)], "a next-token block, which is not run")
