"""The reader takes well-formed files whole, and refuses everything else by name, quickly and without big allocations."""

import contextlib
import resource
import struct
from importlib.resources import files

import gguf as gguf_package
import gguf_bytes as gb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import BadGguf
from strata.gguf.inventory import bytes_by_type, fingerprint
from strata.gguf.quants import GgmlType, packed_bytes, row_bytes, type_info
from strata.gguf.reader import read_gguf

DEMO = files("strata.models").joinpath("strata-demo.gguf")


def refuse(tmp_path, content: bytes, *words: str) -> None:
    path = gb.write(tmp_path, content)
    with pytest.raises(BadGguf) as caught:
        read_gguf(path)
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_everything_is_read(tmp_path):
    file = read_gguf(gb.write(tmp_path, gb.good()))
    assert file.metadata["general.architecture"] == "test"
    assert file.metadata["test.flag"] is True
    assert file.metadata["test.names"] == ["a", "é", "\udcff"]
    assert file.kinds == {
        "general.architecture": "str",
        "test.block_count": "u32",
        "test.flag": "bool",
        "test.eps": "f32",
        "test.names": "[str]",
        "test.sizes": "[u32]",
    }
    two = file.tensors["two"]
    assert (two.ne, two.type, two.n_bytes) == ((32, 3), GgmlType.Q8_0, 3 * 34)
    assert two.offset == file.data_offsets[0] + 32


def test_the_demo_model_reads_as_the_reference_reader_reads_it():
    ours, theirs = read_gguf(str(DEMO)), gguf_package.GGUFReader(str(DEMO))
    assert len(ours.tensors) == len(theirs.tensors)
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.type, mine.ne) == (tensor.tensor_type, tuple(tensor.shape.tolist()))
        assert (mine.offset, mine.n_bytes) == (tensor.data_offset, tensor.n_bytes)
    for field in theirs.fields.values():
        if not field.name.startswith("GGUF."):
            assert ours.metadata[field.name] == pytest.approx(field.contents())
    assert sum(bytes_by_type(ours).values()) == sum(tensor.n_bytes for tensor in theirs.tensors)


def test_block_sizes_are_the_reference_packages():
    for kind in GgmlType:
        info = type_info(kind)
        assert (info.block, info.block_bytes) == gguf_package.GGML_QUANT_SIZES[gguf_package.GGMLQuantizationType(kind)]


def test_version_2_is_read_and_others_are_named(tmp_path):
    assert read_gguf(gb.write(tmp_path, gb.gguf(version=2))).version == 2
    refuse(tmp_path, gb.gguf(version=1), "version is 1", "2 and 3")
    refuse(tmp_path, gb.gguf(version=4), "version is 4")
    big = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    refuse(tmp_path, big, "big-endian")
    refuse(tmp_path, gb.gguf(magic=b"GGML"), "no GGUF file")
    refuse(tmp_path, b"", "empty")


def test_missing_file_and_folder_are_named(tmp_path):
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(BadGguf, match=str(path)):
            read_gguf(path)


def test_every_truncation_is_refused(tmp_path):
    whole = gb.good()
    for n in range(len(whole)):
        with pytest.raises(BadGguf):
            read_gguf(gb.write(tmp_path, whole[:n]))


BIG = [2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1]


