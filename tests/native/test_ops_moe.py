"""ROUTER, EXPERTS and COMBINE through the public ABI: values against numpy float64, ties, poison, bits in every way of running."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import ref_ops as ref
from gguf.constants import GGMLQuantizationType as Quant
from plan_kit import Matrix, Plan, Rows, f32_matrix, same_everywhere
from row_formats import fma32
from test_ops_matmul import matrix

N = 23

# ---- router -----------------------------------------------------------------------------------------------------

BIAS = np.random.default_rng(9).standard_normal(16).astype(np.float32)
ROUTERS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "softmax": (1, 4, {}),
    "softmax, normalised": (1, 4, {"normalize": True}),
    "sigmoid, bias, scale": (2, 3, {"bias": BIAS, "normalize": True, "norm_min": 6e-5, "scale": 2.5}),
    "sigmoid, groups": (2, 4, {"bias": BIAS, "groups": (4, 2), "normalize": True}),
    "groups of one": (2, 4, {"groups": (16, 5)}),
    "softmax of the chosen": (3, 4, {}),
    "softmax of the chosen, bias": (3, 2, {"bias": BIAS}),
    "sqrt of softplus": (4, 5, {"normalize": True, "scale": 1.5}),
    "by logits": (2, 3, {"by_logits": True, "norm_min": 4.0, "normalize": True}),
    "by logits, chunks": (1, 4, {"by_logits": True, "normalize": True, "chunk": 4}),
    "all": (1, 16, {}),
}


def router_plan(ffi: Any, lib: Any, x: Any, scores: int, n_used: int, options: dict[str, Any]) -> tuple[Plan, int]:
    """Make a plan whose token t routes the logits x[t]; the selection is buffer 1."""
    plan = Plan(ffi, lib)
    inputs = plan.inputs(x, 64, pad=2)
    selection = plan.buffer(2 * n_used, pad=3)
    n_group, n_group_used = options.get("groups", (0, 0))
    fields = {"n_group": n_group, "n_group_used": n_group_used, "normalize": options.get("normalize", False)}
    fields |= {"select_logits": options.get("by_logits", False), "norm_min": options.get("norm_min", 0)}
    fields |= {"chunk": options.get("chunk", 0)}
    weights = [plan.vector(options["bias"])] if "bias" in options else []
    scale = options.get("scale", 1)
    plan.op(
        "ROUTER",
        [inputs],
        [selection],
        weights,
        n_expert=x.shape[1],
        n_used=n_used,
        scores=scores,
        scale=scale,
        **fields,
    )
    return plan, selection


def selections(logits: Any, n_used: int) -> tuple[Any, Any]:
    """Read ids and weights back: the identity product keeps even the bits of ids, which are tiny floats."""
    return logits[:, :n_used].copy().view(np.int32), logits[:, n_used : 2 * n_used]


@pytest.mark.parametrize("name", ROUTERS)
def test_router(abi: Any, abi_ffi: Any, name: str) -> None:
    scores, n_used, options = ROUTERS[name]
    x = (np.random.default_rng(4).standard_normal((N, 16)) * 2).astype(np.float32)
    plan, selection = router_plan(abi_ffi, abi, x, scores, n_used, options)
    plan.result(selection)
    ids, weights = selections(same_everywhere(plan, list(range(N))), n_used)
    for t in range(N):
        want_ids, want_weights = ref.router(x[t], n_used, scores, **options)
        assert ids[t].tolist() == want_ids
        np.testing.assert_allclose(weights[t], want_weights, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("scores", [1, 2, 3])
def test_router_ties_go_to_the_lower_id(abi: Any, abi_ffi: Any, scores: int) -> None:
    x = np.tile(np.array([[0, 1, 3, 1, 3, 1, -2, 1]], np.float32), (N, 1))
    x[1] = 0.5
    for options, first, flat in (({}, [2, 4, 1], [0, 1, 2]), ({"groups": (4, 2)}, [2, 4, 3], [0, 1, 2])):
        plan, selection = router_plan(abi_ffi, abi, x, scores, 3, options)
        plan.result(selection)
        ids, _ = selections(same_everywhere(plan, [0, 1, 2]), 3)
        assert ids.tolist() == [first, flat, first]


@pytest.mark.parametrize("scores", [1, 2, 3, 4])
def test_router_keeps_poison(abi: Any, abi_ffi: Any, scores: int) -> None:
    """A NaN logit, even of an expert that is not chosen, makes the weights NaN; ids stay valid, other rows untouched."""
    x = np.random.default_rng(4).standard_normal((N, 16)).astype(np.float32)
    x[2, 5] = np.nan
    plan, selection = router_plan(abi_ffi, abi, x, scores, 4, {"normalize": True})
    plan.result(selection)
    with plan.model() as model, plan.engine(model, poison=0) as engine:
        with pytest.raises(RuntimeError, match="-6"):
            engine.step(Rows([1, 2]))
        fine = engine.step(Rows([1]))
        assert engine.step(Rows([1, 3]))[:1].tobytes() == fine.tobytes()
        plan_ids, weights = selections(fine, 4)
        assert (plan_ids >= 0).all()
        assert np.isfinite(weights).all()


# ---- experts ----------------------------------------------------------------------------------------------------

N_EXPERT, N_USED, N_IN, N_FF, N_OUT = 6, 3, 256, 72, 40


def expert_vector(rng: Any, n: int) -> Matrix:
    return f32_matrix(rng.standard_normal((N_EXPERT, 1, n)))


def expert_parts(gate: Quant, up: Quant, down: Quant, n_ff: int, extra: str = "") -> dict[str, Matrix]:
    """Make matrices of these types; `extra` names b(iases) and s(cales); u: no gate."""
    rng = np.random.default_rng(6)
    parts = {
        "gate": matrix(gate, n_ff, N_IN, 1, N_EXPERT),
        "up": matrix(up, n_ff, N_IN, 2, N_EXPERT),
        "down": matrix(down, N_OUT, n_ff, 3, N_EXPERT),
    }
    sizes = {"gate": n_ff, "up": n_ff, "down": N_OUT}
    for part, n in sizes.items():
        if "b" in extra:
            parts[f"{part}_bias"] = expert_vector(rng, n)
        if "s" in extra:
            parts[f"{part}_scale"] = f32_matrix(rng.uniform(0.5, 1.5, (N_EXPERT, 1, 1)))
    return {name: part for name, part in parts.items() if not ("u" in extra and name.startswith("gate"))}


def moe_plan(ffi: Any, lib: Any, x: Any, parts: dict[str, Matrix], glu: int, **fields: Any) -> tuple[Plan, int, int]:
    """Token t brings router logits x[t, :6] and the experts' input behind them. Returns plan, selection, expert rows."""
    plan = Plan(ffi, lib, n_batch=160)
    inputs = plan.inputs(x, N_USED * N_OUT, pad=1)
    selection, out = plan.buffer(2 * N_USED, pad=1), plan.buffer(N_USED * N_OUT, pad=7)
    options = {"n_expert": N_EXPERT, "n_used": N_USED, "scores": 1, "normalize": 1, "scale": 1}
    plan.op("ROUTER", [plan.view(inputs, 0, N_EXPERT)], [selection], **options)
    expert_set = plan.experts(glu, parts, N_USED, **fields)
    plan.op("EXPERTS", [plan.view(inputs, N_EXPERT, N_IN), selection], [out], set=expert_set)
    return plan, selection, out


