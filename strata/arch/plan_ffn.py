"""Ops of one layer's FFN: dense, or routed experts with their router and shared expert."""

from __future__ import annotations

from typing import Any

from strata.arch.bound import BoundExperts, BoundFfn, BoundMoe, BoundRouter
from strata.arch.plan_builder import PlanBuilder
from strata.arch.plan_linear import emit_linears
from strata.arch.plan_memory import Value
from strata.arch.plan_tables import Glu, Scores

__all__ = ["emit_ffn"]

GATED = {"silu": Glu.SILU, "gelu": Glu.GELU, "swiglu-oai": Glu.SWIGLU_OAI}
UNGATED = {"silu": Glu.UP_SILU, "gelu": Glu.UP_GELU}
SCORES = {
    "softmax": Scores.SOFTMAX,
    "sigmoid": Scores.SIGMOID,
    "softmax-weight": Scores.SOFTMAX_WEIGHT,
    "sqrt-softplus": Scores.SQRT_SOFTPLUS,
}
OAI_SLOPE, OAI_LIMIT = 1.702, 7.0
WEIGHT_SUM_MIN = 2.0**-14


def _glu_limits(act: str) -> tuple[float, float]:
    return (OAI_SLOPE, OAI_LIMIT) if act == "swiglu-oai" else (0.0, 0.0)


def emit_ffn(plan: PlanBuilder, x: Value, ffn: BoundFfn | BoundMoe) -> Value:
    """The FFN of the normed input x; its result has the model's width."""
    if isinstance(ffn, BoundFfn):
        return _dense(plan, x, ffn)
    return _moe(plan, x, ffn)


def _dense(plan: PlanBuilder, x: Value, ffn: BoundFfn) -> Value:
    gate, up = emit_linears(plan, x, [ffn.gate, ffn.up])
    p0, p1 = _glu_limits(ffn.act)
    plan.op("glu", [gate, up], [up], kind=int(GATED[ffn.act]), width=up.width, p0=p0, p1=p1)
    return emit_linears(plan, up, [ffn.down])[0]


def _moe(plan: PlanBuilder, x: Value, moe: BoundMoe) -> Value:
    router = moe.router
    selection = _router(plan, x, router)
    shared = _dense(plan, x, moe.shared) if moe.shared is not None else None
    gate = emit_linears(plan, x, [moe.shared_gate])[0] if moe.shared_gate is not None else None
    index = plan.expert_set(moe.experts, _set_numbers(plan.layer, moe.experts, router))
    n_out = moe.experts.down.n_rows
    rows = plan.value(router.n_used * n_out)
    plan.op("experts", [x, selection], [rows], set=index)
    out = plan.value(n_out)
    plan.op("combine", [rows, selection, shared, gate], [out], n_used=router.n_used, width=n_out)
    return out


def _router(plan: PlanBuilder, x: Value, router: BoundRouter) -> Value:
    logits = emit_linears(plan, x, [router.logits])[0]
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
        scale=router.scale,
        norm_min=WEIGHT_SUM_MIN if router.normalize else 0.0,
    )
    return selection


def _set_numbers(layer: int, experts: BoundExperts, router: BoundRouter) -> dict[str, Any]:
    p0, p1 = _glu_limits(experts.act)
    kinds = UNGATED if experts.gate is None else GATED
    return {
        "layer": layer,
        "n_expert": router.n_expert,
        "n_used": router.n_used,
        "glu": int(kinds[experts.act]),
        "n_in": experts.up.n_cols,
        "n_ff": experts.width,
        "n_out": experts.down.n_rows,
        "weight_on_input": 0,
        "p0": p0,
        "p1": p1,
    }
