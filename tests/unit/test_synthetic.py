"""Random models of public shapes: the same bytes on demand as in the file, the wanted routing, and files that run."""

import gguf
import numpy as np
import pytest

from strata.arch.bind import bind
from strata.arch.registry import Registry
from strata.errors import ConfigError
from strata.gguf.quants import GgmlType
from strata.gguf.reader import read_gguf
from strata.synthetic import SHAPES, SyntheticModel
from strata.synthetic.blocks import BLOCK_TYPES, random_rows
from strata.synthetic.layout import QUANTS
from strata.synthetic.vocabulary import N_MIN, byte_level_vocabulary
from strata.synthetic.writer import write_gguf
from strata.testing import oracle

TINY = [name for name in SHAPES if name.startswith("tiny-")]
GB = 1e9
# bytes of the published files of the same mix, to 3 %: shapes and mixes are right where their sums are
PUBLISHED = {"gpt-oss-20b": 12.1 * GB, "gpt-oss-120b": 63.4 * GB, "qwen3-30b-a3b": 18.6 * GB, "mixtral-8x7b": 28.4 * GB}


@pytest.mark.parametrize("name", TINY)
def test_the_file_holds_the_bytes_that_are_handed_out(tmp_path, name):
    model = SyntheticModel(name, seed=3)
    path = tmp_path / "m.gguf"
    write_gguf(model, path, progress=False)
    file, content = read_gguf(path), path.read_bytes()
    assert dict(file.metadata) == dict(model.metadata)
    assert dict(file.kinds) == dict(model.kinds)
    assert list(file.tensors) == list(model.tensors)
    for tensor in file.tensors.values():
        rule = model.tensors[tensor.name]
        assert (tensor.type, tensor.ne, tensor.n_bytes) == (rule.type, rule.ne, rule.n_bytes)
        assert tensor.offset - file.data_offsets[0] == rule.offset
        whole = model.tensor_bytes(tensor.name, 0, tensor.n_rows)
        assert content[tensor.offset : tensor.offset + tensor.n_bytes] == whole.tobytes()


@pytest.mark.parametrize("quant", QUANTS)
def test_any_rows_are_the_whole_ones(quant):
    model = SyntheticModel("tiny-qwen3moe", quant=quant)
    for name in ("blk.1.ffn_down_exps.weight", "blk.1.ffn_gate_inp.weight", "blk.1.attn_norm.weight"):
        n_rows = model.tensors[name].n_rows
        whole = model.tensor_bytes(name, 0, n_rows)
        for first, n in (
            (0, 1),
            (n_rows - 1, 1),
            (n_rows // 3, n_rows // 2),
            (n_rows // 2, 0),
            (min(17, n_rows - 1), 1),
        ):
            np.testing.assert_array_equal(model.tensor_bytes(name, first, n), whole[first : first + n])


def test_rows_that_are_not_there_are_refused():
    model = SyntheticModel("tiny-qwen3moe")
    with pytest.raises(IndexError, match="2048 rows"):
        model.tensor_bytes("blk.0.ffn_up_exps.weight", 2048, 1)
    with pytest.raises(KeyError):
        model.tensor_bytes("blk.9.ffn_up_exps.weight", 0, 1)


def test_seeds_and_tensors_differ():
    def rows(seed: int, name: str) -> bytes:
        return SyntheticModel("tiny-qwen3moe", seed=seed).tensor_bytes(name, 0, 4).tobytes()

    name, other = "blk.0.ffn_up_exps.weight", "blk.1.ffn_up_exps.weight"
    assert rows(0, name) == rows(0, name)
    assert len({rows(0, name), rows(1, name), rows(0, other)}) == 3


@pytest.mark.parametrize("layers", [None, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_binds_whole(name, layers):
    """No tensor is missing, misshapen or left over, at full depth and cut short."""
    if layers is not None and (layers in SHAPES[name].not_layers or layers > SHAPES[name].n_layer):
        layers = SHAPES[name].n_layer - 1
    model = SyntheticModel(name, layers=layers)
    bound = bind(Registry().lookup(model.shape.arch), model)
    assert bound.n_layer == model.shape.n_layer
    assert not bound.ignored


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_files(name):
    assert SyntheticModel(name).n_bytes == pytest.approx(PUBLISHED[name], rel=0.03)


def test_fewer_layers():
    model = SyntheticModel("deepseek-v3", layers=2)
    assert model.metadata["deepseek2.block_count"] == 2
    assert model.metadata["deepseek2.leading_dense_block_count"] == 2
    assert not any(name.startswith("blk.2.") for name in model.tensors)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "gpt-5"}, "no synthetic model is called 'gpt-5'"),
        ({"name": "qwen3-30b-a3b", "layers": 49}, "48 layers, 49"),
        ({"name": "qwen3-30b-a3b", "layers": 0}, "48 layers, 0"),
        ({"name": "deepseek-v2-lite", "layers": 2}, "2 layers would be read as another deepseek2 model"),
        ({"name": "deepseek-v3", "layers": 27}, "27 layers would be read as another deepseek2 model"),
        ({"name": "qwen3-30b-a3b", "quant": "q9"}, "'q9' is unknown"),
    ],
)
def test_wrong_wishes_are_named(arguments, words):
    with pytest.raises(ConfigError, match=words):
        SyntheticModel(**arguments)


