"""The fingerprint follows the weights, not the packaging."""

from pathlib import Path

import gguf
import gguf_bytes as gb
import numpy as np

from strata.gguf.inventory import bytes_by_type, fingerprint
from strata.gguf.reader import read_gguf

MIB = 1 << 20


def model(data: bytes, name: str = "w", pairs: tuple[bytes, ...] = ()) -> bytes:
    return gb.gguf(pairs, [gb.tensor(name, (len(data) // 4,))], data)


def print_of(folder: Path, content: bytes) -> str:
    return fingerprint(read_gguf(gb.write(folder, content)))


def test_what_changes_the_fingerprint(tmp_path):
    data = bytearray(3 * MIB)
    original = print_of(tmp_path, model(data))
    assert len(original) == 64
    assert original == print_of(tmp_path, model(data))
    assert original == print_of(tmp_path, model(data, pairs=(gb.string("general.name", "renamed"),)))
    others = {print_of(tmp_path, model(data, "v")), print_of(tmp_path, model(data[: -4 * 8]))}
    for at in (0, MIB - 1, len(data) - MIB, len(data) - 1):
        changed = data.copy()
        changed[at] = 1
        others.add(print_of(tmp_path, model(changed)))
    assert len(others - {original}) == 6


def test_bytes_by_type_are_sorted_by_size(tmp_path):
    tensors = [gb.tensor("a", (4,)), gb.tensor("b", (32, 3), kind=8, offset=32), gb.tensor("c", (4,), offset=160)]
    path = gb.write(tmp_path, gb.gguf([], tensors, bytes(176)))
    assert list(bytes_by_type(read_gguf(path)).items()) == [("Q8_0", 102), ("F32", 32)]


def test_a_model_split_by_the_reference_package_is_whole(tmp_path):
    values = {f"t{i}": np.full((2, 8), i, np.float32) for i in range(5)}
    for parts, options in ((1, {}), (3, {"split_max_tensors": 2})):
        writer = gguf.GGUFWriter(tmp_path / f"m{parts}.gguf", "test", **options)
        writer.add_uint32("test.block_count", 1)
        for name, value in values.items():
            writer.add_tensor(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    file = read_gguf(tmp_path / "m3-00002-of-00003.gguf")
    assert [path.name for path in file.paths] == [f"m3-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert file.metadata["test.block_count"] == 1
    for name, value in values.items():
        tensor = file.tensors[name]
        content = file.paths[tensor.shard].read_bytes()
        assert content[tensor.offset : tensor.offset + tensor.n_bytes] == value.tobytes()
