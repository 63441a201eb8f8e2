"""Ops of one layer's attention, from its normed input to the output projection's result."""

from __future__ import annotations

from strata.arch.bound import BoundGate, BoundGqa, BoundIndexer, BoundMla, BoundTemperature
from strata.arch.plan_builder import PlanBuilder
from strata.arch.plan_linear import emit_linears, emit_norm, emit_norm_heads
from strata.arch.plan_memory import Value
from strata.arch.plan_tables import Act, WindowKind

__all__ = ["emit_attention"]


GATE_ACTS = {"sigmoid": Act.SIGMOID, "softplus": Act.SOFTPLUS}


def emit_attention(plan: PlanBuilder, x: Value, attention: BoundGqa | BoundMla) -> Value:
    """Attention of the normed input x; its result has the model's width."""
    heads = _gqa(plan, x, attention) if isinstance(attention, BoundGqa) else _mla(plan, x, attention)
    out = emit_linears(plan, heads, [attention.output])[0]
    if isinstance(attention, BoundGqa) and attention.output_scale != 1.0:
        plan.op("add", [out], [out], width=out.width, a=attention.output_scale)
    return out


def _gqa(plan: PlanBuilder, x: Value, a: BoundGqa) -> Value:
    gates = [] if a.gate is None else [a.gate.linear]
    own = [linear for linear in (a.k, a.v) if linear is not None]
    q, *rest = emit_linears(plan, x, [a.q, *own, *gates])
    k, v, factors = None, None, rest[len(own) :]
    if a.k is not None:
        k, v = rest[0], _values(plan, rest[0], a) if a.v is None else rest[1]
    if a.query_gate:
        q, gate = _cut_heads(plan, q, a)
        factors.append(gate)
    if a.clamp > 0.0:
        for value in (x for x in (q, k, v) if x is not None):
            plan.op("clamp", [value], [value], width=value.width, limit=a.clamp)
    if not a.qk_norm_after_rope:
        _qk_norms(plan, q, k, a)
    if a.rope is not None:
        table = plan.rope(a.rope)
        plan.op("rope", [q], [q], table=table, n_head=a.n_head, stride=a.head_k)
        if k is not None:
            plan.op("rope", [k], [k], table=table, n_head=a.n_head_kv, stride=a.head_k)
    if a.qk_norm_after_rope:
        _qk_norms(plan, q, k, a)
    if v is not None and a.v_norm is not None:
        emit_norm_heads(plan, v, v, a.v_norm, a.n_head_kv, a.head_v)
    _temperature(plan, q, a.temperature)
    out = plan.value(a.n_head * a.head_v)
    plan.op(
        "attention",
        [q, k, v],
        [out],
        [a.sinks],
        kv_layer=plan.kv_layer(a.n_head_kv, a.head_k, a.head_v) if k is not None else plan.kv_layer_of(a.cache_of),
        n_head=a.n_head,
        window=a.window,
        window_kind=int(WindowKind.CHUNKED if a.chunked else WindowKind.STANDARD),
        causal=int(a.causal),
        scale=a.scale,
        softcap=a.softcap,
    )
    if a.query_gate:
        plan.op("mul", [out, factors[-1]], [out], width=out.width, act=int(Act.SIGMOID))
    if a.gate is not None:
        _gated(plan, out, factors[0], a.gate, a.n_head)
    return out


def _gated(plan: PlanBuilder, heads: Value, factors: Value, gate: BoundGate, n_head: int) -> None:
    n_vec = n_head if gate.by_head else 0
    plan.op("mul", [heads, factors], [heads], width=heads.width, n_vec=n_vec, act=int(GATE_ACTS[gate.act]))


def _cut_heads(plan: PlanBuilder, rows: Value, a: BoundGqa) -> tuple[Value, Value]:
    """The first and the second half of each head's 2 * head_k values."""
    halves = plan.value(a.n_head * a.head_k), plan.value(a.n_head * a.head_k)
    for k, half in enumerate(halves):
        strides = {"in_stride": 2 * a.head_k, "in_offset": k * a.head_k, "out_stride": a.head_k}
        plan.op("copy", [rows], [half], n_head=a.n_head, width=a.head_k, **strides)
    return halves


def _values(plan: PlanBuilder, k: Value, a: BoundGqa) -> Value:
    """The keys as they are now."""
    v = plan.value(k.width)
    plan.op("copy", [k], [v], n_head=a.n_head_kv, width=a.head_k, in_stride=a.head_k, out_stride=a.head_k)
    return v


