"""What a file may claim at most, what is no file at all, and what tensors say about their parts."""

import os
import struct
from pathlib import Path

import gguf_bytes as gb
import pytest

from strata.errors import BadGguf
from strata.gguf import reader
from strata.gguf.reader import Tensor, read_gguf


def refusal(path: Path) -> str:
    with pytest.raises(BadGguf) as caught:
        read_gguf(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        ("MAX_KEYS", 5, ("counts 6 metadata entries", "at most 5")),
        ("MAX_TENSORS", 1, ("2 tensors", "and 1")),
        ("MAX_ELEMENTS", 4, ("'test.sizes' of 2 elements", "makes 5 in all", "at most 4")),
        ("MAX_DIRECTORY_BYTES", 100, ("goes from offset", "may take 100 bytes")),
        ("MAX_NAME_BYTES", 2, ("3 bytes", "at most 2")),
    ],
)
def test_each_limit_is_kept(tmp_path, monkeypatch, limit, value, words):
    path = gb.write(tmp_path, gb.good())
    read_gguf(path)
    monkeypatch.setattr(reader, limit, value)
    text = refusal(path)
    for word in (str(path), *words):
        assert word in text


def test_limits_leave_room_for_large_models():
    """Three times the largest vocabulary, with its merges, scores and types; all experts of 61 layers apart."""
    assert reader.MAX_ELEMENTS > 3 * (262144 * 3 + 515000)
    assert reader.MAX_TENSORS > 3 * 61 * 256 * 3
    assert reader.MAX_DIRECTORY_BYTES > 3 * (30 << 20)


@pytest.mark.parametrize("kind", [gb.U64, gb.STRING])
def test_a_sparse_file_cannot_make_a_long_array_true(tmp_path, kind):
    """The file is long enough for every byte that is claimed; nothing is allocated for it."""
    path = gb.write(tmp_path, gb.gguf([gb.array("a", kind, 2**31, b"")]))
    os.truncate(path, 2**35)
    assert "at most" in refusal(path)


def test_a_sparse_file_cannot_make_a_long_string_true(tmp_path):
    path = gb.write(tmp_path, gb.gguf([gb.text("a") + struct.pack("<IQ", gb.STRING, 2**34)]))
    os.truncate(path, 2**35)
    assert "may take" in refusal(path)
    path = gb.write(tmp_path, gb.gguf([gb.array("a", gb.STRING, 1, struct.pack("<Q", 2**34))]))
    os.truncate(path, 2**35)
    assert "element 0" in refusal(path)


def test_a_pipe_does_not_block(tmp_path):
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    assert "not a regular file" in refusal(path)


def test_a_part_without_its_number_is_named(tmp_path):
    count = gb.u32("split.count", 2)
    first = gb.write(tmp_path, gb.gguf([gb.u32("split.no", 0), count]), "m-00001-of-00002.gguf")
    second = gb.write(tmp_path, gb.gguf([count]), "m-00002-of-00002.gguf")
    text = refusal(first)
    assert str(second) in text
    assert "split.no is missing" in text
    assert "part 2 of 2" in text


def test_absurd_part_counts_are_refused(tmp_path):
    path = gb.write(tmp_path, gb.gguf([gb.u32("split.count", 2**31)]), "m-00001-of-00002.gguf")
    assert "split.count is 2147483648" in refusal(path)


def test_strides_of_a_stack():
    tensor = Tensor("blk.0.ffn_up_exps.weight", 39, (2880, 64, 32), 0, 4096, 90 * 17 * 64 * 32)
    assert tensor.n_rows == 64 * 32
    assert tensor.row_bytes == 90 * 17
    assert tensor.matrix_bytes == 90 * 17 * 64
    vector = Tensor("norm", 0, (7,), 0, 0, 28)
    assert (vector.n_rows, vector.row_bytes, vector.matrix_bytes) == (1, 28, 28)
