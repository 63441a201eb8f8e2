"""Damaged files are read or refused with a ModelError by everything that looks at a file before its weights.

tools/fuzz_gguf.py does the same for as long as one likes.
"""

import os
import random
import resource
from pathlib import Path

import pytest

from strata.arch.bind import inspect_binding
from strata.arch.registry import Registry
from strata.errors import BadGguf, ModelError
from strata.gguf.inventory import bytes_by_type, fingerprint
from strata.gguf.reader import read_gguf
from strata.synthetic import SyntheticModel
from strata.synthetic.writer import write_gguf
from strata.testing.mutations import mutated
from strata.text.chat import ChatTemplate
from strata.text.tokenizer import Tokenizer

N_FILES = 250
REGISTRY = Registry()
KINDS = ("tiny-qwen3moe", "tiny-gpt-oss", "tiny-deepseek2")


def open_all(path: Path) -> ModelError | None:
    """The refusal, if it was refused."""
    try:
        file = read_gguf(path)
        fingerprint(file)
        bytes_by_type(file)
        inspect_binding(REGISTRY.of_file(file), file)
        ChatTemplate.from_metadata(file.metadata, str(path))
        Tokenizer.from_metadata(file.metadata, str(path))
    except ModelError as error:
        return error
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_models(tmp_path, kind):
    path = tmp_path / "m.gguf"
    write_gguf(SyntheticModel(kind), path, progress=False)
    n_header = read_gguf(path).data_offsets[0]
    n_bytes = path.stat().st_size
    header = path.read_bytes()[:n_header]
    outcomes: list[ModelError | None] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(N_FILES):
        path.write_bytes(mutated(header, random.Random(seed), n_header))
        if seed % 8:
            os.truncate(path, n_bytes + 32)  # the data, as a hole
        outcomes.append(open_all(path))
    assert all(str(path) in str(error) for error in outcomes if error is not None)
    kinds = {type(error) for error in outcomes}
    assert {type(None), BadGguf} < kinds, "some are read, some malformed, and some do not make sense"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # KiB


def test_the_same_seed_damages_in_the_same_way():
    content = bytes(range(256)) * 4
    assert mutated(content, random.Random(3), 100) == mutated(content, random.Random(3), 100)
    changed = [mutated(content, random.Random(seed), 64) for seed in range(50)]
    assert len(set(changed)) > 45
    assert all(one[-512:] == content[-512:] for one in changed if len(one) > 900)


def test_every_truncation_of_a_model_is_refused(tmp_path):
    """At places all over the directory, at its end, and in the data."""
    path = tmp_path / "m.gguf"
    write_gguf(SyntheticModel("tiny-llama", layers=1), path, progress=False)
    file, content = read_gguf(path), path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for n in (*range(0, file.data_offsets[0], 29), file.data_offsets[0], len(content) - 33):
        cut.write_bytes(content[:n])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_gguf(cut)
