"""BoundArch -> ModelPlan: the ops of one step in order, with every buffer and weight placed.

A plan depends on the sizes given to `plan` and on nothing else; equal inputs give equal plans.
"""

from __future__ import annotations

from typing import NamedTuple

from strata.arch.bound import BoundArch, BoundGqa, BoundLayer, BoundMla, BoundMoe, BoundStreams
from strata.arch.plan_attention import emit_attention
from strata.arch.plan_builder import PlanBuilder
from strata.arch.plan_checkpoints import KeptResidual
from strata.arch.plan_ffn import emit_dense, emit_logits, emit_moe
from strata.arch.plan_inputs import emit_layer_input, emit_token_inputs
from strata.arch.plan_linear import emit_norm
from strata.arch.plan_memory import Value
from strata.arch.plan_mixer import emit_mixer
from strata.arch.plan_streams import emit_stream_sum, emit_streams, emit_to_streams
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
    inputs = None if bound.token_inputs is None else emit_token_inputs(builder, x, bound.token_inputs)
    streams = None if bound.streams is None else emit_streams(builder, x, bound.streams)
    kept = None if bound.checkpoints is None else KeptResidual(builder, x, bound.checkpoints, bound.n_layer)
    for layer in bound.layers:
        builder.layer = layer.index
        if kept is not None:
            _emit_checkpoint_layer(builder, kept, layer)
        elif bound.streams is not None and streams is not None:
            _emit_streams_layer(builder, streams, layer, bound.streams)
        elif layer.attention is None or layer.ffn is None:
            _emit_single_layer(builder, x, layer)
        elif bound.normed_residual:
            _emit_normed_layer(builder, x, layer, bound.residual_scale)
        else:
            _emit_layer(builder, x, layer, bound.residual_scale, inputs)
    builder.layer = -1
    if bound.streams is not None and streams is not None:
        x, _ = emit_stream_sum(builder, streams, bound.streams, bound.streams.head)
    if bound.checkpoints is not None and kept is not None:
        x = kept.read(bound.checkpoints.head)
    wanted = builder.value(bound.n_embd, Rows.OUTPUTS)
    builder.op("gather", [x], [wanted], width=bound.n_embd)
    emit_norm(builder, wanted, bound.output_norm, out=wanted)
    logits = builder.value(bound.n_vocab, Rows.OUTPUTS)
    head = bound.head
    builder.op(
        "head", [wanted], [logits], [head.weight, head.bias, head.scale], scale=bound.head_scale, softcap=bound.softcap
    )
    return builder.finish(bound, n_batch, n_outputs_max)


def _emit_layer(builder: PlanBuilder, x: Value, layer: BoundLayer, residual_scale: float, inputs: Value | None) -> None:
    """One block; x, the residual stream, is updated in place."""
    early = _before_attention(builder, x, layer)
    normed = emit_norm(builder, x, layer.attention_norm)
    a = _emit_mixing(builder, normed, layer)
    if layer.post_attention_norm is not None:
        emit_norm(builder, a, layer.post_attention_norm, out=a)
    _add(builder, x, a, residual_scale)
    if layer.ffn_norm is not None:
        normed = emit_norm(builder, x, layer.ffn_norm)
    f = _emit_ffn(builder, x, normed, layer, early)
    if layer.post_ffn_norm is not None:
        emit_norm(builder, f, layer.post_ffn_norm, out=f)
    _add(builder, x, f, residual_scale)
    if inputs is not None and layer.token_input is not None:
        emit_layer_input(builder, x, inputs, layer.token_input, layer.index)
    if layer.output_scale is not None:
        builder.op("scale", [x], [x], [layer.output_scale], width=x.width)


def _emit_single_layer(builder: PlanBuilder, x: Value, layer: BoundLayer) -> None:
    """One block of one part: a mixer, attention or an FFN."""
    normed = emit_norm(builder, x, layer.attention_norm)
    is_ffn = layer.attention is None
    part = _emit_ffn(builder, x, normed, layer, _Early()) if is_ffn else _emit_mixing(builder, normed, layer)
    _add(builder, x, part, 1.0)