@pytest.mark.parametrize("n", BIG)
def test_absurd_counts(tmp_path, n):
    refuse(tmp_path, gb.gguf(counts=(n, 0)), "tensors", str(n))
    refuse(tmp_path, gb.gguf(counts=(0, n)), "metadata entries", str(n))
    refuse(tmp_path, gb.gguf([gb.array("a", gb.STRING, n, b"")]), str(n))
    refuse(tmp_path, gb.gguf([gb.array("a", gb.U64, n, b"")]), str(n))
    refuse(tmp_path, gb.gguf([gb.text("a") + struct.pack("<IQ", gb.STRING, n)]), "value of 'a'", str(n))
    refuse(tmp_path, gb.gguf([struct.pack("<Q", n) + b"abc" * 20]), "metadata key 0", str(n))
    refuse(tmp_path, gb.gguf([], [gb.tensor("t", (n,))]), "'t'")
    refuse(tmp_path, gb.gguf([], [gb.tensor("t", (4, n))]), "'t'")
    refuse(tmp_path, gb.gguf([], [gb.tensor("t", (2**16, 2**16, 2**16, 2**16))]), "'t'")
    refuse(tmp_path, gb.gguf([], [gb.tensor("t", (4,), offset=n & ~31)], bytes(64)), "'t'")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gb.gguf([gb.u32("a", 1), gb.u32("a", 1)]), ("'a'", "twice")),
        (gb.gguf([], [gb.tensor("t", (4,)), gb.tensor("t", (4,), offset=32)], bytes(64)), ("'t'", "twice")),
        (gb.gguf([], [gb.tensor("t", (4,)), gb.tensor("u", (4,))], bytes(64)), ("'t'", "'u'", "overlap")),
        (gb.gguf([], [gb.tensor("t", (4, 0))], bytes(64)), ("'t'", "0")),
        (gb.gguf([], [gb.tensor("t", ())], bytes(64)), ("'t'", "0 dimensions")),
        (gb.gguf([], [gb.tensor("t", (1, 1, 1, 1, 1))], bytes(64)), ("'t'", "5 dimensions")),
        (gb.gguf([], [gb.tensor("t", (4,), kind=99)], bytes(64)), ("'t'", "99")),
        (gb.gguf([], [gb.tensor("t", (33,), kind=8)], bytes(64)), ("'t'", "33", "Q8_0")),
        (gb.gguf([], [gb.tensor("t", (4,), offset=4)], bytes(64)), ("'t'", "alignment 32")),
        (gb.gguf([], [gb.tensor("t", (4,), offset=64)], bytes(64)), ("'t'", "64 bytes of data")),
        (gb.gguf([], [gb.tensor("t" * 64, (4,))], bytes(64)), ("64 bytes", "at most 63")),
        (gb.gguf([], [gb.tensor("", (4,))], bytes(64)), ("name of tensor 0",)),
        (gb.gguf([], [gb.tensor(b"\xff", (4,))], bytes(64)), ("not UTF-8",)),
        (gb.gguf([gb.pair(b"\xff", gb.U32, bytes(4))]), ("not UTF-8",)),
        (gb.gguf([gb.pair("k", 13, bytes(8))]), ("'k'", "13")),
        (gb.gguf([gb.pair("k", gb.BOOL, b"\2")]), ("'k'", "2")),
        (gb.gguf([gb.array("k", gb.BOOL, 2, b"\1\3")]), ("'k'", "bool")),
        (gb.gguf([gb.array("k", gb.ARRAY, 1, bytes(16))]), ("'k'", "9")),
        (gb.gguf([gb.u32("general.alignment", 0)]), ("general.alignment", "0")),
        (gb.gguf([gb.u32("general.alignment", 24)]), ("general.alignment", "24")),
        (gb.gguf([gb.u32("general.alignment", 2**31)]), ("general.alignment",)),
        (gb.gguf([gb.string("general.alignment", "32")]), ("general.alignment", "'32'")),
    ],
)
def test_each_refusal_names_the_thing_and_the_value(tmp_path, content, words):
    refuse(tmp_path, content, *words)


def shard(no: int, count: int, name: str, total: int = 2, **fields: int) -> bytes:
    pairs = [gb.u32("split.no", fields.get("no", no)), gb.u32("split.count", fields.get("count", count))]
    pairs.append(gb.u32("split.tensors.count", total))
    return gb.gguf(pairs, [gb.tensor(name, (4,))], bytes(32))


def test_any_part_of_a_split_model_opens_all_of_it(tmp_path):
    paths = [gb.write(tmp_path, shard(i, 2, name), f"m-0000{i + 1}-of-00002.gguf") for i, name in enumerate("ab")]
    for path in paths:
        file = read_gguf(path)
        assert file.paths == tuple(paths)
        assert [(t.name, t.shard) for t in file.tensors.values()] == [("a", 0), ("b", 1)]
    assert fingerprint(read_gguf(paths[0])) == fingerprint(read_gguf(paths[1]))


def test_split_models_that_do_not_fit_together(tmp_path):
    first = gb.write(tmp_path, shard(0, 2, "a"), "m-00001-of-00002.gguf")
    second = tmp_path / "m-00002-of-00002.gguf"
    with pytest.raises(BadGguf, match=second.name):
        read_gguf(first)
    for content, words in (
        (shard(1, 2, "a"), "'a' is in the file twice"),
        (shard(0, 2, "b"), "split.no is 0"),
        (shard(1, 3, "b"), "split.count is 3"),
        (gb.gguf([], [gb.tensor("b", (4,))], bytes(32)), "split"),
    ):
        second.write_bytes(content)
        with pytest.raises(BadGguf, match=words):
            read_gguf(first)
    second.write_bytes(shard(1, 2, "b"))
    first.write_bytes(shard(0, 2, "a", total=5))
    with pytest.raises(BadGguf, match=r"split.tensors.count is 5"):
        read_gguf(first)
    refuse(tmp_path, shard(0, 2, "a"), "-00001-of-00002.gguf")


@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_mutated_files_are_read_or_refused(tmp_path_factory, data):
    content = bytearray(gb.good())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["flip", "big", "cut", "insert"])):
            case "flip":
                content[at] = data.draw(st.integers(0, 255))
            case "big":
                content[at : at + 8] = struct.pack("<Q", data.draw(st.sampled_from(BIG)))
            case "cut":
                del content[at : at + data.draw(st.integers(1, 16))]
            case "insert":
                content[at:at] = data.draw(st.binary(max_size=16))
        if not content:
            break
    path = gb.write(tmp_path_factory.getbasetemp(), bytes(content), "mutated.gguf")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(BadGguf):
        for tensor in read_gguf(path).tensors.values():
            assert 0 < tensor.n_bytes <= len(content) - tensor.offset
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_packed_sizes_are_whole_chunks():
    for kind in GgmlType:
        if type_info(kind).act:
            for n_rows in (1, 16, 17):
                n = packed_bytes(kind, n_rows, 512)
                assert n % 64 == 0
                assert n >= row_bytes(kind, 512) * n_rows
