"""Ops of one layer's FFN: dense, or routed experts with their router and shared expert."""

from __future__ import annotations

from typing import Any, NamedTuple

from strata.arch.bound import BoundChunks, BoundExperts, BoundFfn, BoundLinear, BoundMoe, BoundRouter
from strata.arch.plan_builder import PlanBuilder
from strata.arch.plan_linear import emit_linears, emit_norm
from strata.arch.plan_memory import Value
from strata.arch.plan_tables import Glu, Scores

__all__ = ["emit_dense", "emit_logits", "emit_moe"]

GATED = {
    "silu": Glu.SILU,
    "gelu": Glu.GELU,
    "relu": Glu.RELU,
    "swiglu-oai": Glu.SWIGLU_OAI,
    "silu-early": Glu.SILU_CLAMP_EARLY,
    "silu-late": Glu.SILU_CLAMP_LATE,
    "situ": Glu.SITU,
}
UNGATED = {"silu": Glu.UP_SILU, "gelu": Glu.UP_GELU, "relu-sqr": Glu.UP_RELU_SQR}
SCORES = {
    "softmax": Scores.SOFTMAX,
    "sigmoid": Scores.SIGMOID,
    "softmax-weight": Scores.SOFTMAX_WEIGHT,
    "sqrt-softplus": Scores.SQRT_SOFTPLUS,
}
OAI_SLOPE, OAI_LIMIT = 1.702, 7.0
WEIGHT_SUM_MIN = 2.0**-14


def _glu_limits(ffn: BoundFfn | BoundExperts) -> tuple[float, float]:
    return (OAI_SLOPE, OAI_LIMIT) if ffn.act == "swiglu-oai" else (ffn.limit, ffn.limit_up)


def emit_dense(plan: PlanBuilder, x: Value, ffn: BoundFfn) -> Value:
    """A dense FFN of the normed input x; its result has the model's width."""
    gates = [] if ffn.gate is None else [ffn.gate]
    *gate, up = emit_linears(plan, x, [*gates, ffn.up])
    p0, p1 = _glu_limits(ffn)
    kind = int((GATED if gates else UNGATED)[ffn.act])
    plan.op("glu", [*(gate or [None]), up], [up], kind=kind, width=up.width, p0=p0, p1=p1)
    return emit_linears(plan, up, [ffn.down])[0]


def emit_logits(plan: PlanBuilder, x: Value, router: BoundRouter) -> Value:
    """The router's logits of the stream x, for routers that do not read the experts' input."""
    if router.norm is not None:
        x = emit_norm(plan, x, router.norm)
        plan.op("add", [x], [x], width=x.width, a=router.input_scale)
    return emit_linears(plan, x, [router.logits])[0]


def emit_moe(plan: PlanBuilder, x: Value, moe: BoundMoe, logits: Value | None) -> Value:
    """Routed and shared experts of the normed input x. logits: the router's, computed from x where None."""
    router, experts = moe.router, moe.experts
    if logits is None:
        logits = emit_linears(plan, x, [router.logits])[0]
    selection = _selection(plan, logits, router)
    shared = emit_dense(plan, x, moe.shared) if moe.shared is not None else None
    gate = emit_linears(plan, x, [moe.shared_gate])[0] if moe.shared_gate is not None else None
    inner = x if moe.latent_down is None else emit_linears(plan, x, [moe.latent_down])[0]
    out = _experts(plan, inner, selection, experts, router.n_expert, router.n_used)
    beside = [] if moe.latent_up is not None else [shared, gate]
    plan.op(
        "combine",
        [out.rows, selection, *beside],
        [out.sum],
        n_used=router.n_used,
        width=out.sum.width,
        unit_weights=int(experts.weight_on_input),
    )
    if moe.latent_up is not None:
        if moe.latent_norm is not None:
            emit_norm(plan, out.sum, moe.latent_norm, out=out.sum)
        return _out_of_latent(plan, out.sum, moe.latent_up, shared)
    if moe.sum_scale != 1.0:
        plan.op("add", [out.sum], [out.sum], width=out.sum.width, a=moe.sum_scale)
    return out.sum if moe.chunks is None else _chunks(plan, out.sum, logits, router, moe.chunks)


def _out_of_latent(plan: PlanBuilder, routed: Value, latent_up: BoundLinear, shared: Value | None) -> Value:
    out = emit_linears(plan, routed, [latent_up])[0]
    if shared is not None:
        plan.op("add", [out, shared], [out], width=out.width, a=1.0, b=1.0)
    return out


class _Outputs(NamedTuple):
    """One row for each chosen expert, and the place of their sum."""

    rows: Value
    sum: Value


def _experts(
    plan: PlanBuilder, x: Value, selection: Value, experts: BoundExperts, n_expert: int, n_used: int
) -> _Outputs:
    index = plan.expert_set(experts, _set_numbers(plan.layer, experts, n_expert, n_used))
    n_out = experts.down.n_rows
    rows = plan.value(n_used * n_out)
    plan.op("experts", [x, selection], [rows], set=index)
    return _Outputs(rows, plan.value(n_out))


def _chunks(plan: PlanBuilder, m: Value, logits: Value, router: BoundRouter, chunks: BoundChunks) -> Value:
    """m plus the scaled result of the groups' experts for m."""
    selection = plan.value(2 * chunks.n_used)
    plan.op(
        "router",
        [logits],
        [selection],
        n_expert=router.n_expert,
        n_used=chunks.n_used,
        scores=int(Scores.SOFTMAX),
        select_logits=1,
        chunk=chunks.group,
        normalize=1,
        scale=1.0,
        norm_min=WEIGHT_SUM_MIN,
    )
    out = _experts(plan, m, selection, chunks.experts, router.n_expert // chunks.group, chunks.n_used)
    plan.op("combine", [out.rows, selection], [out.sum], n_used=chunks.n_used, width=m.width)
    plan.op("add", [m, out.sum], [m], width=m.width, a=1.0, b=chunks.scale)
    return m


def _selection(plan: PlanBuilder, logits: Value, router: BoundRouter) -> Value:
    selection = plan.value(2 * router.n_used)
    plan.op(
        "router",
        [logits],
        [selection],
        [router.select_bias],
        n_expert=router.n_expert,
        n_used=router.n_used,
        scores=int(SCORES[router.scores]),
        n_group=router.n_group,
        n_group_used=router.n_group_used,
        normalize=int(router.normalize),
        select_logits=int(router.select_logits),
        scale=router.scale,
        norm_min=WEIGHT_SUM_MIN if router.normalize else 0.0,
    )
    return selection


def _set_numbers(layer: int, experts: BoundExperts, n_expert: int, n_used: int) -> dict[str, Any]:
    p0, p1 = _glu_limits(experts)
    kinds = UNGATED if experts.gate is None else GATED
    return {
        "layer": layer,
        "n_expert": n_expert,
        "n_used": n_used,
        "glu": int(kinds[experts.act]),
        "n_in": experts.up.n_cols,
        "n_ff": experts.width,
        "n_out": experts.down.n_rows,
        "weight_on_input": int(experts.weight_on_input),
        "p0": p0,
        "p1": p1,
    }
