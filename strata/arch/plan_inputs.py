"""Ops of what layers get of the token besides the stream."""

from __future__ import annotations

import math

from strata.arch.bound import BoundLayerInput, BoundTokenInputs
from strata.arch.plan_builder import PlanBuilder
from strata.arch.plan_linear import emit_linears, emit_norm, emit_norm_heads
from strata.arch.plan_memory import Value
from strata.arch.plan_tables import Glu

__all__ = ["emit_layer_input", "emit_token_inputs"]


def emit_token_inputs(plan: PlanBuilder, x: Value, inputs: BoundTokenInputs) -> Value:
    """One vector for each layer, in order, of the embedded token x."""
    made = emit_linears(plan, x, [inputs.projection])[0]
    plan.op("add", [made], [made], width=made.width, a=1.0 / math.sqrt(x.width))
    emit_norm_heads(plan, made, made, inputs.norm, made.width // inputs.width, inputs.width)
    own = plan.value(made.width)
    plan.op("embed", [], [own], [inputs.embedding], scale=math.sqrt(inputs.width))
    plan.op("add", [made, own], [made], width=made.width, a=math.sqrt(0.5), b=math.sqrt(0.5))
    return made


def emit_layer_input(plan: PlanBuilder, x: Value, inputs: Value, part: BoundLayerInput, index: int) -> None:
    """Add what a layer makes of its vector to its result x, in place."""
    gate = emit_linears(plan, x, [part.gate])[0]
    own = plan.value(gate.width)
    plan.op("copy", [inputs], [own], n_head=1, width=own.width, in_offset=index * own.width)
    plan.op("glu", [gate, own], [own], kind=int(Glu.GELU), width=own.width)
    out = emit_linears(plan, own, [part.output])[0]
    emit_norm(plan, out, part.norm, out=out)
    plan.op("add", [x, out], [x], width=x.width, a=1.0, b=1.0)
