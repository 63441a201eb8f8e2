"""Quantised weights: the plan interpreter with rounded activations is what the native engine computes, and both stay as
close to the exact result as llama.cpp's own integer path does.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from arch_cases import CASES, Case
from arch_golden import GOLDEN
from arch_native import library_path, native_logits
from arch_sources import ALL_CASES

from strata.arch.bind import bind
from strata.arch.bound import BoundArch
from strata.arch.plan import plan
from strata.arch.registry import Registry
from strata.gguf.reader import read_gguf
from strata.reference.model import Reference
from strata.reference.walk import PlanWalk
from strata.reference.weights import FileWeights
from strata.testing import oracle
from strata.testing.conformance import prompt, write_case

Type = gguf.GGMLQuantizationType
N_TOKENS = 70
N_FEW = 24  # a flipped rounding of one token touches all later ones
MIXES = {
    "q8_0": ("qwen3moe", {"ffn_gate_inp": Type.F32, ".weight": Type.Q8_0}),
    "mxfp4": ("gpt-oss", {"_exps.weight": Type.MXFP4, "ffn_gate_inp": Type.F32, ".weight": Type.Q8_0}),
    "q4_0": ("deepseek2", {"_b.weight": Type.F16, "shexp": Type.Q8_0, "_exps.weight": Type.Q4_0, "embd": Type.Q5_1}),
    "mixed": ("llama", {"attn_q": Type.Q4_1, "attn_k": Type.BF16, "attn_v": Type.Q5_0, "ffn_up_exps": Type.Q8_0}),
}


@pytest.fixture(scope="module", params=list(MIXES))
def draws(
    request: pytest.FixtureRequest, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> list[BoundArch]:
    """Three models of one mix. A value in the middle between two codes, or a router's near-tie, can fall either way where
    sums are added in another order, and one such token outweighs all others; so medians are compared, not means.
    """
    name, types = MIXES[request.param]
    folder = tmp_path_factory.mktemp("quantised")
    paths = [write_case(CASES[name], folder / f"{request.param}-{seed}.gguf", types, seed=seed) for seed in range(3)]
    return [bind(registry.lookup(name), read_gguf(path)) for path in paths]


def rounded(bound: BoundArch) -> np.ndarray:
    table = plan(bound, n_batch=N_TOKENS, n_outputs_max=N_TOKENS)
    return PlanWalk(table, FileWeights(bound.paths), rounded=True).logits(prompt(N_TOKENS), N_TOKENS)


@pytest.mark.skipif(library_path() is None, reason="libstrata is not built")
def test_native_rounds_as_the_interpreter_does(draws: list[BoundArch]) -> None:
    medians: list[float] = []
    for bound in draws:
        table = plan(bound, n_batch=N_TOKENS, n_outputs_max=N_TOKENS)
        native = native_logits(table, prompt(N_TOKENS), N_TOKENS)
        medians.append(float(np.median(oracle.kl_divergence(rounded(bound), native))))
    assert sorted(medians)[1] < 1e-10


@pytest.mark.peer
def test_as_close_to_exact_as_llama_cpp(draws: list[BoundArch]) -> None:
    ours: list[np.ndarray] = []
    theirs: list[np.ndarray] = []
    for bound in draws:
        exact = Reference(bound, FileWeights(bound.paths)).logits(prompt(N_TOKENS))
        judged = oracle.logits(bound.paths[0], prompt(N_TOKENS), dequant=True, n_threads=1)
        assert oracle.kl_divergence(judged, exact).max() < 1e-6
        ours.append(oracle.kl_divergence(exact, rounded(bound)))
        theirs.append(oracle.kl_divergence(exact, oracle.logits(bound.paths[0], prompt(N_TOKENS), n_threads=1)))
    usual = np.median(theirs)
    assert np.median(ours) < max(1.2 * usual, usual + 1e-4)


Q8 = {"ffn_gate_inp": Type.F32, "conv": Type.F32, "_norm": Type.F32, ".weight": Type.Q8_0}


@pytest.mark.skipif(library_path() is None, reason="libstrata is not built")
@pytest.mark.parametrize("name", GOLDEN)
def test_every_architecture_quantised(name: str, registry: Registry, tmp_path: Path) -> None:
    """Of three Q8_0 models of each one at least has no rounding that falls the other way, which most tokens would see."""
    medians: list[float] = []
    for seed in range(3):
        path = write_case(ALL_CASES[name], tmp_path / f"{seed}.gguf", Q8, seed=seed)
        bound = bind(registry.lookup(name), read_gguf(path))
        assert gguf.GGMLQuantizationType.Q8_0 in {tensor.type for tensor in read_gguf(path).tensors.values()}
        table = plan(bound, n_batch=N_FEW, n_outputs_max=N_FEW)
        walked = PlanWalk(table, FileWeights(bound.paths), rounded=True).logits(prompt(N_FEW), N_FEW)
        medians.append(float(np.median(oracle.kl_divergence(walked, native_logits(table, prompt(N_FEW), N_FEW)))))
        if medians[-1] < 1e-10:
            return
    pytest.fail(f"medians {medians}")


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_every_architecture_as_close_as_llama_cpp(name: str, registry: Registry, tmp_path: Path) -> None:
    """The tokens of four models are no farther from the exact result than llama.cpp's own integer path, geometrically."""
    ours: list[np.ndarray] = []
    theirs: list[np.ndarray] = []
    for seed in range(4):
        path = write_case(ALL_CASES[name], tmp_path / f"{seed}.gguf", Q8, seed=seed)
        bound = bind(registry.lookup(name), read_gguf(path))
        exact = Reference(bound, FileWeights(bound.paths)).logits(prompt(N_TOKENS))
        table = plan(bound, n_batch=N_TOKENS, n_outputs_max=N_TOKENS)
        ours.append(oracle.kl_divergence(exact, native_logits(table, prompt(N_TOKENS), N_TOKENS)))
        theirs.append(oracle.kl_divergence(exact, oracle.logits(path, prompt(N_TOKENS), n_threads=1)))
    assert np.log(ours).mean() < np.log(theirs).mean() + np.log(1.2)