def moe_table(n: int = N) -> Any:
    return np.random.default_rng(8).standard_normal((n, N_EXPERT + N_IN)).astype(np.float32)


def expert_row(parts: dict[str, Matrix], e: int, x: Any, glu: int, p0: float, p1: float) -> Any:
    def product(name: str, v: Any) -> Any:
        y = parts[name].values[e] @ v
        if f"{name}_scale" in parts:
            y = y * parts[f"{name}_scale"].values[e, 0, 0]
        return y + (parts[f"{name}_bias"].values[e, 0] if f"{name}_bias" in parts else 0)

    gate = product("gate", x) if "gate" in parts else None
    return product("down", ref.glu(glu, gate, product("up", x), p0, p1))


def moe_rows(x: Any, parts: dict[str, Matrix], glu: int, p0: float = 0, p1: float = 0, weighted: bool = False) -> Any:
    """Return float64 [n, N_USED, N_OUT] and the weights [n, N_USED]."""
    rows, weights = [], []
    for row in x.astype(np.float64):
        ids, w = ref.router(row[:N_EXPERT], N_USED, 1, normalize=True)
        inputs = [row[N_EXPERT:] * (w[k] if weighted else 1) for k in range(N_USED)]
        rows.append([expert_row(parts, e, inputs[k], glu, p0, p1) for k, e in enumerate(ids)])
        weights.append(w)
    return np.array(rows), np.array(weights)


EXPERTS: dict[str, tuple[Any, int, dict[str, Any], float]] = {
    "f32": ((Quant.F32, Quant.F32, Quant.F32, N_FF), 0, {}, 1e-5),
    "f32, oai, biases and scales": ((Quant.F32, Quant.F32, Quant.F32, N_FF, "bs"), 3, {"p0": 1.702, "p1": 7}, 1e-5),
    "no gate": ((Quant.F32, Quant.F32, Quant.F32, N_FF, "ub"), 8, {}, 1e-5),
    "weight on input": ((Quant.F32, Quant.F32, Quant.F32, N_FF, "b"), 0, {"weight_on_input": 1}, 1e-5),
    "k and q8": ((Quant.Q4_K, Quant.Q4_K, Quant.Q6_K, 256), 0, {}, 0.05),
    "two forms in": ((Quant.Q8_0, Quant.Q4_K, Quant.Q8_0, 96, "s"), 0, {}, 0.05),
    "mxfp4, biases": ((Quant.MXFP4, Quant.MXFP4, Quant.MXFP4, 96, "b"), 3, {"p0": 1.702, "p1": 7}, 0.05),
    "two forms in, weight on input": ((Quant.F32, Quant.Q8_0, Quant.F32, N_FF), 0, {"weight_on_input": 1}, 0.05),
}


