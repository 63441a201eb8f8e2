"""BoundArch -> ModelPlan: the ops of one step in order, with every buffer and weight placed.

A plan depends on the sizes given to `plan` and on nothing else; equal inputs give equal plans.
"""

from __future__ import annotations

from strata.arch.bound import BoundArch, BoundGqa, BoundLayer, BoundMla
from strata.arch.plan_attention import emit_attention
from strata.arch.plan_builder import PlanBuilder
from strata.arch.plan_ffn import emit_ffn
from strata.arch.plan_linear import emit_norm
from strata.arch.plan_memory import Value
from strata.arch.plan_mixer import emit_mixer
from strata.arch.plan_tables import ModelPlan, Rows

__all__ = ["plan"]


def plan(bound: BoundArch, *, n_batch: int, n_outputs_max: int, n_ctx: int | None = None) -> ModelPlan:
    """Plan steps of up to n_batch tokens, of which up to n_outputs_max give logits.

    n_ctx: the longest context of a sequence, default the model's own; models with two sets of rotary factors choose by
    it. Raises: ValueError for sizes out of range.
    """
    if not 1 <= n_outputs_max <= n_batch:
        raise ValueError(f"n_outputs_max is {n_outputs_max}; accepted: 1 to n_batch ({n_batch})")
    builder = PlanBuilder(bound.n_ctx_train if n_ctx is None else n_ctx)
    x = builder.value(bound.n_embd)
    builder.op("embed", [], [x], [bound.embedding], scale=bound.embedding_scale)
    for layer in bound.layers:
        builder.layer = layer.index
        _emit_layer(builder, x, layer)
    builder.layer = -1
    wanted = builder.value(bound.n_embd, Rows.OUTPUTS)
    builder.op("gather", [x], [wanted], width=bound.n_embd)
    emit_norm(builder, wanted, bound.output_norm, out=wanted)
    logits = builder.value(bound.n_vocab, Rows.OUTPUTS)
    head = bound.head
    builder.op(
        "head", [wanted], [logits], [head.weight, head.bias, head.scale], scale=bound.head_scale, softcap=bound.softcap
    )
    return builder.finish(bound, n_batch, n_outputs_max)


def _emit_layer(builder: PlanBuilder, x: Value, layer: BoundLayer) -> None:
    """One block; x, the residual stream, is updated in place."""
    normed = emit_norm(builder, x, layer.attention_norm)
    mixer = layer.attention
    is_attention = isinstance(mixer, BoundGqa | BoundMla)
    a = emit_attention(builder, normed, mixer) if is_attention else emit_mixer(builder, normed, mixer)
    if layer.post_attention_norm is not None:
        emit_norm(builder, a, layer.post_attention_norm, out=a)
    _add(builder, x, a)
    if layer.ffn_norm is not None:
        normed = emit_norm(builder, x, layer.ffn_norm)
    f = emit_ffn(builder, normed, layer.ffn)
    if layer.post_ffn_norm is not None:
        emit_norm(builder, f, layer.post_ffn_norm, out=f)
    _add(builder, x, f)


def _add(builder: PlanBuilder, x: Value, y: Value) -> None:
    builder.op("add", [x, y], [x], width=x.width, a=1.0, b=1.0)