def test_one_tensor_per_expert_equals_stacks(registry: Registry, tmp_path: Path) -> None:
    """The same weights in old Mixtral spelling give the same plan's arena and the same logits."""
    stacked, single = CASES["llama"], per_expert(CASES["llama"])
    paths = [write_case(stacked, tmp_path / "stacked.gguf"), tmp_path / "single.gguf"]
    write_split_experts(single, paths[0], paths[1])
    results: list[np.ndarray] = []
    for path in paths:
        file = bind(registry.lookup("llama"), read_gguf(path))
        table = plan(file, n_batch=40, n_outputs_max=40)
        walked = PlanWalk(table, FileWeights(file.paths)).logits(prompt(40), 40)
        np.testing.assert_array_equal(walked, PlanWalk(table, FileWeights(file.paths)).logits(prompt(40), 40))
        results.append(walked)
        if library_path() is not None:
            results.append(native_logits(table, prompt(40), 40))
    half = len(results) // 2
    for a, b in zip(results[:half], results[half:], strict=True):
        np.testing.assert_array_equal(a, b)


def per_expert(case: Case) -> Case:
    """Names and shapes with one tensor for each expert."""
    tensors: dict[str, list[int]] = {}
    for name, ne in case["tensors"].items():
        if "_exps.weight" in name:
            stem = name.replace("_exps.weight", "")
            tensors |= {f"{stem}.{e}.weight": ne[:2] for e in range(ne[2])}
        else:
            tensors[name] = ne
    return case | {"tensors": tensors}


def write_split_experts(case: Case, source: Path, target: Path) -> None:
    """Write `case` with the values of the stacked file."""
    values = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(source).tensors}
    for name in [name for name in values if "_exps.weight" in name]:
        stem = name.replace("_exps.weight", "")
        values |= {f"{stem}.{e}.weight": one for e, one in enumerate(values[name])}
    write_case(case, target, given=values)