def _qk_norms(plan: PlanBuilder, q: Value, k: Value | None, a: BoundGqa) -> None:
    for value, norm, n_head in ((q, a.q_norm, a.n_head), (k, a.k_norm, a.n_head_kv)):
        if value is not None and norm is not None:
            n_vec = n_head if a.qk_norm_over == "head" else 1
            emit_norm_heads(plan, value, value, norm, n_vec, value.width // n_vec)


def _mla(plan: PlanBuilder, x: Value, a: BoundMla) -> Value:
    """Queries and the cached row [latent | rotated key part], then one of the two forms."""
    gates = [] if a.gate is None else [a.gate.linear]
    q_latent = None
    if a.q_a is not None and a.q_a_norm is not None and a.q_b is not None:
        q_latent, row, *factors = emit_linears(plan, x, [a.q_a, a.kv_a, *gates])
        q_latent = emit_norm(plan, q_latent, a.q_a_norm)
        q = emit_linears(plan, q_latent, [a.q_b])[0]
    else:
        assert a.q is not None
        q, row, *factors = emit_linears(plan, x, [a.q, a.kv_a, *gates])
    # in place: the row's first kv_rank floats become the normed latent, the rest the rotated key part
    emit_norm_heads(plan, row, row, a.kv_a_norm, n_vec=1, width=a.kv_rank)
    if a.k_norm is not None:
        place = {"in_offset": a.kv_rank, "out_offset": a.kv_rank, "width": a.n_rot}
        plan.op("norm", [row], [row], [a.k_norm.gain, a.k_norm.bias], n_vec=1, eps=a.k_norm.eps, **place)
    if a.rope is not None:
        table = plan.rope(a.rope)
        plan.op("rope", [row], [row], table=table, n_head=1, stride=a.n_rot, offset=a.kv_rank)
        plan.op("rope", [q], [q], table=table, n_head=a.n_head, stride=a.k_mla, offset=a.k_mla - a.n_rot)
    if a.indexer is not None:
        assert q_latent is not None
        plan.choices[plan.layer] = _chosen_keys(plan, x, q_latent, a.indexer)
    out = _mla_absorbed(plan, q, row, a) if a.kv_b is None else _mla_unfactored(plan, q, row, a)
    if a.gate is not None:
        _gated(plan, out, factors[0], a.gate, a.n_head)
    return out


def _chosen_keys(plan: PlanBuilder, x: Value, q_latent: Value, a: BoundIndexer) -> Value:
    """The positions that the attention reads: their number, then top_k of them."""
    q = emit_linears(plan, q_latent, [a.q])[0]
    k, weights = emit_linears(plan, x, [a.k, a.weights])
    emit_norm_heads(plan, k, k, a.k_norm, n_vec=1, width=a.width)
    table = plan.rope(a.rope)
    plan.op("rope", [q], [q], table=table, n_head=a.n_head, stride=a.width, offset=a.rotated_first)
    plan.op("rope", [k], [k], table=table, n_head=1, stride=a.width, offset=a.rotated_first)
    chosen = plan.value(1 + a.top_k)
    cache = plan.kv_layer(1, a.width, a.width, v_in_k=True)
    plan.op("index", [q, k, weights], [chosen], kv_layer=cache, n_head=a.n_head, top_k=a.top_k)
    return chosen


def _temperature(plan: PlanBuilder, q: Value, t: BoundTemperature | None) -> None:
    if t is not None:
        plan.op("temperature", [q], [q], width=q.width, length=t.length, offset=t.offset, scale=t.scale)


def _mla_absorbed(plan: PlanBuilder, q: Value, row: Value, a: BoundMla) -> Value:
    """Attention over the cached rows themselves: queries are moved into the latent space, results out of it."""
    nope = a.k_mla - a.n_rot
    q_latent = plan.value(a.n_head * row.width)
    plan.op("head_linear", [q], [q_latent], [a.k_b], n_head=a.n_head, in_stride=a.k_mla, out_stride=row.width)
    plan.op(
        "copy",
        [q],
        [q_latent],
        n_head=a.n_head,
        width=a.n_rot,
        in_stride=a.k_mla,
        in_offset=nope,
        out_stride=row.width,
        out_offset=a.kv_rank,
    )
    _temperature(plan, q_latent, a.temperature)
    latent = plan.value(a.n_head * a.kv_rank)
    plan.op(
        "attention",
        [q_latent, row, None, plan.choices[a.choice_of] if a.choice_of >= 0 else None],
        [latent],
        [a.sinks],
        kv_layer=plan.kv_layer(1, row.width, a.kv_rank, v_in_k=True),
        n_head=a.n_head,
        window=a.window,
        window_kind=int(WindowKind.CHUNKED if a.chunked else WindowKind.STANDARD),
        causal=1,
        scale=a.scale,
    )
    out = plan.value(a.n_head * a.v_mla)
    plan.op("head_linear", [latent], [out], [a.v_b], n_head=a.n_head, in_stride=a.kv_rank, out_stride=a.v_mla)
    return out


def _mla_unfactored(plan: PlanBuilder, q: Value, row: Value, a: BoundMla) -> Value:
    """Ordinary attention of n_head heads; a head of attn_kv_b's result is [key without rotation | value]."""
    assert a.kv_b is not None
    nope = a.k_mla - a.n_rot
    latent = plan.value(a.kv_rank)
    plan.op("copy", [row], [latent], n_head=1, width=a.kv_rank)
    kv = emit_linears(plan, latent, [a.kv_b])[0]
    k, v = plan.value(a.n_head * a.k_mla), plan.value(a.n_head * a.v_mla)
    pair = nope + a.v_mla
    plan.op("copy", [kv], [k], n_head=a.n_head, width=nope, in_stride=pair, out_stride=a.k_mla)
    plan.op(
        "copy",
        [row],
        [k],
        n_head=a.n_head,
        width=a.n_rot,
        in_offset=a.kv_rank,
        out_stride=a.k_mla,
        out_offset=nope,
    )
    plan.op("copy", [kv], [v], n_head=a.n_head, width=a.v_mla, in_stride=pair, in_offset=nope, out_stride=a.v_mla)
    _temperature(plan, q, a.temperature)
    out = plan.value(a.n_head * a.v_mla)
    plan.op(
        "attention",
        [q, k, v],
        [out],
        [a.sinks],
        kv_layer=plan.kv_layer(a.n_head, a.k_mla, a.v_mla),
        n_head=a.n_head,
        causal=1,
        scale=a.scale,
    )
    return out
