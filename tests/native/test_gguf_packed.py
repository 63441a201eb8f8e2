"""The ledger's sizes of packed matrices are the native library's."""

from typing import Any

from strata.gguf.quants import GgmlType, packed_bytes, type_info

COLUMNS = (256, 512, 768, 2816, 4096)


def test_packed_bytes(native: Any) -> None:
    for kind in GgmlType:
        if not type_info(kind).act:
            continue
        for n_cols in (*COLUMNS, type_info(kind).block, 3 * type_info(kind).block):
            for n_rows in (1, 15, 16, 17, 32, 1000):
                expected = native.strata_test_packed_bytes(int(kind), n_rows, n_cols)
                assert packed_bytes(kind, n_rows, n_cols) == expected > 0, (kind, n_rows, n_cols)
