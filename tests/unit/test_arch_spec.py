"""Declarations are data: their form on disk, their JSON, and derivation."""

from __future__ import annotations

import ast
import tomllib
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from strata.arch.bind_tensors import Claims
from strata.arch.spec import Arch, Dim, Gqa, Key, Rope, derive
from strata.gguf.reader import Tensor

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "plugins/strata_archs"
MODULES = sorted(path for path in FOLDER.glob("*.py") if path.name != "__init__.py")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENTRY_POINTS: dict[str, str] = PROJECT["entry-points"]["strata.architectures"]
ALLOWED_NODES = (
    ast.Call,
    ast.Constant,
    ast.Load,
    ast.Name,
    ast.Tuple,
    ast.keyword,
    ast.UnaryOp,
    ast.USub,
)


def complaints(source: str) -> list[str]:
    """What is not data in a plugin module."""
    tree = ast.parse(source)
    body = list(tree.body)
    found: list[str] = []
    if ast.get_docstring(tree) is None:
        found.append("no docstring")
    else:
        body = body[1:]
    while body and isinstance(body[0], ast.ImportFrom) and _is_plain_import(body[0]):
        body = body[1:]
    if len(body) != 1 or not isinstance(body[0], ast.Assign) or ast.unparse(body[0].targets[0]) != "ARCH":
        return [*found, "more than imports and one assignment to ARCH"]
    words = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    for node in ast.walk(body[0].value):
        if not isinstance(node, ALLOWED_NODES):
            found.append(f"{type(node).__name__} at line {getattr(node, 'lineno', 0)}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) not in words:
            found.append(f"a call of {ast.unparse(node.func)}")
    return found


def _is_plain_import(node: ast.ImportFrom) -> bool:
    sibling = (node.module or "").startswith("strata_archs.") and [alias.name for alias in node.names] == ["ARCH"]
    return node.module == "strata.arch.spec" or sibling


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_plugins_are_data(path: Path) -> None:
    assert complaints(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        'ARCH = Arch(name="x")',
        '"""X."""\nimport os\nARCH = Arch()',
        '"""X."""\nfrom strata.arch.spec import Arch\nX = 1\nARCH = Arch(name="x")',
        '"""X."""\nfrom strata.arch.spec import Arch\nARCH = Arch(name="x" if True else "y")',
        '"""X."""\nfrom strata.arch.spec import Arch\nARCH = Arch(name=open("x").read())',
        '"""X."""\nfrom strata.arch.spec import Arch\nARCH = Arch(name=(lambda: "x")())',
        '"""X."""\nfrom strata.arch.bind import bind\nARCH = bind()',
    ],
)
def test_code_in_a_plugin_is_found(source: str) -> None:
    assert complaints(source)


def test_modules_and_entry_points_agree() -> None:
    assert {target.partition(":")[0] for target in ENTRY_POINTS.values()} == {f"strata_archs.{p.stem}" for p in MODULES}


def test_the_docs_list_every_architecture() -> None:
    text = (ROOT / "docs/add-an-arch.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| `")}
    listed = {name.strip("`"): line for name, line in rows.items() if "plugins/strata_archs" in line}
    assert set(listed) == set(ENTRY_POINTS)
    for name, target in ENTRY_POINTS.items():
        assert f"`plugins/{target.partition(':')[0].replace('.', '/')}.py`" in listed[name]


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_declaration(name: str) -> None:
    """Its name is the entry point's, its module is named after it, and its JSON reads back."""
    module, _, attribute = ENTRY_POINTS[name].partition(":")
    arch = getattr(import_module(module), attribute)
    assert arch.name == name
    assert module == f"strata_archs.{name.replace('-', '_').replace('.', '_')}"
    assert msgspec.json.decode(msgspec.json.encode(arch), type=Arch) == arch
    assert arch.source
    assert arch.tested_with


def test_core_names_no_architecture() -> None:
    """The core switches on vocabulary. Tokenizers share a name with one, and the generator of public shapes needs them."""
    for path in (ROOT / "strata").rglob("*.py"):
        parts = path.relative_to(ROOT / "strata").parts
        if parts[0] in ("text", "testing", "synthetic") or path.name == "_abi.py":
            continue
        texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert texts.isdisjoint(ENTRY_POINTS), path


def test_derive() -> None:
    parent = Arch(name="a", source="s", tested_with=(), attention=Gqa(rope=Rope(style="norm")))
    child = derive(parent, name="b", nextn=True)
    assert (child.name, child.derived_from, child.nextn, child.attention) == ("b", "a", True, parent.attention)
    with pytest.raises(ValueError, match="b is derived from a: derive from that one"):
        derive(child, name="c")
    with pytest.raises(TypeError, match="own name"):
        derive(parent, nextn=True)
    with pytest.raises(TypeError, match="naem"):
        derive(parent, name="b", naem=1)


def test_ignore_globs_are_honoured() -> None:
    """Tensors that a declaration names as unused are neither bound nor unexpected."""
    claims = Claims(_Empty({"v.a.weight": Tensor("v.a.weight", 0, (4,), 0, 0, 16)}), ())
    claims.settle(("v.*",))
    assert claims.ignored == {"v.a.weight": "the declaration ignores v.*"}
    assert claims.unexpected == []


class _Empty(msgspec.Struct):
    tensors: dict[str, Tensor]
    paths: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    kinds: dict[str, str] = {}


def test_misspelt_fields_fail_at_once() -> None:
    with pytest.raises(TypeError):
        Gqa(rope=Rope(style="norm"), qkv_bais="required")  # pyright: ignore[reportCallIssue]


def test_keys_tell_missing_from_default() -> None:
    assert Key("x").default is None
    assert Key("x", Dim("n_ff", over="n_expert_used")).default == Dim("n_ff", "n_expert_used")
