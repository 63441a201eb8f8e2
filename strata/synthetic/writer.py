"""Writes a synthetic model as a GGUF file, tensor by tensor, in bounded memory, with a progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
from tqdm import tqdm

from strata.synthetic.model import ALIGNMENT, SyntheticModel

_PIECE_BYTES = 32 << 20


def write_gguf(model: SyntheticModel, path: str | Path, *, progress: bool = True) -> None:
    """Write the whole file; an unfinished one is removed. Raises: OSError."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        _write_header(model, partial)
        with (
            partial.open("ab") as out,
            tqdm(
                total=model.n_bytes, desc=path.name, unit="B", unit_scale=True, unit_divisor=1024, disable=not progress
            ) as bar,
        ):
            for tensor in model.tensors.values():
                n_rows, step = tensor.n_rows, max(_PIECE_BYTES // tensor.row_bytes, 1)
                for first in range(0, n_rows, step):
                    piece = model.tensor_bytes(tensor.name, first, min(step, n_rows - first))
                    out.write(piece.data)
                    bar.update(piece.nbytes)
                out.write(b"\0" * (-tensor.n_bytes % ALIGNMENT))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_header(model: SyntheticModel, path: Path) -> None:
    writer = gguf.GGUFWriter(path, model.shape.arch)
    add: dict[str, Any] = {
        "u32": writer.add_uint32,
        "f32": writer.add_float32,
        "bool": writer.add_bool,
        "str": writer.add_string,
        "[str]": writer.add_array,
        "[i32]": writer.add_array,
    }
    for key, (kind, value) in model.typed_metadata.items():
        if key != "general.architecture":  # the writer has put it there
            add[kind](key, value)
    for tensor in model.tensors.values():
        writer.add_tensor_info(
            tensor.name,
            tuple(reversed(tensor.ne)),
            None,  # pyright: ignore[reportArgumentType]
            tensor.n_bytes,
            raw_dtype=gguf.GGMLQuantizationType(tensor.type),
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    out = writer.fout[0] if writer.fout else None
    assert out is not None
    out.write(b"\0" * (-out.tell() % ALIGNMENT))
    writer.close()
