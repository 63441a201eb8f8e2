"""Ops of one layer's recurrent mixer, from its normed input to the output projection's result."""

from __future__ import annotations

from strata.arch.bound_mixer import BoundConv, BoundMixer, BoundShortConv
from strata.arch.plan_builder import PlanBuilder
from strata.arch.plan_linear import emit_linears
from strata.arch.plan_memory import Value
from strata.arch.plan_tables import Act

__all__ = ["emit_mixer"]


def emit_mixer(plan: PlanBuilder, x: Value, mixer: BoundMixer) -> Value:
    """The mixer of the normed input x; its result has the model's width."""
    return emit_linears(plan, _short_conv(plan, x, mixer), [mixer.output])[0]


def _conv(plan: PlanBuilder, x: Value, conv: BoundConv, act: Act) -> Value:
    out = plan.value(conv.width)
    plan.op(
        "conv",
        [x],
        [out],
        [conv.weight, conv.bias],
        state=plan.state((conv.taps - 1) * conv.width),
        width=conv.width,
        taps=conv.taps,
        act=int(act),
    )
    return out


def _short_conv(plan: PlanBuilder, x: Value, m: BoundShortConv) -> Value:
    b, c, v = emit_linears(plan, x, [m.b, m.c, m.x])
    plan.op("mul", [v, b], [v], width=v.width)
    out = _conv(plan, v, m.conv, Act.NONE)
    plan.op("mul", [out, c], [out], width=out.width)
    return out
