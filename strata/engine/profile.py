"""STRP expert profiles: which experts were hottest, so that the next start begins warm. Files and arrays only.

docs/formats.md describes the file. It names no model, so ours have a sidecar NAME.strp.json with the model's
fingerprint; a profile without one is accepted when its dimensions fit.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.arch.plan_tables import ModelPlan
from strata.engine.placement import Experts
from strata.errors import ProfileError

__all__ = [
    "LoadedProfile",
    "Profile",
    "ProfileDims",
    "Sidecar",
    "dims_of",
    "profile_pairs",
    "profile_ranking",
    "read_profile",
    "sidecar_path",
    "write_profile",
]

MAGIC = b"STRP"
VERSION = 1
_HEAD = struct.Struct("<4sIIIII")  # magic, version, n_layers, n_expert, slots, n_ranked
_SIDECAR_BYTES_MAX = 1 << 16


class ProfileDims(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile must fit. experts: of each block, 0 where it has none."""

    n_layers: int
    n_expert: int
    experts: tuple[int, ...]

    @property
    def n_pairs(self) -> int:
        """(layer, expert) pairs of all MoE layers."""
        return sum(self.experts)


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The ranking. pairs: int32 [n_ranked, 2] of (layer, expert), hottest first, each once."""

    n_layers: int
    n_expert: int
    slots: int  # the cache size it was made for
    pairs: NDArray[np.int32]


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    """NAME.strp.json: what the profile itself cannot say. Other keys are left alone."""

    fingerprint: str
    model: str
    tokens: int  # decoded tokens that were observed
    date: str  # UTC, ISO 8601
    tool_version: str


class LoadedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile that fits the model. notes: what was accepted but is worth telling."""

    profile: Profile
    sidecar: Sidecar | None
    notes: tuple[str, ...]


def dims_of(plan: ModelPlan) -> ProfileDims:
    """Of the plan; where a block has several expert sets, profiles mean its first."""
    experts = [0] * plan.n_layer
    for one in reversed(plan.expert_sets):
        experts[one.layer] = one.n_expert
    return ProfileDims(n_layers=plan.n_layer, n_expert=max(experts, default=0), experts=tuple(experts))


def profile_ranking(experts: Experts, profile: Profile) -> NDArray[np.int32]:
    """The pairs as (set, expert), [n, 2]: what Heat.seed takes."""
    set_of = np.full(profile.n_layers, -1, np.int32)
    for layer, set_id in experts.profile_sets.items():
        set_of[layer] = set_id
    return np.stack([set_of[profile.pairs[:, 0]], profile.pairs[:, 1]], axis=1)


def profile_pairs(experts: Experts, ranking: NDArray[np.int32]) -> NDArray[np.int32]:
    """A ranking of (set, expert) as (layer, expert) pairs: what `write_profile` takes. Sets without a name drop out."""
    sets = ranking[:, 0]
    named = np.isin(sets, list(experts.profile_sets.values())) & experts.exists[sets, ranking[:, 1]]
    kept = ranking[named]
    return np.stack([np.asarray(experts.layers, np.int32)[kept[:, 0]], kept[:, 1]], axis=1).astype(np.int32)


def sidecar_path(path: str | Path) -> Path:
    path = Path(path)
    return path.with_name(path.name + ".json")


# ---- reading --------------------------------------------------------------------------------------------------