def _emit_mixing(builder: PlanBuilder, normed: Value, layer: BoundLayer) -> Value:
    mixer = layer.attention
    assert mixer is not None
    if isinstance(mixer, BoundGqa | BoundMla):
        return emit_attention(builder, normed, mixer)
    return emit_mixer(builder, normed, mixer)


def _emit_normed_layer(builder: PlanBuilder, x: Value, layer: BoundLayer, scale: float) -> None:
    """One block whose sublayers add to their normed inputs, each times `scale`."""
    assert layer.ffn_norm is not None
    normed = emit_norm(builder, x, layer.attention_norm)
    a = _emit_mixing(builder, normed, layer)
    builder.op("add", [normed, a], [x], width=x.width, a=scale, b=1.0)
    normed = emit_norm(builder, x, layer.ffn_norm)
    f = _emit_ffn(builder, x, normed, layer, _Early())
    builder.op("add", [normed, f], [x], width=x.width, a=scale, b=1.0)


def _emit_streams_layer(builder: PlanBuilder, streams: Value, layer: BoundLayer, spec: BoundStreams) -> None:
    """One block of a residual of several streams, which are updated in place."""
    assert layer.attention_gates is not None
    assert layer.ffn_gates is not None
    assert layer.ffn_norm is not None
    x, logits = emit_stream_sum(builder, streams, spec, layer.attention_gates)
    a = _emit_mixing(builder, emit_norm(builder, x, layer.attention_norm), layer)
    emit_to_streams(builder, streams, a, logits, spec)
    x, logits = emit_stream_sum(builder, streams, spec, layer.ffn_gates)
    f = _emit_ffn(builder, x, emit_norm(builder, x, layer.ffn_norm), layer, _Early())
    emit_to_streams(builder, streams, f, logits, spec)


def _emit_checkpoint_layer(builder: PlanBuilder, residual: KeptResidual, layer: BoundLayer) -> None:
    """One block whose sublayers read a mix of kept residuals."""
    assert layer.ffn_norm is not None
    normed = emit_norm(builder, residual.read(layer.attention_mix), layer.attention_norm)
    keeps = residual.keep(layer.index)
    residual.add(_emit_mixing(builder, normed, layer), anew=keeps)
    x = residual.read(layer.ffn_mix)
    residual.add(_emit_ffn(builder, x, emit_norm(builder, x, layer.ffn_norm), layer, _Early()))


class _Early(NamedTuple):
    """What a layer computes from its input before the attention changes the stream."""

    logits: Value | None = None
    routed: Value | None = None


def _before_attention(builder: PlanBuilder, x: Value, layer: BoundLayer) -> _Early:
    if layer.beside is not None and layer.beside.input == "layer":
        beside = layer.beside
        return _Early(routed=emit_moe(builder, emit_norm(builder, x, beside.norm), beside.moe, None))
    if isinstance(layer.ffn, BoundMoe) and layer.ffn.router.input == "layer":
        return _Early(logits=emit_logits(builder, x, layer.ffn.router))
    return _Early()


def _emit_ffn(builder: PlanBuilder, x: Value, normed: Value, layer: BoundLayer, early: _Early) -> Value:
    """The FFN of the normed stream; the experts beside it read the stream x itself, behind their own norm."""
    if isinstance(layer.ffn, BoundMoe):
        logits = emit_logits(builder, x, layer.ffn.router) if layer.ffn.router.input == "residual" else early.logits
        return emit_moe(builder, normed, layer.ffn, logits)
    assert layer.ffn is not None
    f = emit_dense(builder, normed, layer.ffn)
    if layer.beside is None:
        return f
    if layer.beside.post_dense_norm is not None:
        emit_norm(builder, f, layer.beside.post_dense_norm, out=f)
    routed = early.routed
    if routed is None:
        router = layer.beside.moe.router
        logits = emit_logits(builder, x, router) if router.input == "residual" else None
        routed = emit_moe(builder, emit_norm(builder, x, layer.beside.norm), layer.beside.moe, logits)
    if layer.beside.post_experts_norm is not None:
        emit_norm(builder, routed, layer.beside.post_experts_norm, out=routed)
    _add(builder, f, routed, 1.0)
    return f


def _add(builder: PlanBuilder, x: Value, y: Value, scale: float) -> None:
    builder.op("add", [x, y], [x], width=x.width, a=1.0, b=scale)
