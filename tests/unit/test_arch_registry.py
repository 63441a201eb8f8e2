"""Lookup by name: unknown, broken and doubled plugins, none of which harms another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strata.arch.registry import Registry, Source, installed_sources
from strata.arch.spec import Arch, Gqa, Rope
from strata.arch.verified import Verification, verification_of
from strata.errors import BindError, ModelError, UnknownArch

GOOD = Arch(name="good", source="a paper", tested_with=(), attention=Gqa(rope=Rope(style="norm")))


def source(name: str, value: Any, distribution: str = "dist") -> Source:
    def load() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return Source(name, distribution, f"{distribution}.mod:ARCH", load)


def test_lookup() -> None:
    registry = Registry([source("good", GOOD)])
    assert registry.lookup("good") == GOOD
    assert registry.names() == ["good"]


def test_unknown_names_near_ones_and_the_way_out() -> None:
    registry = Registry([source("qwen3moe", GOOD), source("llama", GOOD)])
    with pytest.raises(UnknownArch) as caught:
        registry.lookup("qwen2moe", "x.gguf")
    text = str(caught.value)
    assert text.startswith("x.gguf: architecture 'qwen2moe' is not registered (similar ones: qwen3moe)")
    assert "entry point named 'qwen2moe' in group strata.architectures" in text
    with pytest.raises(UnknownArch, match="known: llama, qwen3moe"):
        registry.lookup("zzz")
    with pytest.raises(UnknownArch, match="known: none"):
        Registry([]).lookup("zzz")


BROKEN = [
    (ImportError("no module named x"), "ImportError: no module named x"),
    ("text", "it gives str, not strata.arch.spec.Arch"),
    (msgspec.structs.replace(GOOD, name="other"), "it declares 'other'"),
    (msgspec.structs.replace(GOOD, attention=Gqa(rope=Rope(style="nope"))), "Invalid enum value 'nope'"),  # type: ignore
    (msgspec.structs.replace(GOOD, tested_with=7), "Expected `array`, got `int`"),
    (msgspec.structs.replace(GOOD, source=object()), "object"),
]


@pytest.mark.parametrize(("value", "message"), BROKEN, ids=[b[1] for b in BROKEN])
def test_broken_plugin_breaks_itself_only(value: Any, message: str) -> None:
    registry = Registry([source("bad", value, "third-party"), source("good", GOOD)])
    with pytest.raises(ModelError, match=r"the plugin for 'bad' .* of third-party") as caught:
        registry.lookup("bad")
    assert message in str(caught.value)
    assert registry.lookup("good") == GOOD
    states = {entry.name: entry.state for entry in registry.listing()}
    assert states == {"bad": "broken", "good": "ok"}


def test_two_distributions_for_one_name() -> None:
    sources = [source("good", GOOD, "one"), source("good", GOOD, "two")]
    with pytest.raises(ModelError, match=r"registered by one \(one.mod:ARCH\) and two \(two.mod:ARCH\)"):
        Registry(sources).lookup("good")
    assert [entry.state for entry in Registry(sources).listing()] == ["duplicate", "duplicate"]
    preferring = Registry(sources, prefer={"good": "two"})
    assert preferring.lookup("good") == GOOD
    assert {entry.distribution: entry.state for entry in preferring.listing()} == {"one": "duplicate", "two": "ok"}


def test_of_file() -> None:
    registry = Registry([source("good", GOOD)])
    assert registry.of_file(File({"general.architecture": "good"})) == GOOD
    with pytest.raises(BindError, match=r"x\.gguf: general\.architecture is None; accepted: a string"):
        registry.of_file(File({}))
    with pytest.raises(UnknownArch, match=r"^x\.gguf: "):
        registry.of_file(File({"general.architecture": "bad"}))


class File(msgspec.Struct):
    """A model file that has metadata only."""

    metadata: dict[str, Any]
    paths: tuple[str, ...] = ("x.gguf",)
    kinds: dict[str, str] = {}
    tensors: dict[str, Any] = {}


def test_installed_sources_are_distinct() -> None:
    found = [(one.name, one.distribution, one.target) for one in installed_sources()]
    assert len(found) == len(set(found))


def test_every_shipped_architecture_was_measured() -> None:
    """A new one is: python tools/archs_table.py NAME."""
    shipped = [one for one in installed_sources() if one.target.startswith("strata_archs.")]
    assert shipped
    for one in shipped:
        seen = verification_of(one.name, one.target)
        assert seen is not None, one.name
        assert seen.state == "verified"
        assert 0.0 <= seen.kl_cpu < 1e-6
        assert seen.top1 > 0.95


def test_a_distribution_ships_its_own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "strange_archs"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    assert verification_of("good", "strange_archs.good:ARCH") is None
    numbers = {
        "state": "differs",
        "n_models": 2,
        "kl_cpu": 0.5,
        "kl_worst": 0.75,
        "top1": 0.25,
        "date": "2026-01-31",
        "commit": "abc",
    }
    (folder / "verified.json").write_text(json.dumps({"good": numbers}))
    strange = Source("good", "strange", "strange_archs.good:ARCH", lambda: GOOD)
    entry = Registry([strange]).listing()[0]
    assert entry.verification == Verification(**numbers)
    assert (entry.family, entry.words) == ("gqa", ("Block", "Gqa", "Head", "Rope", "Yarn"))
    assert verification_of("other", strange.target) is None
    (folder / "verified.json").write_text(json.dumps({"good": numbers | {"state": "fine"}}))
    entry = Registry([strange]).listing()[0]
    assert entry.state == "broken"
    assert "verified.json: Invalid enum value 'fine'" in entry.detail
