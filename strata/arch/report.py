"""Human views of a binding and of a plan, for `strata inspect` and `strata plan`. Text only; no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from strata.arch.bind import Binding
from strata.arch.bound import BoundArch, BoundFfn, BoundGqa, BoundLayer, BoundMixer, BoundMla, BoundMoe
from strata.arch.bound_mixer import BoundGatedDelta, BoundKda, BoundMamba, BoundMamba2, BoundShortConv
from strata.arch.plan_tables import ModelPlan

__all__ = ["binding_report", "kv_bytes_per_token", "plan_summary"]

KV_VALUE_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}
_SHOWN_NAMES = 6


def binding_report(binding: Binding) -> str:
    """Dimensions, layers, and what became of every tensor of the file."""
    bound = binding.bound
    lines = [
        f"{bound.file}",
        f"  architecture   {bound.name}",
        f"  shards         {len(bound.paths)}",
        f"  n_layer        {bound.n_layer}",
        f"  n_embd         {bound.n_embd}",
        f"  n_vocab        {bound.n_vocab}",
        f"  n_ctx          {bound.n_ctx_train}",
        f"  head           {'tied to the token embedding' if bound.tied else 'output.weight'}",
        "layers",
        *(f"  {line}" for line in _layer_lines(bound)),
        f"tensors: {len(binding.used)} used",
        *_counted("ignored", list(bound.ignored), Counter(bound.ignored.values())),
        *_listed("missing", binding.missing),
        *_listed("wrong", binding.wrong),
        *_listed("unexpected", binding.unexpected),
    ]
    if bound.unread_keys:
        lines.append(f"metadata without effect: {', '.join(bound.unread_keys)}")
    return "\n".join(lines)


def plan_summary(plan: ModelPlan) -> str:
    """Sizes and op counts of a plan."""
    per_layer = Counter(op.layer for op in plan.ops)
    counts = sorted({per_layer[i] for i in range(plan.n_layer)})
    kinds = Counter(op.kind for op in plan.ops)
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    ops = ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items()))
    kv = ", ".join(f"{name} {kv_bytes_per_token(plan, name):,.0f}" for name in KV_VALUE_BYTES)
    return "\n".join(
        [
            f"weights        {plan.weights_bytes:,} bytes, of which experts {plan.expert_bytes:,}",
            f"activations    {plan.activations_bytes:,} bytes for {plan.n_batch} tokens, {plan.n_outputs_max} outputs",
            f"KV per token   {kv} bytes",
            f"states         {4 * sum(state.n_floats for state in plan.states):,} bytes a sequence",
            f"read per token {plan.read_bytes_per_token:,} bytes of weights",
            f"ops            {len(plan.ops)}, {span} a layer: {ops}",
            f"tables         {len(plan.tensors)} tensors, {len(plan.buffers)} buffers, {len(plan.ropes)} rotary tables,"
            f" {len(plan.expert_sets)} expert sets",
        ]
    )


def kv_bytes_per_token(plan: ModelPlan, kv_type: str) -> float:
    """Bytes that one position takes in all caches. Raises: KeyError for an unknown type."""
    return plan.kv_values_per_token * KV_VALUE_BYTES[kv_type]


def _layer_lines(bound: BoundArch) -> Iterator[str]:
    """One line for each run of layers that are alike."""
    for text, run in groupby(bound.layers, key=_layer_text):
        indices = [layer.index for layer in run]
        which = f"{indices[0]}" if len(indices) == 1 else f"{indices[0]} to {indices[-1]}"
        yield f"{which}: {text}"


def _layer_text(layer: BoundLayer) -> str:
    mixer, parts = layer.attention, list[str]()
    if mixer is not None:
        parts.append(_attention_text(mixer) if isinstance(mixer, BoundGqa | BoundMla) else _mixer_text(mixer))
    if layer.ffn is not None:
        parts.append(_ffn_text(layer.ffn))
    return "; ".join(parts)


def _mixer_text(mixer: BoundMixer) -> str:
    if isinstance(mixer, BoundShortConv):
        return f"short convolution of {mixer.conv.width} channels over {mixer.conv.taps} tokens"
    if isinstance(mixer, BoundGatedDelta):
        return f"gated delta net, {mixer.n_v}/{mixer.n_k} heads of {mixer.head}"
    if isinstance(mixer, BoundKda):
        return f"KDA, {mixer.n_head} heads of {mixer.head}"
    if isinstance(mixer, BoundMamba):
        return f"Mamba, {mixer.conv.width} channels of {mixer.n_state} states"
    if isinstance(mixer, BoundMamba2):
        return f"Mamba 2, {mixer.n_head} heads of {mixer.head} with {mixer.n_state} states, {mixer.n_group} groups"
    return f"lightning attention, {mixer.n_head} heads of {mixer.head}"


def _attention_text(a: BoundGqa | BoundMla) -> str:
    if isinstance(a, BoundMla):
        form = "absorbed" if a.kv_b is None else "with attn_kv_b"
        best = f", best {a.indexer.top_k} keys by {a.indexer.n_head} heads of {a.indexer.width}" if a.indexer else ""
        window = f", window {a.window}" if a.window else ""
        best = f", keys of layer {a.choice_of}" if a.indexer is None and a.choice_of >= 0 else best
        heads = f"{a.n_head} heads of {a.k_mla} (rotated {a.n_rot}) and {a.v_mla}"
        return f"MLA {form}, {heads}, latent {a.kv_rank}{best}{window}"
    window = f", window {a.window}" if a.window else ""
    sinks = ", sinks" if a.sinks is not None else ""
    return f"GQA {a.n_head}/{a.n_head_kv} heads of {a.head_k}{window}{sinks}"


def _ffn_text(ffn: BoundFfn | BoundMoe) -> str:
    if not isinstance(ffn, BoundMoe):
        return f"dense {ffn.act} {ffn.width}"
    router = ffn.router
    shared = f", shared {ffn.shared.width}" if ffn.shared is not None else ""
    groups = f", {router.n_group_used} of {router.n_group} groups" if router.n_group > 1 else ""
    return (
        f"{router.n_used} of {router.n_expert} experts {ffn.experts.act} {ffn.experts.width}"
        f" by {router.scores}{groups}{shared}"
    )


def _counted(title: str, names: list[str], reasons: Counter[str]) -> Iterable[str]:
    if not names:
        return
    yield f"  {title} {len(names)}:"
    for reason, count in reasons.items():
        yield f"    {count} {reason}"


def _listed(title: str, names: tuple[str, ...]) -> Iterable[str]:
    if not names:
        return
    yield f"  {title} {len(names)}:"
    yield from (f"    {name}" for name in names[:_SHOWN_NAMES])
    if len(names) > _SHOWN_NAMES:
        yield f"    and {len(names) - _SHOWN_NAMES} more"
