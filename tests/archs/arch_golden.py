"""Golden plans: one JSON file per architecture under golden/, one table row a line, so that a change reads as a diff.

`python tests/archs/arch_golden.py` writes them anew.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from arch_sources import ALL_CASES, shipped_sources

from strata.arch.bind import bind
from strata.arch.plan import plan
from strata.arch.plan_tables import ModelPlan
from strata.arch.registry import Registry
from strata.gguf.reader import read_gguf
from strata.testing.conformance import write_case

FOLDER = Path(__file__).parent / "golden"
GOLDEN = tuple(name for name, case in ALL_CASES.items() if name == case["arch"])
N_BATCH, N_OUTPUTS = 32, 4


def golden_path(name: str) -> Path:
    """Where the golden plan of an architecture lies."""
    return FOLDER / f"{name}.json"


def made(name: str, path: Path) -> ModelPlan:
    """The plan of a case's file, free of its place on disk."""
    case = ALL_CASES[name]
    bound = bind(Registry(sources=shipped_sources()).lookup(case["arch"]), read_gguf(path))
    table = plan(bound, n_batch=N_BATCH, n_outputs_max=N_OUTPUTS)
    return msgspec.structs.replace(table, paths=(path.name,))


def text(table: ModelPlan) -> str:
    """JSON with one row of a table a line."""
    parts: list[str] = []
    for field, value in msgspec.to_builtins(table).items():
        rows = value if isinstance(value, list | tuple) else None
        if rows:
            lines = ",\n  ".join(msgspec.json.encode(row).decode() for row in rows)
            parts.append(f'"{field}": [\n  {lines}\n ]')
        else:
            parts.append(f'"{field}": {msgspec.json.encode(value).decode()}')
    return "{\n " + ",\n ".join(parts) + "\n}\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for arch_name in GOLDEN:
            file = write_case(ALL_CASES[arch_name], Path(folder) / f"tiny-{arch_name}.gguf")
            golden_path(arch_name).write_text(text(made(arch_name, file)))
