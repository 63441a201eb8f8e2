"""Ops of one layer's recurrent mixer, from its normed input to the output projection's result."""

from __future__ import annotations

import math

from strata.arch.bound_mixer import (
    BoundConv,
    BoundGatedDelta,
    BoundKda,
    BoundLightning,
    BoundMamba,
    BoundMamba2,
    BoundMixer,
    BoundShortConv,
)
from strata.arch.plan_builder import PlanBuilder
from strata.arch.plan_linear import emit_linears, emit_norm, emit_norm_heads
from strata.arch.plan_memory import Value
from strata.arch.plan_tables import Act, Glu, NormKind

__all__ = ["emit_mixer"]


def emit_mixer(plan: PlanBuilder, x: Value, mixer: BoundMixer) -> Value:
    """The mixer of the normed input x; its result has the model's width."""
    if isinstance(mixer, BoundShortConv):
        inner = _short_conv(plan, x, mixer)
    elif isinstance(mixer, BoundGatedDelta):
        inner = _gated_delta(plan, x, mixer)
    elif isinstance(mixer, BoundKda):
        inner = _kda(plan, x, mixer)
    elif isinstance(mixer, BoundMamba):
        inner = _mamba(plan, x, mixer)
    else:
        inner = _mamba2(plan, x, mixer) if isinstance(mixer, BoundMamba2) else _lightning(plan, x, mixer)
    return emit_linears(plan, inner, [mixer.output])[0]


# ---- parts


def _conv(plan: PlanBuilder, x: Value, conv: BoundConv, act: Act, out: Value | None = None, offset: int = 0) -> Value:
    out = plan.value(conv.width) if out is None else out
    plan.op(
        "conv",
        [x],
        [out],
        [conv.weight, conv.bias],
        state=plan.state((conv.taps - 1) * conv.width),
        width=conv.width,
        taps=conv.taps,
        act=int(act),
        out_offset=offset,
    )
    return out


def _l2_heads(plan: PlanBuilder, x: Value, n_vec: int, width: int, eps: float) -> None:
    """The first n_vec vectors of the row, in place."""
    strides = {"in_stride": width, "out_stride": width}
    plan.op("norm", [x], [x], kind=int(NormKind.L2), n_vec=n_vec, width=width, eps=eps, **strides)


def _silu_gated(plan: PlanBuilder, gate: Value, x: Value) -> Value:
    plan.op("glu", [gate, x], [x], kind=int(Glu.SILU), width=x.width)
    return x


def _sigmoid_gated(plan: PlanBuilder, gate: Value, x: Value) -> Value:
    plan.op("mul", [x, gate], [x], width=x.width, act=int(Act.SIGMOID))
    return x


