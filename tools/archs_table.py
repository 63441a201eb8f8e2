"""Measures architectures on the tiny models of tests/archs and writes plugins/strata_archs/verified.json.

python tools/archs_table.py             all of them (minutes)
python tools/archs_table.py NAME ...    these; the others keep their numbers

`tools/gen_docs.py` makes docs/architectures.md from the file; `make archs` does both.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/archs"), str(ROOT / "plugins")]

from arch_native import library_path  # noqa: E402  (the tests' own modules, found by the line above)
from arch_sources import ALL_CASES, shipped_sources  # noqa: E402

from strata.arch.registry import Registry  # noqa: E402
from strata.arch.spec import Arch  # noqa: E402
from strata.arch.verified import FILE_NAME, Verification  # noqa: E402
from strata.testing.conformance import Comparison, compare, write_case  # noqa: E402

FILE = ROOT / "plugins/strata_archs" / FILE_NAME
ROUNDED = 3  # digits of a divergence that mean something


def commit() -> str:
    """Short name of the commit that is checked out, with a + where the tree has changes."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def rounded(divergence: float) -> float:
    return float(f"{max(divergence, 0.0):.{ROUNDED}g}")


def measure(arch: Arch, folder: Path, of: str) -> tuple[Verification, list[str]]:
    """The worst of an architecture's cases, and what is wrong with them. of: the commit."""
    results: list[Comparison] = []
    problems: list[str] = []
    for name, case in ALL_CASES.items():
        if case["arch"] == arch.name:
            path = write_case(case, folder / f"{name}.gguf")
            result = compare(arch, path, peer=path, library=library_path())
            problems += [f"{name}: {problem}" for problem in result.problems()]
            results.append(result)
    if not results:
        raise SystemExit(f"{arch.name} has no case in tests/archs")
    return Verification(
        state="differs" if problems else "verified",
        n_models=len(results),
        kl_cpu=rounded(max(result.peer_kl_median or 0.0 for result in results)),
        kl_worst=rounded(max(result.peer_kl or 0.0 for result in results)),
        top1=round(min(result.peer_top1 or 0.0 for result in results), 4),
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        commit=of,
    ), problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures; default all")
    names = parser.parse_args().names
    registry = Registry(sources=shipped_sources())
    kept = msgspec.json.decode(FILE.read_bytes(), type=dict[str, Verification]) if names and FILE.exists() else {}
    status, of = 0, commit()
    with tempfile.TemporaryDirectory() as folder:
        for name in names or registry.names():
            kept[name], problems = measure(registry.lookup(name), Path(folder), of)
            print(f"{name:<16} {kept[name].state} {kept[name].kl_cpu:.1e} {kept[name].top1:.4f}", flush=True)
            for problem in problems:
                print(f"  {problem}")
                status = 1
    rows = (f'  "{name}": {msgspec.json.encode(kept[name]).decode()}' for name in sorted(kept))
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
