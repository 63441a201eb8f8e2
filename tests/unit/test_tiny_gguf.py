"""The kit that writes small models: what is asked for is what the file holds."""

import gguf
import numpy as np
import pytest

from strata.arch.bind import bind
from strata.arch.registry import Registry
from strata.gguf.quants import GgmlType
from strata.gguf.reader import read_gguf
from strata.synthetic.blocks import BLOCK_TYPES, FLOAT_TYPES
from strata.testing import oracle
from strata.testing.tiny_gguf import Given, Random, random_values, write_tiny_gguf
from strata.text.tokenizer import Tokenizer

WEIGHT_TYPES = (*FLOAT_TYPES, *BLOCK_TYPES)


def dequantised(path) -> dict[str, np.ndarray]:
    """Values of each tensor as the reference package reads them, in numpy's order."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        for tensor in gguf.GGUFReader(path).tensors
    }


@pytest.mark.parametrize("kind", WEIGHT_TYPES, ids=lambda kind: kind.name)
def test_every_type_of_weights(tmp_path, kind):
    path = write_tiny_gguf(tmp_path / "m.gguf", "test", {}, {"w": Random((512, 40, 3), kind, 0.05)})
    tensor = read_gguf(path).tensors["w"]
    assert (tensor.ne, tensor.type) == ((512, 40, 3), kind)
    values = dequantised(path)["w"]
    assert np.isfinite(values).all()
    # ternary types round normal values to -d, 0 and d; random 2-bit codes are not balanced
    assert 0.03 < values.std() < 0.08
    assert abs(values.mean()) < 0.3 * values.std()


def test_given_values_are_kept(tmp_path):
    rows = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    tensors = {"a": Given(rows), "b": Given(rows, GgmlType.BF16), "c": Given(rows, GgmlType.Q8_0)}
    path = write_tiny_gguf(tmp_path / "m.gguf", "test", {}, tensors)
    read = dequantised(path)
    np.testing.assert_array_equal(read["a"], rows)
    np.testing.assert_allclose(read["b"], rows, rtol=2**-8)
    np.testing.assert_allclose(read["c"], rows, atol=np.abs(rows).max() / 250)


def test_values_depend_on_seed_and_name_only(tmp_path):
    def weights(seed: int, *names: str) -> dict[str, bytes]:
        tensors = {name: Random((256, 4), GgmlType.IQ3_S) for name in names}
        path = write_tiny_gguf(tmp_path / "m.gguf", "test", {}, tensors, seed=seed)
        content = path.read_bytes()
        found = read_gguf(path).tensors.values()
        return {tensor.name: content[tensor.offset : tensor.offset + tensor.n_bytes] for tensor in found}

    assert weights(0, "a", "b")["b"] == weights(0, "b")["b"]
    assert weights(0, "a")["a"] != weights(1, "a")["a"]
    assert len(set(weights(0, "a", "b").values())) == 2


def test_names_decide_the_spread():
    deviations = {
        name: random_values(name, (256, 512)).std()
        for name in ("blk.0.ffn_up.weight", "output.weight", "blk.0.ffn_gate_inp.weight")
    }
    plain = deviations["blk.0.ffn_up.weight"]
    assert plain == pytest.approx(1 / 16, rel=0.02)
    assert deviations["output.weight"] == pytest.approx(3 * plain, rel=0.02)
    assert deviations["blk.0.ffn_gate_inp.weight"] == pytest.approx(2 * plain, rel=0.02)
    norm = random_values("output_norm.weight", (512,))
    assert norm.mean() == pytest.approx(1, abs=0.02)
    assert random_values("blk.0.ffn_up.scale", (512,)).min() > 0


def test_keys_keep_their_types(tmp_path):
    keys = {
        "block_count": 2,
        "shift": -2,
        "eps": 0.5,
        "flag": True,
        "kind": "yarn",
        "wide": np.uint64(2**40),
        "flags": [True, False],
        "per_layer": [1, 2],
        "signed": [1, -1],
        "small": np.array([1, 2], np.uint8),
        "general.name": "tiny",
    }
    path = write_tiny_gguf(tmp_path / "m.gguf", "test", keys, {"w": Random((4,))})
    file = read_gguf(path)
    assert file.metadata["general.architecture"] == "test"
    assert {key.removeprefix("test."): kind for key, kind in file.kinds.items()} == {
        "general.architecture": "str",
        "block_count": "u32",
        "shift": "i32",
        "eps": "f32",
        "flag": "bool",
        "kind": "str",
        "wide": "u64",
        "flags": "[bool]",
        "per_layer": "[u32]",
        "signed": "[i32]",
        "small": "[u8]",
        "general.name": "str",
    }
    assert file.metadata["test.wide"] == 2**40
    assert file.metadata["test.signed"] == [1, -1]


@pytest.mark.parametrize(("value", "words"), [([], "empty"), ([1, "a"], "mixes"), (None, "accepted"), ({}, "accepted")])
def test_what_a_file_cannot_hold_is_refused(tmp_path, value, words):
    with pytest.raises(ValueError, match=words):
        write_tiny_gguf(tmp_path / "m.gguf", "test", {"key": value}, {})


def mixture(n_layer: int, expert_types: list[GgmlType]) -> tuple[dict, dict]:
    """Keys and tensors of a small Mixtral-like model; layer i's experts are of type i."""
    keys = {
        "block_count": n_layer,
        "context_length": 256,
        "embedding_length": 256,
        "feed_forward_length": 256,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "expert_count": 8,
        "expert_used_count": 2,
    }
    tensors = {"token_embd.weight": Random((256, 300)), "output_norm.weight": Random((256,))}
    tensors["output.weight"] = Random((256, 300), GgmlType.Q6_K)
    for i, kind in enumerate(expert_types):
        lead = f"blk.{i}."
        tensors |= {f"{lead}{x}_norm.weight": Random((256,)) for x in ("attn", "ffn")}
        tensors |= {f"{lead}attn_{x}.weight": Random((256, 256), GgmlType.Q8_0) for x in ("q", "output")}
        tensors |= {f"{lead}attn_{x}.weight": Random((256, 128), GgmlType.F16) for x in ("k", "v")}
        tensors[f"{lead}ffn_gate_inp.weight"] = Random((256, 8))
        tensors |= {f"{lead}ffn_{x}_exps.weight": Random((256, 256, 8), kind) for x in ("gate", "up", "down")}
    return keys, tensors


@pytest.mark.peer
@pytest.mark.parametrize("first", range(0, len(BLOCK_TYPES), 6))
def test_llama_cpp_runs_the_files(tmp_path, first):
    """Tokenizer, metadata and every block type: finite logits that are not flat."""
    kinds = list(BLOCK_TYPES[first : first + 6])
    path = write_tiny_gguf(tmp_path / "m.gguf", "llama", *mixture(len(kinds), kinds))
    logits = oracle.logits(path, range(1, 17))
    assert np.isfinite(logits).all()
    assert (logits.std(-1) > 1).all()
    assert oracle.tokenise(path, "th") == [256]


def test_our_own_parts_take_the_files(tmp_path):
    path = write_tiny_gguf(tmp_path / "m.gguf", "llama", *mixture(2, [GgmlType.IQ1_M, GgmlType.NVFP4]))
    file = read_gguf(path)
    assert bind(Registry().of_file(file), file).n_layer == 2
    tokenizer = Tokenizer.from_metadata(file.metadata, str(path))
    ids = tokenizer.encode("the é", add_special=True, parse_special=True)
    assert ids[0] == 256
    assert tokenizer.decode(ids) == "the é"