def _pick(plan: PlanBuilder, x: Value, out: Value, n: int, span: range, place: int = 0) -> None:
    """The floats `span` of each of the n equal parts of x, next to each other in out from `place` on."""
    strides = {"in_stride": x.width // n, "out_stride": len(span)}
    plan.op("copy", [x], [out], n_head=n, width=len(span), in_offset=span.start, out_offset=place, **strides)


# ---- mixers


def _short_conv(plan: PlanBuilder, x: Value, m: BoundShortConv) -> Value:
    b, c, v = emit_linears(plan, x, [m.b, m.c, m.x])
    plan.op("mul", [v, b], [v], width=v.width)
    out = _conv(plan, v, m.conv, Act.NONE)
    plan.op("mul", [out, c], [out], width=out.width)
    return out


def _gated_delta(plan: PlanBuilder, x: Value, m: BoundGatedDelta) -> Value:
    qkv, z, a, b = _delta_inputs(plan, x, m)
    rows = _conv(plan, qkv, m.conv, Act.SILU)
    _l2_heads(plan, rows, 2 * m.n_k, m.head, m.l2_eps)
    out = plan.value(m.n_v * m.head)
    plan.op(
        "delta",
        [rows, a, b],
        [out],
        [m.decay, m.decay_bias],
        state=plan.state(m.n_v * m.head * m.head),
        n_k=m.n_k,
        n_v=m.n_v,
        head_k=m.head,
        head_v=m.head,
        tiled=int(m.tiled),
        scale=1.0 / math.sqrt(m.head),
    )
    emit_norm_heads(plan, out, out, m.norm, m.n_v, m.head)
    return _silu_gated(plan, z, out)


def _delta_inputs(plan: PlanBuilder, x: Value, m: BoundGatedDelta) -> tuple[Value, Value, Value, Value]:
    """qkv, z, a, b, whichever way the file groups their rows."""
    ratio, n_keys = m.n_v // m.n_k, m.n_k * m.head
    if m.qkv is not None and m.z is not None:
        qkv, z = emit_linears(plan, x, [m.qkv, m.z])
    else:
        assert m.mixed is not None
        mixed = emit_linears(plan, x, [m.mixed])[0]
        qkv, z = plan.value(m.conv.width), plan.value(m.n_v * m.head)
        _pick(plan, mixed, qkv, m.n_k, range(m.head))
        _pick(plan, mixed, qkv, m.n_k, range(m.head, 2 * m.head), n_keys)
        _pick(plan, mixed, qkv, m.n_k, range(2 * m.head, (2 + ratio) * m.head), 2 * n_keys)
        _pick(plan, mixed, z, m.n_k, range((2 + ratio) * m.head, (2 + 2 * ratio) * m.head))
    if m.a is not None and m.b is not None:
        a, b = emit_linears(plan, x, [m.a, m.b])
    else:
        assert m.ba is not None
        ba = emit_linears(plan, x, [m.ba])[0]
        a, b = plan.value(m.n_v), plan.value(m.n_v)
        _pick(plan, ba, b, m.n_k, range(ratio))
        _pick(plan, ba, a, m.n_k, range(ratio, 2 * ratio))
    return qkv, z, a, b


def _kda(plan: PlanBuilder, x: Value, m: BoundKda) -> Value:
    width = m.n_head * m.head
    q, k, v, f_low = emit_linears(plan, x, [m.q, m.k, m.v, m.f_a])
    beta, g_low = emit_linears(plan, x, [m.beta, m.g_a])
    rows = plan.value(3 * width)
    for part, (value, conv) in enumerate(zip((q, k, v), m.convs, strict=True)):
        _conv(plan, value, conv, Act.SILU, rows, part * width)
    _l2_heads(plan, rows, 2 * m.n_head, m.head, m.l2_eps)
    a = f_low if m.f_b is None else emit_linears(plan, f_low, [m.f_b])[0]
    out = plan.value(width)
    plan.op(
        "delta",
        [rows, a, beta],
        [out],
        [m.decay, m.decay_bias],
        state=plan.state(m.n_head * m.head * m.head),
        n_k=m.n_head,
        n_v=m.n_head,
        head_k=m.head,
        head_v=m.head,
        per_row=1,
        scale=1.0 / math.sqrt(m.head),
        bound=m.bound,
        negated=int(m.negated),
    )
    emit_norm_heads(plan, out, out, m.norm, m.n_head, m.head)
    return _sigmoid_gated(plan, g_low if m.g_b is None else emit_linears(plan, g_low, [m.g_b])[0], out)


def _mamba(plan: PlanBuilder, x: Value, m: BoundMamba) -> Value:
    rows, z = emit_linears(plan, x, [m.x, m.z])
    rows = _conv(plan, rows, m.conv, Act.SILU)
    low, b, c = emit_linears(plan, rows, [m.low, m.b, m.c])
    for value, norm in ((low, m.low_norm), (b, m.b_norm), (c, m.c_norm)):
        emit_norm(plan, value, norm, out=value)
    dt = emit_linears(plan, low, [m.dt])[0]
    out = plan.value(rows.width)
    plan.op(
        "ssm_channels",
        [rows, dt, b, c],
        [out],
        [m.decay, m.skip, m.dt_bias],
        state=plan.state(rows.width * m.n_state),
        width=rows.width,
        n_state=m.n_state,
    )
    return _silu_gated(plan, z, out)


def _mamba2(plan: PlanBuilder, x: Value, m: BoundMamba2) -> Value:
    z, xbc, dt = emit_linears(plan, x, [m.z, m.xbc, m.dt])
    rows = _conv(plan, xbc, m.conv, Act.SILU)
    out = plan.value(m.n_head * m.head)
    plan.op(
        "ssm_heads",
        [rows, dt],
        [out],
        [m.decay, m.skip, m.dt_bias],
        state=plan.state(m.n_head * m.n_state * m.head),
        n_head=m.n_head,
        head=m.head,
        n_group=m.n_group,
        n_state=m.n_state,
    )
    out = _silu_gated(plan, z, out)
    width = out.width // m.n_group
    strides = {"in_stride": width, "out_stride": width, "gain_per_vec": 1}
    plan.op(
        "norm",
        [out],
        [out],
        [m.norm.gain],
        kind=int(NormKind.RMS),
        n_vec=m.n_group,
        width=width,
        eps=m.norm.eps,
        **strides,
    )
    return out


def _lightning(plan: PlanBuilder, x: Value, m: BoundLightning) -> Value:
    qkv, gate = emit_linears(plan, x, [m.qkv, m.gate])
    plan.op("glu", [None, qkv], [qkv], kind=int(Glu.UP_SILU), width=qkv.width)
    out = plan.value(m.n_head * m.head)
    plan.op(
        "lightning",
        [qkv],
        [out],
        state=plan.state(m.n_head * m.head * m.head),
        n_head=m.n_head,
        head=m.head,
        slope=m.slope,
    )
    emit_norm(plan, out, m.norm, out=out)
    return _sigmoid_gated(plan, gate, out)
