"""Finds architectures by GGUF name among the installed entry points of group `strata.architectures`.

An entry point's name is the file's general.architecture and its value an `Arch`. Plugins are imported when asked for:
one that cannot be loaded breaks its own architecture and no other.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Literal

import msgspec

from strata.arch.bound import ModelFile
from strata.arch.spec import Arch
from strata.arch.verified import Verification, verification_of
from strata.arch.words import family_of, words_of
from strata.errors import BindError, ModelError, UnknownArch

__all__ = ["GROUP", "ArchEntry", "Registry", "Source", "installed_sources"]

GROUP = "strata.architectures"
_NEAR_NAMES = 5


class Source(msgspec.Struct, frozen=True):
    """One registration: the architecture's name, who registered it, where its value is, and how to get it."""

    name: str
    distribution: str
    target: str
    load: Callable[[], Any]


class ArchEntry(msgspec.Struct, frozen=True):
    """One line of `strata archs`. `detail`: the declaration's source, or what is wrong.

    family, words: of the declaration; verification: what its distribution says was measured, None: nothing.
    """

    name: str
    distribution: str
    state: Literal["ok", "broken", "duplicate"]
    detail: str
    family: str = ""
    words: tuple[str, ...] = ()
    verification: Verification | None = None


def installed_sources() -> list[Source]:
    """Every registration of this environment; the same one seen twice on the path counts once."""
    found: dict[tuple[str, str, str], Source] = {}
    for entry in entry_points(group=GROUP):
        distribution = entry.dist.name if entry.dist is not None else "(unknown distribution)"
        key = (entry.name, distribution, entry.value)
        found.setdefault(key, Source(entry.name, distribution, entry.value, entry.load))
    return list(found.values())


class Registry:
    """Architectures by name.

    sources: registrations to use instead of the installed ones. prefer: name -> distribution, to choose one where two
    register the same architecture.
    """

    def __init__(self, sources: Iterable[Source] | None = None, prefer: Mapping[str, str] | None = None) -> None:
        self._prefer = dict(prefer or {})
        self._sources: dict[str, list[Source]] = {}
        for source in installed_sources() if sources is None else sources:
            self._sources.setdefault(source.name, []).append(source)

    def names(self) -> list[str]:
        """All registered names, broken ones included."""
        return sorted(self._sources)

    def lookup(self, name: str, file: str = "") -> Arch:
        """The architecture called `name`; `file` is named in errors.

        Raises: UnknownArch when nothing registers it; ModelError when its plugin is broken or registered twice.
        """
        sources = self._sources.get(name)
        lead = f"{file}: " if file else ""
        if not sources:
            raise UnknownArch(lead + self._unknown(name))
        return _load(self._chosen(name, sources, lead), lead)

    def of_file(self, file: ModelFile) -> Arch:
        """The architecture that a file names.

        Raises: BindError when it names none; UnknownArch and ModelError as `lookup` does.
        """
        path = str(file.paths[0]) if file.paths else "(no file)"
        name = file.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise BindError(f"{path}: general.architecture is {name!r}; accepted: a string")
        return self.lookup(name, path)

    def listing(self) -> list[ArchEntry]:
        """Every registration and whether it works. Imports all plugins."""
        return [self._entry(name, source) for name in self.names() for source in self._sources[name]]

    def _entry(self, name: str, source: Source) -> ArchEntry:
        try:
            chosen = self._chosen(name, self._sources[name], "")
            arch = _load(source, "")
            verification = verification_of(name, source.target)
        except ModelError as error:
            state = "duplicate" if len(self._sources[name]) > 1 else "broken"
            return ArchEntry(name, source.distribution, state, str(error))
        if chosen is not source:
            return ArchEntry(name, source.distribution, "duplicate", f"{chosen.distribution} is preferred")
        return ArchEntry(
            name,
            source.distribution,
            "ok",
            arch.source,
            family=family_of(arch),
            words=words_of(arch),
            verification=verification,
        )

    def _chosen(self, name: str, sources: list[Source], lead: str) -> Source:
        if len(sources) == 1:
            return sources[0]
        preferred = [source for source in sources if source.distribution == self._prefer.get(name)]
        if len(preferred) == 1:
            return preferred[0]
        who = " and ".join(f"{source.distribution} ({source.target})" for source in sources)
        raise ModelError(f"{lead}architecture {name!r} is registered by {who}; uninstall one, or prefer one by name")

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._sources, n=_NEAR_NAMES, cutoff=0.5)
        known = f"similar ones: {', '.join(near)}" if near else f"known: {', '.join(self.names()) or 'none'}"
        return (
            f"architecture {name!r} is not registered ({known}). A plugin is a module with one Arch value and an entry"
            f" point named {name!r} in group {GROUP}; docs/add-an-arch.md shows how"
        )


def _load(source: Source, lead: str) -> Arch:
    """Import a plugin and check its value: the struct's constructor accepts wrong literals, conversion does not."""
    what = f"{lead}the plugin for {source.name!r} ({source.target} of {source.distribution}) is broken"
    try:
        value = source.load()
    except Exception as error:  # a plugin is foreign code: whatever it raises is its own failure
        raise ModelError(f"{what}: {type(error).__name__}: {error}") from error
    if not isinstance(value, Arch):
        raise ModelError(f"{what}: it gives {type(value).__name__}, not strata.arch.spec.Arch")
    try:
        arch = msgspec.convert(msgspec.to_builtins(value), Arch)
    except (msgspec.ValidationError, TypeError) as error:
        raise ModelError(f"{what}: {error}") from error
    if arch.name != source.name:
        raise ModelError(f"{what}: it declares {arch.name!r}")
    return arch