def read_profile(path: str | Path, dims: ProfileDims, *, fingerprint: str = "") -> LoadedProfile:
    """Read a profile and its sidecar. fingerprint: the model's; "" checks the dimensions only.

    Raises: ProfileError naming the field and both values.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
            values = _check_head(head, dims, str(path))
            raw = file.read(4 * values["n_ranked"])
            n_tail = os.fstat(file.fileno()).st_size - _HEAD.size - len(raw)
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(raw) < 4 * values["n_ranked"]:
        raise ProfileError(f"{path}: the list holds {len(raw) // 4} pairs; n_ranked is {values['n_ranked']}")
    pairs = np.frombuffer(raw, "<u2").reshape(-1, 2).astype(np.int32)
    _check_pairs(pairs, dims, str(path))
    notes: list[str] = []
    codes = pairs[:, 0].astype(np.int64) * (1 << 16) + pairs[:, 1]
    _, first = np.unique(codes, return_index=True)
    if len(first) < len(pairs):
        notes.append(f"{path}: {len(pairs) - len(first)} of {len(pairs)} pairs are repeated; the first of each counts")
        pairs = pairs[np.sort(first)]
    if n_tail not in (0, 4 * dims.n_layers * dims.n_expert):
        notes.append(f"{path}: {n_tail} bytes follow the list instead of {4 * dims.n_layers * dims.n_expert} or none")
    sidecar = _read_sidecar(sidecar_path(path), fingerprint)
    if sidecar is None:
        notes.append(f"{path} has no sidecar that names its model; its dimensions fit")
    profile = Profile(n_layers=dims.n_layers, n_expert=dims.n_expert, slots=values["slots"], pairs=pairs)
    return LoadedProfile(profile=profile, sidecar=sidecar, notes=tuple(notes))


def _check_head(head: bytes, dims: ProfileDims, where: str) -> dict[str, int]:
    if len(head) < _HEAD.size:
        raise ProfileError(f"{where}: the file has {len(head)} bytes; a header has {_HEAD.size}")
    magic, version, n_layers, n_expert, slots, n_ranked = _HEAD.unpack(head)
    if magic != MAGIC:
        raise ProfileError(f"{where}: magic is {magic!r}; expected {MAGIC!r}")
    for name, value, expected, whose in (
        ("version", version, VERSION, "this program reads"),
        ("n_layers", n_layers, dims.n_layers, "the model has"),
        ("n_expert", n_expert, dims.n_expert, "the model has"),
    ):
        if value != expected:
            raise ProfileError(f"{where}: {name} is {value}; {whose} {expected}")
    if n_ranked > n_layers * n_expert:
        raise ProfileError(f"{where}: n_ranked is {n_ranked}; n_layers x n_expert is {n_layers * n_expert}")
    return {"slots": slots, "n_ranked": n_ranked}


def _check_pairs(pairs: NDArray[np.int32], dims: ProfileDims, where: str) -> None:
    layers, experts = pairs[:, 0], pairs[:, 1]
    beyond = layers >= dims.n_layers
    if beyond.any():
        i = int(beyond.argmax())
        raise ProfileError(f"{where}: pair {i}: layer is {layers[i]}; accepted: 0 to {dims.n_layers - 1}")
    n_of = np.asarray(dims.experts, np.int32)[layers]
    bad = experts >= n_of
    if bad.any():
        i = int(bad.argmax())
        if n_of[i] == 0:
            raise ProfileError(f"{where}: pair {i}: layer is {layers[i]}, which has no experts; expert is {experts[i]}")
        raise ProfileError(
            f"{where}: pair {i}: expert is {experts[i]}; accepted in layer {layers[i]}: 0 to {n_of[i] - 1}"
        )


def _read_sidecar(path: Path, fingerprint: str) -> Sidecar | None:
    try:
        with path.open("rb") as file:
            raw = file.read(_SIDECAR_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(raw) > _SIDECAR_BYTES_MAX:
        raise ProfileError(f"{path}: the sidecar has more than {_SIDECAR_BYTES_MAX} bytes")
    try:
        sidecar = msgspec.json.decode(raw, type=Sidecar)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProfileError(f"{path}: {error}") from error
    if fingerprint and sidecar.fingerprint != fingerprint:
        raise ProfileError(
            f"{path}: fingerprint is {sidecar.fingerprint} ({sidecar.model}); the model's is {fingerprint}"
        )
    return sidecar


# ---- writing --------------------------------------------------------------------------------------------------


def write_profile(
    path: str | Path, dims: ProfileDims, pairs: NDArray[np.int32], *, slots: int, sidecar: Sidecar | None = None
) -> None:
    """Write a profile that ranks every expert of every MoE layer, and its sidecar, each atomically.

    The profile is replaced first: a crash in between leaves a sidecar that at worst refuses the profile. Without a
    sidecar an old one is removed before. Raises: ProfileError when the disk refuses; ValueError for a ranking that is
    not complete.
    """
    path = Path(path)
    data = encode_profile(dims, pairs, slots)
    try:
        if sidecar is None:
            sidecar_path(path).unlink(missing_ok=True)
        _replace(path, data)
        if sidecar is not None:
            _replace(sidecar_path(path), msgspec.json.format(msgspec.json.encode(sidecar), indent=2) + b"\n")
    except OSError as error:
        raise ProfileError(f"{path}: the profile cannot be written: {error.strerror or error}") from error


def encode_profile(dims: ProfileDims, pairs: NDArray[np.int32], slots: int) -> bytes:
    """The file's bytes. Raises: ValueError for a ranking that is not complete."""
    if len(pairs) != dims.n_pairs or len(np.unique(pairs, axis=0)) != dims.n_pairs:
        raise ValueError(f"{len(pairs)} pairs rank {dims.n_pairs} experts; each must be there once")
    try:
        _check_pairs(pairs, dims, "the ranking")
    except ProfileError as error:
        raise ValueError(str(error)) from error
    head = _HEAD.pack(MAGIC, VERSION, dims.n_layers, dims.n_expert, slots, len(pairs))
    ranks = np.full((dims.n_layers, dims.n_expert), -1, "<i4")
    ranks[pairs[:, 0], pairs[:, 1]] = np.arange(len(pairs))
    return head + pairs.astype("<u2").tobytes() + ranks.tobytes()


def _replace(path: Path, data: bytes) -> None:
    """Write a file in whole or not at all, also when the machine stops. Raises: OSError."""
    fd, name = tempfile.mkstemp(prefix=path.name + ".", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            _set_mode(fd, path)
            file.write(data)
            file.flush()
            os.fsync(fd)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _set_mode(fd: int, path: Path) -> None:
    """The permissions that an ordinary new file, or the replaced one, has."""
    mode: Any = path.stat().st_mode & 0o777 if path.exists() else 0o644
    os.fchmod(fd, mode)
