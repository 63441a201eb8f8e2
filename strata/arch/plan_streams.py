"""Ops of a residual of several streams: what a sublayer reads, and how its result is added."""

from __future__ import annotations

from strata.arch.bound import BoundLinear, BoundStreamGates, BoundStreams
from strata.arch.plan_builder import PlanBuilder
from strata.arch.plan_linear import emit_linears, emit_norm
from strata.arch.plan_memory import Value
from strata.arch.plan_tables import Act

__all__ = ["emit_stream_sum", "emit_streams", "emit_to_streams"]


def emit_streams(plan: PlanBuilder, x: Value, streams: BoundStreams) -> Value:
    """`count` copies of x."""
    return _repeated(plan, x, streams.count)


def emit_stream_sum(
    plan: PlanBuilder, streams: Value, spec: BoundStreams, gates: BoundStreamGates | BoundLinear
) -> tuple[Value, Value]:
    """What a sublayer reads, and the logits with which its result is added (at the end those it reads with)."""
    flat = emit_norm(plan, streams, spec.norm)
    linears = [gates] if isinstance(gates, BoundLinear) else [gates.read, gates.write]
    logits = emit_linears(plan, flat, linears)
    weighted = _weighted(plan, streams, logits[0], spec.count, 1.0, spec.eps)
    n_embd = streams.width // spec.count
    x = plan.value(n_embd, streams.rows)
    plan.op("copy", [weighted], [x], n_head=1, width=n_embd)
    for k in range(1, spec.count):
        part = plan.value(n_embd, streams.rows)
        plan.op("copy", [weighted], [part], n_head=1, width=n_embd, in_offset=k * n_embd)
        plan.op("add", [x, part], [x], width=n_embd, a=1.0, b=1.0)
    return x, logits[-1]


def emit_to_streams(plan: PlanBuilder, streams: Value, f: Value, logits: Value, spec: BoundStreams) -> None:
    """Add a sublayer's result to every stream, in place."""
    copies = _repeated(plan, f, spec.count)
    change = _weighted(plan, copies, logits, spec.count, spec.magnitude, spec.eps)
    plan.op("add", [streams, change], [streams], width=streams.width, a=1.0, b=1.0)


def _weighted(plan: PlanBuilder, vectors: Value, logits: Value, count: int, magnitude: float, eps: float) -> Value:
    """(magnitude * sigmoid(logit) + eps) * vector, for each of the count vectors."""
    out = plan.value(vectors.width, vectors.rows)
    plan.op("mul", [vectors, logits], [out], width=vectors.width, n_vec=count, act=int(Act.SIGMOID))
    plan.op("add", [out, vectors], [out], width=out.width, a=magnitude, b=eps)
    return out


def _repeated(plan: PlanBuilder, x: Value, count: int) -> Value:
    out = plan.value(x.width * count, x.rows)
    plan.op("copy", [x], [out], n_head=count, width=x.width, out_stride=x.width)
    return out
