"""ATTENTION through the public ABI: grouped and latent heads, windows, sinks, caches of every type, bits in every way of running."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import ref_ops as ref
from plan_kit import Plan, Rows, same_everywhere

N = 150  # three blocks of the cache, the last one partly filled


def attention_plan(
    ffi: Any,
    lib: Any,
    heads: tuple[int, int],
    dims: tuple[int, int] = (32, 32),
    *,
    n: int = N,
    sinks: Any = None,
    v_in_k: bool = False,
    seed: int = 0,
    **params: Any,
) -> tuple[Plan, dict[str, Any]]:
    """Make a plan whose token t brings row t of q, k, v; returns it and the operands as float64 [n, heads, dim]."""
    plan = Plan(ffi, lib, n_batch=n + 8)
    (n_head, n_kv), (dk, dv) = heads, dims
    q, k, v = n_head * dk, n_kv * dk, 0 if v_in_k else n_kv * dv
    x = np.random.default_rng(seed).standard_normal((n, q + k + v)).astype(np.float32)
    inputs, out = plan.inputs(x, n_head * dv), plan.buffer(n_head * dv, pad=5)
    plan.kv_layers.append({"n_head_kv": n_kv, "head_k": dk, "head_v": dv, "v_in_k": int(v_in_k)})
    operands = [plan.view(inputs, 0, q), plan.view(inputs, q, k)]
    if not v_in_k:
        operands.append(plan.view(inputs, q + k, v))
    weights = [] if sinks is None else [plan.vector(sinks)]
    plan.op("ATTENTION", operands, [out], weights, n_head=n_head, **{"causal": 1, "scale": dk**-0.5, **params})
    plan.result(out)
    x64 = x.astype(np.float64)
    parts = {"q": x64[:, :q].reshape(n, n_head, dk), "k": x64[:, q : q + k].reshape(n, n_kv, dk)}
    parts["v"] = parts["k"][..., :dv] if v_in_k else x64[:, q + k :].reshape(n, n_kv, dv)
    return plan, parts


def expected(parts: dict[str, Any], dk: int, *, sinks: Any = None, scale: float = 0, **params: Any) -> Any:
    n = len(parts["q"])
    window, kind = params.get("window", 0), params.get("window_kind", 0)
    mask = np.stack([ref.visible(p, n, bool(params.get("causal", 1)), window, kind) for p in range(n)])
    scale = scale or dk**-0.5
    out = ref.attention(parts["q"], parts["k"], parts["v"], mask, scale, softcap=params.get("softcap", 0), sinks=sinks)
    return out.reshape(n, -1)


CASES: dict[str, dict[str, Any]] = {
    "one head": {"heads": (1, 1)},
    "grouped": {"heads": (6, 2)},
    "grouped, narrow": {"heads": (4, 2), "dims": (20, 12)},
    "wide group": {"heads": (36, 2), "dims": (16, 8)},
    "latent": {"heads": (20, 1), "dims": (24, 16), "v_in_k": True},
    "softcap and scale": {"heads": (4, 4), "softcap": 5.0, "scale": 0.5},
    "window": {"heads": (4, 2), "window": 37},
    "window of a block": {"heads": (4, 2), "window": 64},
    "chunked": {"heads": (4, 2), "window": 50, "window_kind": 1},
    "sinks": {"heads": (4, 2), "sinks": np.array([0.5, -3, 9, 1], np.float32)},
    "sinks and window": {"heads": (4, 2), "window": 5, "sinks": np.array([0.5, -3, 9, 1], np.float32)},
}


@pytest.mark.parametrize("name", CASES)
def test_attention(abi: Any, abi_ffi: Any, name: str) -> None:
    """Values against float64, and the same bits for the prompt at once, in chunks, token by token, and with neighbours."""
    case = dict(CASES[name])
    heads, dims = case.pop("heads"), case.pop("dims", (32, 32))
    plan, parts = attention_plan(abi_ffi, abi, heads, dims, **case)
    case.pop("v_in_k", None)
    got = same_everywhere(plan, list(range(N)), kv_type=0)[:, : heads[0] * dims[1]]
    np.testing.assert_allclose(got, expected(parts, dims[0], **case), rtol=2e-5, atol=4e-6)


def test_a_layer_reads_another_ones_cache(abi: Any, abi_ffi: Any) -> None:
    """Queries alone see what the op before them has stored, this step's rows included, behind their own window."""
    plan = Plan(abi_ffi, abi, n_batch=N + 8)
    x = np.random.default_rng(3).standard_normal((N, 96)).astype(np.float32)
    inputs, first, out = plan.inputs(x, 64), plan.buffer(32), plan.buffer(32)
    plan.kv_layers.append({"n_head_kv": 1, "head_k": 16, "head_v": 16, "v_in_k": 0})
    q, k, v, other = (plan.view(inputs, at, width) for at, width in ((0, 32), (32, 16), (48, 16), (64, 32)))
    plan.op("ATTENTION", [q, k, v], [first], n_head=2, causal=1, scale=0.25)
    plan.op("ATTENTION", [other], [out], n_head=2, causal=1, scale=0.25, window=9)
    plan.result(out)
    parts = {"q": x[:, 64:].reshape(N, 2, 16), "k": x[:, 32:48].reshape(N, 1, 16), "v": x[:, 48:64].reshape(N, 1, 16)}
    want = expected({name: part.astype(np.float64) for name, part in parts.items()}, 16, window=9)
    got = same_everywhere(plan, list(range(N)))[:, :32]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("kv_type", "tolerance"), [(1, 2e-3), (8, 4e-2)])
