#!/usr/bin/env python3
"""Holds the house's sizes: Python files, Python functions, C++ functions, the public header, no arch names in the core.

Exceptions stand in tools/size_exceptions.txt, one `path: reason` a line; an exception that is no longer needed is an
error too, so the list only holds what is true.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PY_FILE_MAX = 400
PY_FUNCTION_MAX = 60
CPP_FUNCTION_MAX = 80
KERNEL_MAX = 150
HEADER_MAX = 600
# Public models by name, the test kit, and tokenizers, some of which are called like an architecture.
NAMES_ALLOWED = ("strata/testing/", "strata/synthetic/", "strata/text/")
_NO_FUNCTION = re.compile(
    r"(namespace|struct|class|enum|union|extern|static const|const|constexpr|alignas|inline const)\b.*[^)]\s*\{$"
)


def exceptions() -> dict[str, str]:
    lines = (ROOT / "tools/size_exceptions.txt").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines if line.strip() and not line.startswith("#"))
    return {path.strip(): reason.strip() for path, reason in pairs}


def tracked(*patterns: str) -> list[Path]:
    names = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split()]


def python_problems(path: Path) -> list[str]:
    text = path.read_text()
    n_lines = text.count("\n")
    found = [f"{n_lines} lines; at most {PY_FILE_MAX}"] if n_lines > PY_FILE_MAX else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            n = (node.end_lineno or node.lineno) - node.lineno + 1
            if n > PY_FUNCTION_MAX:
                found.append(f"{node.name} has {n} lines; at most {PY_FUNCTION_MAX}")
    return found


def cpp_problems(path: Path) -> list[str]:
    """Functions are blocks whose closing brace stands in column 0 and whose head is not a type or namespace."""
    found: list[str] = []
    lines = path.read_text().splitlines()
    start = None
    for i, line in enumerate(lines):
        opens = line.endswith("{") and not line.startswith((" ", "}", "#", "/"))
        if opens and not _NO_FUNCTION.match(line):
            start = i
        if line.startswith("}") and start is not None:
            n, limit = i - start + 1, KERNEL_MAX if re.search(r"\bk_\w+\(|Kernel", lines[start]) else CPP_FUNCTION_MAX
            if n > limit:
                found.append(f"the function at line {start + 1} has {n} lines; at most {limit}")
            start = None
    return found


def arch_names() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text()
    section = text.split('[project.entry-points."strata.architectures"]', 1)[1].split("\n[", 1)[0]
    names = set(re.findall(r"^\"?([\w-]+)\"? *=", section, re.M))
    return {name for name in names if name != "llama"}  # also the name of a tokenizer model


def name_problems(path: Path, names: set[str]) -> list[str]:
    text = path.read_text()
    found = (name for name in sorted(names) if re.search(rf"[\"']{re.escape(name)}[\"']", text))
    return [f"names the architecture {name}" for name in found]


def main() -> int:
    allowed = exceptions()
    problems: dict[str, list[str]] = {}
    for path in tracked("*.py"):
        if path.name != "_abi.py":
            problems[str(path.relative_to(ROOT))] = python_problems(path)
    for path in tracked("native/*.cpp", "native/*.h", "native/*.cu", "native/*.cuh"):
        problems[str(path.relative_to(ROOT))] = cpp_problems(path)
    header = ROOT / "native/include/strata.h"
    if (n := header.read_text().count("\n")) > HEADER_MAX:
        problems[str(header.relative_to(ROOT))].append(f"{n} lines; at most {HEADER_MAX}")
    names = arch_names()
    for path in tracked("strata/*.py", "native/src/*"):
        name = str(path.relative_to(ROOT))
        if not name.startswith(NAMES_ALLOWED):
            problems.setdefault(name, []).extend(name_problems(path, names))
    bad = {path: found for path, found in problems.items() if found}
    for path, found in sorted(bad.items()):
        if path not in allowed:
            print("\n".join(f"{path}: {problem}" for problem in found))
    for path in sorted(set(allowed) - set(bad)):
        print(f"tools/size_exceptions.txt: {path} needs no exception any more")
    return int(bool(set(bad) ^ set(allowed)))


if __name__ == "__main__":
    sys.exit(main())
