"""Type numbers, block sizes and activation forms."""

import ctypes
from pathlib import Path

import gguf
import pytest

from strata.gguf.quants import GgmlType, is_interleaved, packed_bytes, row_bytes, type_info, type_name

FORMS = {
    "f32": {"F32", "F16", "BF16"},
    "a32": {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "NVFP4"},
    "": {"F64", "I8", "I16", "I32", "I64", "Q8_K"},
}


def test_names_and_numbers_are_the_reference_packages():
    for kind in GgmlType:
        assert gguf.GGMLQuantizationType(int(kind)).name == kind.name == type_name(kind)


def test_activation_forms():
    """A float for floats, a scale per 32 values for blocks of 32 and 64, one per 256 for super-blocks."""
    for kind in GgmlType:
        expected = next((form for form, names in FORMS.items() if kind.name in names), "a256")
        assert type_info(kind).act == expected
        if expected in ("a32", "a256"):
            assert (type_info(kind).block == 256) == (expected == "a256")


@pytest.mark.peer
def test_block_sizes_are_ggmls():
    xllamacpp = pytest.importorskip("xllamacpp")
    judge = ctypes.CDLL(str(Path(xllamacpp.__file__).parent / "xllamacpp.abi3.so"))
    judge.ggml_type_name.restype = ctypes.c_char_p
    judge.ggml_type_size.restype = ctypes.c_size_t
    judge.ggml_blck_size.restype = ctypes.c_int64
    for kind in GgmlType:
        info = type_info(kind)
        assert judge.ggml_type_name(int(kind)).decode().upper() == info.name.upper()
        assert (info.block, info.block_bytes) == (judge.ggml_blck_size(int(kind)), judge.ggml_type_size(int(kind)))


def test_rows():
    assert row_bytes(GgmlType.Q4_K, 512) == 288
    with pytest.raises(ValueError, match="no multiple of Q4_K's block of 256"):
        row_bytes(GgmlType.Q4_K, 384)
    with pytest.raises(ValueError, match="99 is unknown"):
        row_bytes(99, 256)
    assert type_info(9) is None  # Q8_1 holds activations and is in no file
    assert type_name(99) == "type 99"


def test_packed_layouts_cost_at_most_their_padding():
    """Whole groups of 16 rows; beside the weights' own bytes only the padding of scale chunks."""
    for kind in GgmlType:
        if type_info(kind).act and is_interleaved(kind):
            for n_cols in (256, 512, 2816):
                exact = 16 * row_bytes(kind, n_cols)
                assert exact <= packed_bytes(kind, 1, n_cols) == packed_bytes(kind, 16, n_cols) < exact + 64
                assert packed_bytes(kind, 17, n_cols) == 2 * packed_bytes(kind, 16, n_cols)