@pytest.mark.parametrize("name", EXPERTS)
def test_experts(abi: Any, abi_ffi: Any, name: str) -> None:
    """Values of every token's rows, and the same bits one by one, in chunks, in crowds; the counters too."""
    arguments, glu, fields, tolerance = EXPERTS[name]
    parts, x = expert_parts(*arguments), moe_table()
    plan, _, out = moe_plan(abi_ffi, abi, x, parts, glu, **fields)
    plan.result(out)
    got = same_everywhere(plan, list(range(N)))[:, : N_USED * N_OUT].reshape(N, N_USED, N_OUT)
    p0, p1 = fields.get("p0", 0), fields.get("p1", 0)
    want, _ = moe_rows(x, parts, glu, p0, p1, bool(fields.get("weight_on_input")))
    assert float(np.abs(got - want).max()) <= tolerance * float(np.abs(want).max())


def test_a_large_prompt_rounds_hidden_rows_together(abi: Any, abi_ffi: Any) -> None:
    """150 tokens are 450 pairs: another way of rounding and several blocks of pairs for each expert; rows as one by one."""
    x, parts = moe_table(150), expert_parts(Quant.Q8_0, Quant.Q8_0, Quant.Q8_0, 96, "bs")
    plan, _, out = moe_plan(abi_ffi, abi, x, parts, 0)
    plan.result(out)
    tokens = list(range(150))
    with plan.model() as model, plan.engine(model, n_threads=2) as two, plan.engine(model) as one:
        want = one.step(Rows(tokens))
        assert two.step(Rows(tokens)).tobytes() == want.tobytes()
        assert two.completion.expert_rows == 450
        assert two.completion.experts_touched == N_EXPERT
        for t in (0, 77, 149):
            assert two.step(Rows([t])).tobytes() == want[t : t + 1].tobytes()
            assert (two.completion.expert_rows, two.completion.experts_touched) == (3, 3)


@pytest.mark.parametrize("shared", [0, 1, 2])
@pytest.mark.parametrize("unit", [0, 1])
def test_combine_adds_in_router_order(abi: Any, abi_ffi: Any, shared: int, unit: int) -> None:
    """shared 1: plus a row, 2: plus a row times sigmoid of a logit."""
    x, parts = moe_table(), expert_parts(Quant.F32, Quant.F32, Quant.F32, N_FF)
    plan, selection, rows = moe_plan(abi_ffi, abi, x, parts, 0)
    extra, gate = plan.view(0, N_EXPERT, N_OUT), plan.view(0, N_EXPERT + 100, 1)
    out = plan.buffer(N_OUT, pad=2)
    operands = [rows, selection, *[extra, gate][:shared]]
    plan.op("COMBINE", operands, [out], n_used=N_USED, width=N_OUT, unit_weights=unit)
    plan.result(out)
    got = same_everywhere(plan, list(range(N)))[:, :N_OUT]
    y, w = moe_rows(x, parts, 0)
    want = y.sum(1) if unit else np.einsum("tk,tkn->tn", w, y)
    if shared:
        factor = ref.sigmoid(x[:, N_EXPERT + 100].astype(np.float64)) if shared == 2 else np.ones(N)
        want = want + x[:, N_EXPERT : N_EXPERT + N_OUT] * factor[:, None]
    assert float(np.abs(got - want).max()) <= 1e-5 * float(np.abs(want).max())


def test_combine_is_a_chain_of_fma(abi: Any, abi_ffi: Any) -> None:
    """The bits of the sum: acc = 0, then acc = fma(w_k, y_k, acc) in router order, from exact fractions."""
    x, parts = moe_table(), expert_parts(Quant.F32, Quant.F32, Quant.F32, N_FF)
    results: list[Any] = []
    for last in ("selection", "rows", "sum"):
        plan, selection, rows = moe_plan(abi_ffi, abi, x, parts, 0)
        out = plan.buffer(N_OUT)
        plan.op("COMBINE", [rows, selection], [out], n_used=N_USED, width=N_OUT)
        plan.result({"selection": selection, "rows": rows, "sum": out}[last])
        with plan.model() as model, plan.engine(model) as engine:
            results.append(engine.step(Rows([3])))
    _, weights = selections(results[0], N_USED)
    y = results[1][0, : N_USED * N_OUT].reshape(N_USED, N_OUT)
    for n in range(N_OUT):
        acc = Fraction(0)
        for k in range(N_USED):
            acc = fma32(Fraction(float(weights[0, k])), Fraction(float(y[k, n])), acc)
        assert float(acc) == float(results[2][0, n])
