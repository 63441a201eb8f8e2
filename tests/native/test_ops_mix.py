"""MIX: against numpy, with the same bits in every way of running, and its checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plan_kit import Plan, same_everywhere

N, WIDTH, EPS = 40, 300, 1e-5


def mix_plan(ffi: Any, lib: Any, n_vec: int, room: int = 0, scale: float = 1.0) -> tuple[Plan, Any]:
    """Token t brings n_vec kept vectors, with room for more, and a last one. Returns what numpy says too."""
    plan = Plan(ffi, lib)
    rng = np.random.default_rng(2)
    x = (scale * rng.standard_normal((N, (n_vec + room + 1) * WIDTH))).astype(np.float32)
    weights = rng.standard_normal(WIDTH).astype(np.float32) / np.float32(8)
    inputs, out = plan.inputs(x, WIDTH), plan.buffer(WIDTH, pad=3)
    kept = plan.view(inputs, 0, (n_vec + room) * WIDTH)
    last = plan.view(inputs, (n_vec + room) * WIDTH, WIDTH)
    plan.op("MIX", [kept, last], [out], [plan.vector(weights)], n_vec=n_vec, width=WIDTH, eps=EPS)
    plan.result(out)
    vectors = x.astype(np.float64).reshape(N, -1, WIDTH)
    vectors = np.concatenate([vectors[:, :n_vec], vectors[:, -1:]], 1)
    rms = np.sqrt((vectors**2).mean(-1, keepdims=True) + EPS)
    shares = np.exp((vectors / rms * weights).sum(-1))
    return plan, np.einsum("tn,tnw->tw", shares / shares.sum(-1, keepdims=True), vectors)


@pytest.mark.parametrize(("n_vec", "room"), [(1, 0), (3, 2), (9, 0)])
def test_mix(abi: Any, abi_ffi: Any, n_vec: int, room: int) -> None:
    plan, want = mix_plan(abi_ffi, abi, n_vec, room)
    got = same_everywhere(plan, list(range(N)))[:, :WIDTH]
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    assert np.abs(got - want.mean(0)).max() > 0.1


def test_scores_do_not_depend_on_length(abi: Any, abi_ffi: Any) -> None:
    """A vector a thousand times as long has the same share."""
    (one, small), (thousand, large) = (mix_plan(abi_ffi, abi, 2, scale=scale) for scale in (1.0, 1000.0))
    np.testing.assert_allclose(small * 1000, large, rtol=1e-3, atol=1e-1)
    rows = [same_everywhere(plan, list(range(N)))[:, :WIDTH] for plan in (one, thousand)]
    np.testing.assert_allclose(rows[0] * 1000, rows[1], rtol=1e-3, atol=1e-1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda op: op["i"].__setitem__(0, 0), r"i\[N_VEC\] is 0"),
        (lambda op: op["i"].__setitem__(0, 4), r"in\[0\] is buffer .* of width 600"),
        (lambda op: op["i"].__setitem__(1, 299), "a vector of 300; one of 299 is needed"),
        (lambda op: op["in"].__setitem__(1, -1), r"in\[1\] is -1"),
    ],
)
def test_mix_is_validated(abi: Any, abi_ffi: Any, change: Any, message: str) -> None:
    plan, _ = mix_plan(abi_ffi, abi, 2)
    change(next(op for op in plan.ops if op["kind"] == abi.STRATA_OP_MIX))
    with pytest.raises(RuntimeError, match=message), plan.model():
        pass
