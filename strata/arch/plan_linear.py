"""Ops that every part of a layer uses: projections and norms."""

from __future__ import annotations

from strata.arch.bound import BoundLinear, BoundNorm
from strata.arch.plan_builder import N_LINEAR, PlanBuilder
from strata.arch.plan_memory import Value
from strata.arch.plan_tables import NormKind

__all__ = ["emit_linears", "emit_norm", "emit_norm_heads"]

NORM_KINDS = {"rms": NormKind.RMS, "layer": NormKind.LAYER}


def emit_linears(plan: PlanBuilder, x: Value, linears: list[BoundLinear]) -> list[Value]:
    """Up to four projections of one input in one op, which rounds its activations once."""
    assert 1 <= len(linears) <= N_LINEAR
    outs = [plan.value(linear.weight.n_rows, x.rows) for linear in linears]
    pad = [None] * (N_LINEAR - len(linears))
    weights = [linear.weight for linear in linears] + pad
    biases = [linear.bias for linear in linears] + pad
    scales = [linear.scale for linear in linears] + pad
    plan.op("linear", [x], outs, [*weights, *biases, *scales], n=len(linears))
    return outs


def emit_norm(plan: PlanBuilder, x: Value, norm: BoundNorm, out: Value | None = None) -> Value:
    """Norm of the whole row."""
    out = plan.value(x.width, x.rows) if out is None else out
    emit_norm_heads(plan, x, out, norm, n_vec=1, width=x.width)
    return out


def emit_norm_heads(plan: PlanBuilder, x: Value, out: Value, norm: BoundNorm, n_vec: int, width: int) -> None:
    """Norm of n_vec vectors of `width`, one after the other from the row's start."""
    kind = int(NORM_KINDS[norm.kind])
    stride = width if n_vec > 1 else 0
    plan.op(
        "norm",
        [x],
        [out],
        [norm.gain, norm.bias],
        kind=kind,
        n_vec=n_vec,
        width=width,
        in_stride=stride,
        out_stride=stride,
        eps=norm.eps,
    )
