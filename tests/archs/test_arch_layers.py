"""Which layers get what: rotation, windows, experts, heads; what is refused; windows longer than the other tests' prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from arch_cases import Case
from arch_cases_gqa import GQA_CASES
from arch_cases_layers import LAYER_CASES
from arch_fake_file import changed, fake_file
from arch_native import library_path, native_logits

from strata.arch.bind import bind
from strata.arch.bound import BoundArch, BoundGqa, BoundMoe
from strata.arch.plan import plan
from strata.arch.registry import Registry
from strata.arch.spec import Gqa
from strata.errors import BindError
from strata.gguf.reader import read_gguf
from strata.reference.model import Reference
from strata.reference.weights import FileWeights
from strata.testing import oracle
from strata.testing.conformance import N_TOKENS, prompt, write_case

ALL = GQA_CASES | LAYER_CASES


def bound_of(registry: Registry, case: Case) -> BoundArch:
    return bind(registry.lookup(case["arch"]), fake_file(case))


def attentions(bound: BoundArch) -> list[BoundGqa]:
    return [layer.attention for layer in bound.layers if isinstance(layer.attention, BoundGqa)]


@pytest.mark.parametrize(
    ("name", "rotated"),
    [
        ("afmoe", "11101"),
        ("exaone-moe", "1110"),
        ("cohere2moe", "11110"),
        ("llama4", "1110"),
        ("smallthinker", "01110"),
        ("smallthinker-four", "1111"),
        ("smallthinker-full", "11111"),
        ("granite-unrotated", "00"),
        ("granitemoe", "11"),
        ("granite_swa", "1101"),
        ("maple", "1101"),
        ("mellum", "1111"),
    ],
)
def test_rotated_layers(registry: Registry, name: str, rotated: str) -> None:
    found = ["0" if a.rope is None else "1" for a in attentions(bound_of(registry, ALL[name]))]
    assert "".join(found) == rotated


@pytest.mark.parametrize(
    ("name", "routed"),
    [("llama4", "0101"), ("llama4-every", "1111"), ("mimo2", "0111"), ("hy_v3", "01"), ("arctic", "00")],
)
def test_routed_layers(registry: Registry, name: str, routed: str) -> None:
    bound = bound_of(registry, ALL[name])
    assert "".join("1" if isinstance(layer.ffn, BoundMoe) else "0" for layer in bound.layers) == routed
    assert all((layer.beside is not None) == (name == "arctic") for layer in bound.layers)


def test_windows_whose_size_is_the_architectures(registry: Registry) -> None:
    def windows(name: str, size: int) -> set[int]:
        bound = bound_of(registry, changed(ALL[name], **{"attention.sliding_window": size}))
        return {a.window for a in attentions(bound)}

    assert windows("llama4", 77) == {0, 8192}
    assert windows("smallthinker", 77) == {0, 4096}
    assert windows("smallthinker", 0) == {0}
    assert windows("laguna", 0) == {0}
    with pytest.raises(BindError, match=r"sliding_window is 0; accepted: 1"):
        windows("llama4", 0)


def test_maverick_has_no_qk_norm(registry: Registry) -> None:
    scout = attentions(bound_of(registry, ALL["llama4"]))
    assert [a.q_norm is None for a in scout] == [False, False, False, True]
    assert scout[0].q_norm is not None
    assert scout[0].q_norm.gain is None
    many = changed(ALL["llama4"], expert_count=128)
    many["tensors"] = {name: [*ne[:-1], 128] if ne[-1] == 8 else ne for name, ne in many["tensors"].items()}
    assert all(a.q_norm is None for a in attentions(bound_of(registry, many)))


def test_layers_share_the_caches_of_like_ones(registry: Registry) -> None:
    bound = bound_of(registry, ALL["gemma4-inputs"])
    assert [a.cache_of for a in attentions(bound)] == [-1, -1, -1, -1, -1, 3, 4]
    table = plan(bound, n_batch=8, n_outputs_max=1)
    assert len(table.kv_layers) == 5
    assert [op.i.get("kv_layer", 0) for op in table.ops if op.kind == "attention"] == [0, 1, 2, 3, 4, 3, 4]


def test_pairs_of_the_fourth_position_stand_still(registry: Registry) -> None:
    ropes = [attentions(bound_of(registry, ALL[name]))[0].rope for name in ("qwen3vlmoe-fourth", "glm4moe-sections")]
    assert [rope.still for rope in ropes if rope is not None] == [(13, 14, 15), (6, 7)]


def test_defaults_that_follow_from_dimensions(registry: Registry) -> None:
    bound = bound_of(registry, ALL["minicpm"])
    assert bound.residual_scale == pytest.approx(1.4 / 2**0.5)
    assert bound.head_scale == pytest.approx(64 / 256)
    assert bound.embedding_scale == 12.0


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("maple", {"attention.sliding_window_pattern": 2}, r"pattern is 2; accepted: an array of block_count \(4\) flags"),
    ("maple", {"swiglu_clamp_exp": float("inf")}, "swiglu_clamp_exp is inf; accepted: finite"),
    ("laguna", {"rope.dimension_count_swa": 34}, "dimension_count_swa is 34; accepted: an even number up to"),
    (
        "mimo2",
        {"attention.head_count_kv": [2, 4, 2, 1]},
        r"head_count_kv is 4; accepted: a divisor of head_count \(6\)",
    ),
    ("deepseek2-ocr", {"rope.freq_base": 500.0}, "freq_base is 500.0; accepted: 10000.0"),
    ("qwen3vlmoe", {"rope.dimension_sections": [1, 2]}, r"dimension_sections is \[1, 2\]; accepted: 4 numbers"),
    ("granite", {"logit_scale": 0.0}, "logit_scale is 0.0"),
    ("grovemoe", {"experts_per_group": 3}, r"experts_per_group is 3; accepted: a divisor of expert_count \(8\)"),
    ("grok", {"rope.scaling.yarn_ext_factor": 1.0}, "yarn_ext_factor is 1.0; accepted: 0 with scaling type linear"),
    ("gemma4-inputs", {"attention.shared_kv_layers": 4}, "shared_kv_layers is 4; accepted: a number that leaves layer"),
    ("ernie4_5-moe", {"interleave_moe_layer_step": 0}, "interleave_moe_layer_step is 0; accepted: 1"),
]


@pytest.mark.parametrize(("name", "keys", "message"), BAD)
def test_refused(registry: Registry, name: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(BindError, match=message):
        bound_of(registry, changed(ALL[name], **keys))


@pytest.mark.skipif(library_path() is None, reason="libstrata is not built")
def test_chunks_shorter_than_the_prompt(registry: Registry, tmp_path: Path) -> None:
    """The architecture's chunk is longer than these prompts: a shorter one shows that layers forget at its borders."""
    arch = registry.lookup("llama4")
    assert isinstance(arch.attention, Gqa)
    assert arch.attention.window is not None
    window = msgspec.structs.replace(arch.attention.window, constant=24)
    short = msgspec.structs.replace(arch, attention=msgspec.structs.replace(arch.attention, window=window))
    path = write_case(ALL["llama4"], tmp_path / "chunked.gguf")
    bound = bind(short, read_gguf(path))
    exact = Reference(bound, FileWeights(bound.paths)).logits(prompt(N_TOKENS))
    table = plan(bound, n_batch=N_TOKENS, n_outputs_max=N_TOKENS)
    assert oracle.kl_divergence(exact, native_logits(table, prompt(N_TOKENS), N_TOKENS)).max() < 1e-9
    whole = bind(arch, read_gguf(path))
    other = oracle.kl_divergence(exact, Reference(whole, FileWeights(whole.paths)).logits(prompt(N_TOKENS)))
    assert other[:24].max() < 1e-12
    assert other[24:].max() > 1e-3


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.skipif(library_path() is None, reason="libstrata is not built")
@pytest.mark.parametrize(("name", "n_tokens"), [("llama4", 8400), ("smallthinker", 4400)])
def test_long_prompts(registry: Registry, tmp_path: Path, name: str, n_tokens: int) -> None:
    """Windows and temperatures that act only behind thousands of tokens, against llama.cpp."""
    path = write_case(changed(ALL[name], context_length=16384), tmp_path / f"{name}.gguf")
    bound = bind(registry.lookup(name), read_gguf(path))
    table = plan(bound, n_batch=400, n_outputs_max=400)
    native = native_logits(table, prompt(n_tokens), 400)
    divergences = oracle.kl_divergence(oracle.logits(path, prompt(n_tokens)), native)
    assert np.quantile(divergences, 0.99) < 1e-6
    assert divergences[-200:].max() < 1e-5