@pytest.mark.parametrize("deviation", [0.02, 0.3])
@pytest.mark.parametrize("kind", BLOCK_TYPES, ids=lambda kind: kind.name)
def test_blocks_have_the_wanted_deviation(kind, deviation):
    rows = random_rows(np.random.default_rng(0), kind, 64, 2048, deviation)
    values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(int(kind)))
    assert np.isfinite(values).all()
    is_coarse = kind is GgmlType.NVFP4 and deviation == 0.02  # below its smallest scale with full precision
    assert values.std() == pytest.approx(deviation, rel=0.25 if is_coarse else 0.06)


def test_a_vocabulary_has_at_least_the_bytes():
    assert len(byte_level_vocabulary(N_MIN)["tokenizer.ggml.tokens"][1]) == N_MIN
    with pytest.raises(ValueError, match=f"at least {N_MIN} tokens, not 258"):
        byte_level_vocabulary(N_MIN - 1)


@pytest.mark.parametrize(
    ("name", "shares"),
    [("gpt-oss-120b", {0.09: 0.45}), ("qwen3-30b-a3b", {0.1: 0.30, 0.2: 0.48, 0.4: 0.71})],
)
def test_routing_is_skewed_as_in_the_real_models(name, shares):
    """Share of the traffic that the best fixed part of all experts gets, for normed activations."""
    model = SyntheticModel(name, layers=2)
    shape = model.shape
    x = np.random.default_rng(0).standard_normal((1500, shape.n_embd), np.float32)
    counts = []
    for i in range(shape.n_layer):
        logits = x @ model.tensor_bytes(f"blk.{i}.ffn_gate_inp.weight", 0, shape.n_expert).view(np.float32).T
        if shape.skew == "bias":
            logits += model.tensor_bytes(f"blk.{i}.ffn_gate_inp.bias", 0, 1).view(np.float32)
        chosen = np.argpartition(-logits, shape.n_used, axis=1)[:, : shape.n_used]
        counts.append(np.bincount(chosen.ravel(), minlength=shape.n_expert))
    assert np.argmax(counts[0]) != np.argmax(counts[1]), "the order differs from layer to layer"
    traffic = np.sort(np.concatenate(counts))[::-1] / np.sum(counts)
    for part, share in shares.items():
        assert traffic[: round(part * traffic.size)].sum() == pytest.approx(share, abs=0.04)


@pytest.mark.peer
@pytest.mark.parametrize("name", TINY)
def test_llama_cpp_runs_the_files(tmp_path, name):
    """Past the window and the original context; logits are neither flat nor stuck on one token."""
    path = tmp_path / "m.gguf"
    write_gguf(SyntheticModel(name), path, progress=False)
    logits = oracle.logits(path, range(1, 65))
    assert np.isfinite(logits).all()
    assert (logits.std(-1) > 1).all()
    assert len(set(logits.argmax(-1).tolist())) > 16


def test_an_unfinished_file_is_removed(tmp_path, monkeypatch):
    model = SyntheticModel("tiny-llama")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(model, "tensor_bytes", fail)
    with pytest.raises(OSError, match="no space"):
        write_gguf(model, tmp_path / "m.gguf", progress=False)
    assert list(tmp_path.iterdir()) == []
