"""Interprets a ModelPlan in numpy, op by op, in one arena: what the native walk has to compute.

Before every step the arena is filled with NaN: an op that reads what nothing wrote shows at once, because any NaN that
an op meets is an error that names it. With `rounded` the activations of quantised products pass through int8 as the
native kernels' do; sums stay float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from strata.arch.plan_tables import (
    Act,
    Glu,
    NormKind,
    PlanOp,
    PlanTensor,
    RopeStyle,
    Scores,
    WindowKind,
)
from strata.gguf.quants import type_info
from strata.reference import ops
from strata.reference.ops import Array
from strata.reference.router import Rule, route
from strata.reference.walk_state import StateWalk

__all__ = ["PlanWalk"]

SCORES = {
    Scores.SOFTMAX: "softmax",
    Scores.SIGMOID: "sigmoid",
    Scores.SOFTMAX_WEIGHT: "softmax-weight",
    Scores.SQRT_SOFTPLUS: "sqrt-softplus",
}
NORMS = {NormKind.RMS: ops.rms_norm, NormKind.LAYER: ops.layer_norm, NormKind.L2: ops.l2_norm}
GLUS = {
    Glu.SILU: "silu",
    Glu.GELU: "gelu",
    Glu.RELU: "relu",
    Glu.SILU_CLAMP_EARLY: "silu-early",
    Glu.SILU_CLAMP_LATE: "silu-late",
    Glu.SWIGLU_OAI: "swiglu-oai",
    Glu.SITU: "situ",
    Glu.UP_SILU: "silu",
    Glu.UP_GELU: "gelu",
    Glu.UP_RELU_SQR: "relu-sqr",
}


class PlanWalk(StateWalk):
    """One plan with one sequence's cache. `step` appends tokens, at most n_batch at a time."""

    def logits(self, tokens: Sequence[int], chunk: int) -> Array:
        """Logits of all tokens, float64 [n_tokens, n_vocab], `chunk` tokens a step."""
        parts: list[Array] = []
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            parts.append(self.step(part, range(len(part))))
        return np.concatenate(parts)

    def step(self, tokens: Sequence[int], outputs: Sequence[int]) -> Array:
        """Run one step; logits of the rows named by `outputs`.

        Raises: FloatingPointError naming the first op that meets NaN.
        """
        self._arena.fill(np.nan)
        self._tokens, self._outputs = tokens, outputs
        self._positions = np.arange(self._n_past, self._n_past + len(tokens))
        for op in self._plan.ops:
            run: Callable[[PlanOp], None] = getattr(self, f"_{op.kind}")
            run(op)
        self._n_past += len(tokens)
        head = self._plan.ops[-1]
        result = self._rows(head.outs[0]).copy()
        if np.isnan(result).any():
            raise FloatingPointError("NaN reached the logits")
        return result

    def _rounded_for(self, x: Array, tensor: PlanTensor) -> Array:
        info = type_info(tensor.type)
        assert info is not None
        return ops.round_activations(x, info.act) if self._rounded else x

    def _embed(self, op: PlanOp) -> None:
        table = self._weight(op, 0)
        assert table is not None
        self._write(op, 0, table[0][list(self._tokens)] * op.f["scale"])

    def _norm(self, op: PlanOp) -> None:
        i = op.i
        n, width = i["n_vec"], i["width"]
        x = self._heads(op.ins[0], n, width, i.get("in_stride", 0), i.get("in_offset", 0)).copy()
        self._check(op, x)
        gain, bias = self._vector(op, 0), self._vector(op, 1)
        if i.get("gain_per_vec"):
            gain = None if gain is None else gain.reshape(n, width)
        function = NORMS[NormKind(i.get("kind", 0))]
        y = function(x, op.f.get("eps", 0.0), gain, bias)
        self._heads(op.outs[0], n, width, i.get("out_stride", 0), i.get("out_offset", 0))[:] = y

    def _linear(self, op: PlanOp) -> None:
        x = self._read(op, 0)
        for k in range(op.i["n"]):
            weight, scale = self._weight(op, k), self._vector(op, 8 + k)
            assert weight is not None
            seen = self._rounded_for(x, self._plan.tensors[op.weights[k]])
            factor = 1.0 if scale is None else float(scale[0])
            self._write(op, k, ops.linear(seen, weight[0], self._vector(op, 4 + k), factor))

    def _head_linear(self, op: PlanOp) -> None:
        i, weight = op.i, self._weight(op, 0)
        assert weight is not None
        n, n_rows, n_cols = weight.shape
        x = self._heads(op.ins[0], n, n_cols, i.get("in_stride", 0), i.get("in_offset", 0))
        self._check(op, x)
        seen = self._rounded_for(x, self._plan.tensors[op.weights[0]])
        out = self._heads(op.outs[0], n, n_rows, i.get("out_stride", 0), i.get("out_offset", 0))
        out[:] = np.einsum("thc,hrc->thr", seen, weight)

    def _rope(self, op: PlanOp) -> None:
        table = self._plan.ropes[op.i.get("table", 0)]
        freqs = np.array(self._plan.freqs[table.freq_first : table.freq_first + table.n_rot // 2])
        if table.factors >= 0:
            freqs = freqs / self._weights.planned(self._plan, self._plan.tensors[table.factors])[0, 0]
        x = self._heads(op.ins[0], op.i["n_head"], table.n_rot, op.i["stride"], op.i.get("offset", 0))
        self._check(op, x)
        style = "norm" if table.style == RopeStyle.NORM else "neox"
        x[:] = ops.rotate(
            x.copy(), self._positions.astype(np.float64)[:, None] * freqs[None, :], style, table.magnitude
        )

    def _copy(self, op: PlanOp) -> None:
        i = op.i
        n, width = i["n_head"], i["width"]
        x = self._heads(op.ins[0], n, width, i.get("in_stride", 0), i.get("in_offset", 0))
        self._check(op, x)
        self._heads(op.outs[0], n, width, i.get("out_stride", 0), i.get("out_offset", 0))[:] = x

    def _attention(self, op: PlanOp) -> None:
        i, index = op.i, op.i.get("kv_layer", 0)
        cache = self._plan.kv_layers[index]
        mask = ops.Mask(i.get("window", 0), i.get("window_kind", 0) == WindowKind.CHUNKED, i.get("causal", 0) == 1)
        assert i.get("window_kind", 0) in (WindowKind.STANDARD, WindowKind.CHUNKED)
        n = len(self._tokens)
        if len(op.ins) > 1 and op.ins[1] >= 0:
            k = self._read(op, 1).reshape(n, cache.n_head_kv, cache.head_k)
            v = k[..., : cache.head_v] if cache.v_in_k else self._read(op, 2).reshape(n, cache.n_head_kv, cache.head_v)
            self._keys[index].append(k)
            self._values[index].append(v)
        out = ops.attention(
            self._read(op, 0).reshape(n, i["n_head"], cache.head_k),
            np.concatenate(self._keys[index]),
            np.concatenate(self._values[index]),
            ops.Score(op.f["scale"], op.f.get("softcap", 0.0)),
            ops.hidden_keys(self._positions, self._n_past + n, mask) | self._not_listed(op, 3),
            self._vector(op, 0),
        )
        self._write(op, 0, out.reshape(n, -1))

    def _not_listed(self, op: PlanOp, k: int) -> NDArray[np.bool_]:
        """Keys that operand k, an index's result, leaves out; none without the operand."""
        shape = len(self._tokens), self._n_past + len(self._tokens)
        if len(op.ins) <= k:
            return np.zeros(shape, np.bool_)
        left_out = np.ones(shape, np.bool_)
        for t, row in enumerate(self._read(op, k)):
            left_out[t, row[1 : 1 + int(row[0])].astype(np.int64)] = False
        return left_out

    def _index(self, op: PlanOp) -> None:
        i, index, n = op.i, op.i.get("kv_layer", 0), len(self._tokens)
        self._keys[index].append(self._read(op, 1)[:, None])
        q, keys = self._read(op, 0).reshape(n, i["n_head"], -1), np.concatenate(self._keys[index])[:, 0]
        left_out = ops.unchosen_keys(q, keys, self._read(op, 2), self._positions, i["top_k"])
        rows = np.zeros((n, 1 + i["top_k"]))
        for t, chosen in enumerate(~left_out):
            places = np.flatnonzero(chosen)
            rows[t, : 1 + len(places)] = [len(places), *places]
        self._write(op, 0, rows)

    def _mix(self, op: PlanOp) -> None:
        n_vec, width = op.i["n_vec"], op.i["width"]
        kept = self._rows(op.ins[0])[:, : n_vec * width].reshape(-1, n_vec, width)
        self._check(op, kept)
        vectors = np.concatenate([kept, self._read(op, 1)[:, None]], 1)
        self._write(op, 0, ops.mix(vectors, self._vector(op, 0), op.f["eps"]))

    def _router(self, op: PlanOp) -> None:
        i, n_used = op.i, op.i["n_used"]
        rule = Rule(
            scores=SCORES[Scores(i["scores"])],
            n_used=n_used,
            n_group=i.get("n_group", 0),
            n_group_used=i.get("n_group_used", 0),
            normalize=bool(i.get("normalize", 0)),
            scale=op.f["scale"],
            by_logits=bool(i.get("select_logits", 0)),
            chunk=i.get("chunk", 1),
        )
        selected = np.empty((len(self._tokens), 2 * n_used))
        for t, row in enumerate(self._read(op, 0)):
            ids, weights = route(row, rule, self._vector(op, 0))
            selected[t] = [*ids, *weights]
        self._write(op, 0, selected)

    def _experts(self, op: PlanOp) -> None:
        x, selection = self._read(op, 0), self._read(op, 1)
        index = op.i.get("set", 0)
        n_used = self._plan.expert_sets[index].n_used
        on_input = self._plan.expert_sets[index].weight_on_input
        rows = [
            [self._expert(row * w if on_input else row, index, int(e)) for e, w in zip(*chosen, strict=True)]
            for row, chosen in zip(x, selection.reshape(len(x), 2, n_used), strict=True)
        ]
        self._write(op, 0, np.array(rows).reshape(len(x), -1))

    def _expert(self, x: Array, index: int, e: int) -> Array:
        one = self._plan.expert_sets[index]

        def product(y: Array, part: str) -> Array | None:
            if getattr(one, part) < 0:
                return None
            weight = self._plan.tensors[getattr(one, part)]
            extras = [getattr(one, f"{part}_{what}") for what in ("bias", "scale")]
            bias, scale = (
                None if k < 0 else self._weights.planned(self._plan, self._plan.tensors[k])[e, 0] for k in extras
            )
            matrix = self._weights.planned(self._plan, weight)[e]
            return ops.linear(self._rounded_for(y, weight), matrix, bias, 1.0 if scale is None else float(scale[0]))

        up = product(x, "up")
        assert up is not None
        down = product(ops.glu(GLUS[Glu(one.glu)], product(x, "gate"), up, one.p0, one.p1), "down")
        assert down is not None
        return down

    def _combine(self, op: PlanOp) -> None:
        n_used, width = op.i["n_used"], op.i["width"]
        rows = self._read(op, 0).reshape(-1, n_used, width)
        weights = self._read(op, 1)[:, n_used:]
        out = rows.sum(1) if op.i.get("unit_weights", 0) else np.einsum("tk,tkw->tw", weights, rows)
        if len(op.ins) > 2:
            shared = self._read(op, 2)
            out = out + (shared * ops.sigmoid(self._read(op, 3)) if len(op.ins) > 3 else shared)
        self._write(op, 0, out)

    def _glu(self, op: PlanOp) -> None:
        gate = None if op.ins[0] < 0 else self._read(op, 0)
        kind = GLUS[Glu(op.i.get("kind", 0))]
        self._write(op, 0, ops.glu(kind, gate, self._read(op, 1), op.f.get("p0", 0.0), op.f.get("p1", 0.0)))

    def _add(self, op: PlanOp) -> None:
        scaled = op.f["a"] * self._read(op, 0)
        self._write(op, 0, scaled if len(op.ins) == 1 else scaled + op.f["b"] * self._read(op, 1))

    def _mul(self, op: PlanOp) -> None:
        x, n_vec = self._read(op, 0)[:, : op.i["width"]], op.i.get("n_vec", 0)
        factors = self._read(op, 1)[:, : n_vec or op.i["width"]]
        act = {Act.SIGMOID: ops.sigmoid, Act.SILU: ops.silu, Act.SOFTPLUS: ops.softplus}.get(Act(op.i.get("act", 0)))
        factors = factors if act is None else act(factors)
        self._write(op, 0, x * np.repeat(factors, op.i["width"] // n_vec, axis=1) if n_vec else x * factors)

    def _gather(self, op: PlanOp) -> None:
        self._write(op, 0, self._read(op, 0)[list(self._outputs)])

    def _clamp(self, op: PlanOp) -> None:
        self._write(op, 0, np.clip(self._read(op, 0), -op.f["limit"], op.f["limit"]))

    def _scale(self, op: PlanOp) -> None:
        factor = self._vector(op, 0)
        assert factor is not None
        self._write(op, 0, self._read(op, 0) * factor[0])

    def _temperature(self, op: PlanOp) -> None:
        factor = ops.temperature(self._positions, op.f["scale"], op.i["length"], op.i.get("offset", 0))
        self._write(op, 0, self._read(op, 0) * factor[:, None])

    def _head(self, op: PlanOp) -> None:
        weight, scale = self._weight(op, 0), self._vector(op, 2)
        assert weight is not None
        x = self._rounded_for(self._read(op, 0), self._plan.tensors[op.weights[0]])
        factor = op.f["scale"] * (1.0 if scale is None else float(scale[0]))
        rows = ops.linear(x, weight[0], self._vector(op, 1), factor)
        cap = op.f.get("softcap", 0.0)
        self._write(op, 0, rows if cap == 0.0 else cap * np.tanh(rows / cap))
