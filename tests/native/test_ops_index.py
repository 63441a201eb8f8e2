"""INDEX, and ATTENTION over the keys that it names: against numpy, and with the same bits in every way of running."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import ref_ops as ref
from plan_kit import Plan, same_everywhere

N = 150  # three blocks of the cache
N_HEAD, WIDTH = 5, 24
HEADS, DIM = 4, 16


def chosen(q: Any, k: Any, w: Any, top_k: int) -> list[list[int]]:
    """Positions that each token keeps, ascending."""
    out: list[list[int]] = []
    for t in range(len(q)):
        scores = w[t] @ np.maximum(q[t] @ k[: t + 1].T, 0.0)
        out.append(sorted(np.argsort(-scores, kind="stable")[:top_k].tolist()))
    return out


def sparse_plan(ffi: Any, lib: Any, top_k: int, w: Any = None, n: int = N) -> tuple[Plan, list[list[int]], Any]:
    """Token t brings q, k, w of the index and q, k, v of the attention; the result is the attention's."""
    plan = Plan(ffi, lib, n_batch=n + 8)
    sizes = (N_HEAD * WIDTH, WIDTH, N_HEAD, HEADS * DIM, DIM, DIM)
    x = np.random.default_rng(5).standard_normal((n, sum(sizes))).astype(np.float32)
    at = np.cumsum((0, *sizes))
    if w is not None:
        x[:, at[2] : at[3]] = w
    inputs = plan.inputs(x, HEADS * DIM)
    views = [plan.view(inputs, int(first), width) for first, width in zip(at[:-1], sizes, strict=True)]
    plan.kv_layers += [
        {"n_head_kv": 1, "head_k": WIDTH, "head_v": WIDTH, "v_in_k": 1},
        {"n_head_kv": 1, "head_k": DIM, "head_v": DIM, "v_in_k": 0},
    ]
    listed, out = plan.buffer(1 + top_k, pad=3), plan.buffer(HEADS * DIM)
    plan.op("INDEX", views[:3], [listed], n_head=N_HEAD, top_k=top_k)
    plan.op("ATTENTION", [*views[3:], listed], [out], kv_layer=1, n_head=HEADS, causal=1, scale=DIM**-0.5)
    plan.result(out)
    iq, ik, iw, q, k, v = np.split(x.astype(np.float64), at[1:-1], axis=1)
    kept = chosen(iq.reshape(n, N_HEAD, WIDTH), ik, iw, top_k)
    mask = np.zeros((n, n), bool)
    for t, places in enumerate(kept):
        mask[t, places] = True
    heads = q.reshape(n, HEADS, DIM), k.reshape(n, 1, DIM), v.reshape(n, 1, DIM)
    return plan, kept, ref.attention(*heads, mask, DIM**-0.5).reshape(n, -1)


@pytest.mark.parametrize("top_k", [1, 20, 64, 70, N, 400])
def test_attention_over_chosen_keys(abi: Any, abi_ffi: Any, top_k: int) -> None:
    plan, kept, want = sparse_plan(abi_ffi, abi, top_k)
    assert max(len(places) for places in kept) == min(top_k, N)
    got = same_everywhere(plan, list(range(N)), kv_type=0)[:, : HEADS * DIM]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=4e-6)


def test_of_equal_keys_the_first_are_kept(abi: Any, abi_ffi: Any) -> None:
    """Weights of zero make all scores equal, of either sign."""
    plan, kept, want = sparse_plan(abi_ffi, abi, 9, w=np.float32([0, -0.0, 0, -0.0, 0]))
    assert kept[-1] == list(range(9))
    got = same_everywhere(plan, list(range(N)), kv_type=0)[:, : HEADS * DIM]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=4e-6)


def test_all_keys_are_what_no_index_gives(abi: Any, abi_ffi: Any) -> None:
    """Bit for bit."""
    sparse = sparse_plan(abi_ffi, abi, N)[0]
    dense = sparse_plan(abi_ffi, abi, N)[0]
    dense.ops[-3]["in"][3] = -1
    rows = [same_everywhere(plan, list(range(N)))[:, : HEADS * DIM] for plan in (sparse, dense)]
    np.testing.assert_array_equal(*rows)


def test_half_precision_caches(abi: Any, abi_ffi: Any) -> None:
    """Rounded keys may change which are chosen, but in every way of running alike."""
    plan, _, want = sparse_plan(abi_ffi, abi, 20)
    got = same_everywhere(plan, list(range(N)), kv_type=1)[:, : HEADS * DIM]
    assert np.median(np.abs(got - want)) < 2e-3


def test_an_index_is_validated(abi: Any, abi_ffi: Any) -> None:
    def broken(change: Any, message: str) -> None:
        plan = sparse_plan(abi_ffi, abi, 20)[0]
        change(plan)
        with pytest.raises(RuntimeError, match=message), plan.model():
            pass

    index = next(k for k, op in enumerate(sparse_plan(abi_ffi, abi, 20)[0].ops) if op["kind"] == abi.STRATA_OP_INDEX)
    broken(lambda plan: plan.ops[index + 1]["in"].__setitem__(3, plan.ops[index]["in"][0]), "the result of an INDEX")
    broken(lambda plan: plan.ops[index]["i"].__setitem__(2, 19), "is buffer .* of width 21")
    broken(lambda plan: plan.ops[index]["i"].__setitem__(2, 0), r"i\[TOP_K\] is 0")
    broken(lambda plan: plan.ops[index]["i"].__setitem__(0, 1), r"i\[KV_LAYER\]'s v_in_k is 0")
    broken(lambda plan: plan.kv_layers[0].update(n_head_kv=2), "n_head_kv is 2")