def test_rounded_caches(abi: Any, abi_ffi: Any, kv_type: int, tolerance: float) -> None:
    plan, parts = attention_plan(abi_ffi, abi, (6, 2), (64, 32))
    got = same_everywhere(plan, list(range(N)), kv_type=kv_type)[:, : 6 * 32]
    np.testing.assert_allclose(got, expected(parts, 64), atol=tolerance)
    assert float(np.abs(got - expected(parts, 64)).max()) > 1e-5  # the cache did round


@pytest.mark.parametrize("params", [{"causal": 0}, {"causal": 0, "window": 21, "window_kind": 2}])
def test_attention_to_both_sides(abi: Any, abi_ffi: Any, params: dict[str, int]) -> None:
    """Without the causal rule a sequence comes in one step; threads and neighbours still change nothing."""
    plan, parts = attention_plan(abi_ffi, abi, (4, 2), **params)
    results = []
    with plan.model() as model:
        for n_threads, tier in ((1, -1), (3, -1), (1, 0)):
            with plan.engine(model, n_threads=n_threads, tier=tier, kv_type=0) as engine:
                results.append(engine.step(Rows(range(N))))
                crowd = engine.step(Rows(range(5), 0, (9,)), Rows(range(N)), Rows([3], 0, (10,)))
                results.append(crowd[5 : 5 + N])
    np.testing.assert_allclose(results[0][:, :128], expected(parts, 32, **params), rtol=2e-5, atol=4e-6)
    assert all(result.tobytes() == results[0].tobytes() for result in results)


def test_long_decode_is_shared_by_threads(abi: Any, abi_ffi: Any) -> None:
    """700 positions, 3 key heads: with 2, 4 and 5 threads each head is split over tiles and dimensions."""
    n = 700
    plan, parts = attention_plan(abi_ffi, abi, (9, 3), (64, 64), n=n)
    want = expected(parts, 64)[-1]
    blocks = tuple(range(11))
    rows: list[bytes] = []
    with plan.model() as model:
        for n_threads in (1, 2, 4, 5):
            with plan.engine(model, n_threads=n_threads, kv_type=0, n_kv_blocks=11) as engine:
                engine.step(Rows(range(n - 1), 0, blocks))
                last = engine.step(Rows([n - 1], n - 1, blocks))[0, : 9 * 64]
                np.testing.assert_allclose(last, want, rtol=2e-5, atol=4e-6)
                assert engine.completion.kv_bytes == n * 3 * 2 * 64 * 4
                rows.append(last.tobytes())
    assert len(set(rows)) == 1


def test_blocks_may_lie_anywhere_and_be_shared(abi: Any, abi_ffi: Any) -> None:
    """Two sequences read one prefix block and write blocks of their own; a copied block serves like the original."""
    plan, _ = attention_plan(abi_ffi, abi, (4, 2))
    with plan.model() as model, plan.engine(model, kv_type=1) as engine:
        want = engine.step(Rows(range(100), 0, (0, 1)))
        engine.step(Rows(range(64), 0, (5,)))
        both = engine.step(Rows(range(64, 100), 64, (5, 2)), Rows(range(64, 100), 64, (5, 9)))
        assert both[:36].tobytes() == want[64:].tobytes() == both[36:].tobytes()
        plan.check(abi.strata_engine_kv_copy(engine.handle, 9, 14))
        assert engine.step(Rows([99], 99, (5, 14))).tobytes() == want[99:].tobytes()
        engine.step(Rows([0], 64, (5, 9)))  # the original changes, the copy does not
        assert engine.step(Rows([99], 99, (5, 14))).tobytes() == want[99:].tobytes()
        assert engine.step(Rows([99], 99, (5, 9))).tobytes() != want[99:].tobytes()


def test_measure_counts_the_cache(abi: Any, abi_ffi: Any) -> None:
    """Bytes by hand: blocks x 64 positions x heads x row bytes of keys and values."""
    plan, _ = attention_plan(abi_ffi, abi, (6, 2), (64, 32))
    with plan.model() as model:
        for kv_type, row in ((0, 4 * 96), (1, 2 * 96), (8, 34 * 3)):
            config = abi_ffi.new(
                "strata_engine_config *", {"n_threads": 1, "kv_type": kv_type, "n_kv_blocks": 5, "max_seqs": 1}
            )
            config.struct_size = abi_ffi.sizeof("strata_engine_config")
            config.tier, config.queue_steps, config.spin_us = -1, 2, -1
            sizes = abi_ffi.new("strata_engine_bytes *")
            sizes.struct_size = abi_ffi.sizeof("strata_engine_bytes")
            plan.check(abi.strata_engine_measure(model, config, sizes))
            assert sizes.kv == 5 * 64 * 2 * row


def test_q8_cache_refuses_ragged_heads(abi: Any, abi_ffi: Any) -> None:
    plan, _ = attention_plan(abi_ffi, abi, (2, 2), (24, 24))
    with plan.model() as model, pytest.raises(RuntimeError, match="kv_type"), plan.engine(model, kv_type=8):
        pass
