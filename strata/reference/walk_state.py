"""Ops with a state of the plan interpreter."""

from __future__ import annotations

import numpy as np

from strata.arch.plan_tables import Act, PlanOp
from strata.reference import ops, recurrent
from strata.reference.ops import Array
from strata.reference.walk_base import WalkBase

__all__ = ["StateWalk"]


class StateWalk(WalkBase):
    """Each op reads its state, takes in the step's tokens, and leaves the new state."""

    def _conv(self, op: PlanOp) -> None:
        i, weight = op.i, self._needed(op, 0)
        state = self._state(op, i["taps"] - 1, i["width"])
        x, weight = self._read(op, 0), weight.reshape(i["width"], i["taps"])
        out, state = recurrent.short_conv(x, state, weight, self._vector(op, 1))
        self._keep(op, state)
        out = ops.silu(out) if i.get("act", 0) == Act.SILU else out
        self._check(op, out)
        first = i.get("out_offset", 0)
        self._rows(op.outs[0])[:, first : first + i["width"]] = out

    def _delta(self, op: PlanOp) -> None:
        i, rows = op.i, self._read(op, 0)
        n, n_k, n_v, head_k = len(rows), i["n_k"], i["n_v"], i["head_k"]
        q, k = rows[:, : 2 * n_k * head_k].reshape(n, 2, n_k, head_k).swapaxes(0, 1)
        v = rows[:, 2 * n_k * head_k :].reshape(n, n_v, i["head_v"])
        reads = np.arange(n_v) % n_k if i.get("tiled") else np.arange(n_v) // (n_v // n_k)
        logits = (self._read(op, 1) + self._needed(op, 1)).reshape(n, n_v, -1)
        a, bound = self._needed(op, 0)[None, :, None], op.f.get("bound", 0.0)
        g = bound * ops.sigmoid((-a if i.get("negated") else a) * logits) if bound else a * recurrent.softplus(logits)
        beta = ops.sigmoid(self._read(op, 2))
        state = self._state(op, n_v, head_k, i["head_v"])
        out, state = recurrent.delta_rule((q[:, reads], k[:, reads], v), g, beta, state)
        self._keep(op, state)
        self._write(op, 0, out.reshape(n, -1) * (op.f["scale"] * np.sqrt(head_k)))

    def _ssm_heads(self, op: PlanOp) -> None:
        i, rows = op.i, self._read(op, 0)
        n, n_head, head, n_group = len(rows), i["n_head"], i["head"], i["n_group"]
        group = np.arange(n_head) // (n_head // n_group)
        b, c = rows[:, n_head * head :].reshape(n, 2, n_group, i["n_state"])[:, :, group].swapaxes(0, 1)
        dt = recurrent.softplus(self._read(op, 1) + self._needed(op, 2))
        ad, state = (self._needed(op, 0), self._needed(op, 1)), self._state(op, n_head, i["n_state"], head)
        out, state = recurrent.ssm_heads(rows[:, : n_head * head].reshape(n, n_head, head), (b, c), dt, ad, state)
        self._keep(op, state)
        self._write(op, 0, out.reshape(n, -1))

    def _ssm_channels(self, op: PlanOp) -> None:
        i = op.i
        dt = recurrent.softplus(self._read(op, 1) + self._needed(op, 2))
        a, state = self._needed(op, 0).reshape(i["width"], i["n_state"]), self._state(op, i["width"], i["n_state"])
        bc = self._read(op, 2), self._read(op, 3)
        out, state = recurrent.ssm_channels(self._read(op, 0), bc, dt, (a, self._needed(op, 1)), state)
        self._keep(op, state)
        self._write(op, 0, out)

    def _lightning(self, op: PlanOp) -> None:
        i, n = op.i, len(self._tokens)
        qkv = self._read(op, 0).reshape(n, i["n_head"], 3, i["head"])
        state = self._state(op, i["n_head"], i["head"], i["head"])
        out, state = recurrent.lightning(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], op.f["slope"], state)
        self._keep(op, state)
        self._write(op, 0, out.reshape(n, -1))

    def _state(self, op: PlanOp, *shape: int) -> Array:
        return self._states[op.i.get("state", 0)].reshape(shape)

    def _keep(self, op: PlanOp, state: Array) -> None:
        self._states[op.i.get("state", 0)] = state.ravel()

    def _needed(self, op: PlanOp, k: int) -> Array:
        vector = self._vector(op, k)
        assert vector is not None
        return vector
