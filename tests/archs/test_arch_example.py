"""The example package: an architecture of another distribution, found by its entry point and proven by the test kit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
import tomllib
import venv
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from arch_native import library_path
from arch_sources import ROOT

from strata.arch import registry as registry_module
from strata.arch.registry import GROUP, Registry
from strata.gguf.reader import read_gguf
from strata.testing import conformance

EXAMPLE = ROOT / "plugins/example"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the example's own test."""
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.syspath_prepend(EXAMPLE / "tests")
    import test_example_moe

    return test_example_moe


def test_an_entry_point_is_enough(example: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    declared = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    points = [EntryPoint(name, value, GROUP) for name, value in declared.items()]
    monkeypatch.setattr(registry_module, "entry_points", lambda group: points if group == GROUP else [])
    path = conformance.write_case(example.CASE, tmp_path / "tiny.gguf")
    registry = Registry()
    arch = registry.of_file(read_gguf(path))
    assert arch.name == "example-moe"
    entry = registry.listing()[0]
    assert (entry.state, entry.family, entry.verification) == ("ok", "gqa", None)
    assert {"QkNorm", "Router", "SharedExpert"} <= set(entry.words)
    if library_path() is not None:
        assert conformance.compare(arch, path, library=library_path()).problems() == []


def test_a_wrong_declaration_is_seen(example: Any, tmp_path: Path) -> None:
    """The kit's verdict is not always yes: rotation of neighbours instead of halves gives other logits than llama.cpp."""
    if library_path() is None:
        pytest.skip("libstrata is not built")
    wrong = msgspec.structs.replace(
        example.ARCH,
        attention=msgspec.structs.replace(
            example.ARCH.attention, rope=msgspec.structs.replace(example.ARCH.attention.rope, style="norm")
        ),
    )
    path = conformance.write_case(example.CASE, tmp_path / "tiny.gguf")
    peer = conformance.write_case(example.relative(), tmp_path / "relative.gguf")
    result = conformance.compare(wrong, path, peer=peer, library=library_path())
    assert len(result.problems()) == 1
    assert "llama.cpp's logits differ" in result.problems()[0]


@pytest.mark.slow
def test_installed_into_a_fresh_environment(example: Any, tmp_path: Path) -> None:
    """pip installs it, `strata archs` lists it, `strata logits` runs a model of it, its own test passes."""
    source = shutil.copytree(EXAMPLE, tmp_path / "example")
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin/python"
    # strata and its dependencies are those of this environment; only the example is new
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    pth = "".join(f"import site; site.addsitedir({path!r})\n" for path in paths)
    site_packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    (Path(site_packages) / "strata_of_the_tests.pth").write_text(pth)

    def run(*arguments: object) -> str:
        done = subprocess.run([python, *map(str, arguments)], cwd=source, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-m", "pip", "install", "-q", "--no-deps", source)
    listed = {entry["name"]: entry for entry in json.loads(run("-m", "strata", "archs", "--json"))}
    assert listed["example-moe"]["state"] == "ok"
    assert listed["example-moe"]["distribution"] == "strata-arch-example"
    path = conformance.write_case(example.CASE, tmp_path / "tiny.gguf")
    run("-m", "strata", "logits", "-m", path, "--tokens", "5,6,7", "--out", tmp_path / "logits.npy")
    assert np.load(tmp_path / "logits.npy").shape == (3, example.N_VOCAB)
    assert "1 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
