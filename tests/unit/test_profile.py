"""STRP files: the bytes, every refusal with both values, atomic writing, the sidecar; and anything else a file may hold."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from cache_kit import mixed
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine import profile as module
from strata.engine.profile import (
    Profile,
    ProfileDims,
    Sidecar,
    encode_profile,
    profile_pairs,
    profile_ranking,
    read_profile,
    sidecar_path,
    write_profile,
)
from strata.errors import ProfileError

DIMS = ProfileDims(n_layers=4, n_expert=6, experts=(0, 6, 6, 4))  # dense first, a narrow last
MARK = "ab" * 32
SIDECAR = Sidecar(fingerprint=MARK, model="m", tokens=77, date="2026-01-02T03:04:05+00:00", tool_version="1")


def all_pairs(dims: ProfileDims = DIMS, seed: int = 0) -> np.ndarray:
    pairs = [(layer, e) for layer, n in enumerate(dims.experts) for e in range(n)]
    return np.random.default_rng(seed).permutation(np.asarray(pairs, np.int32))


def raw(pairs, *, magic=b"STRP", version=1, n_layers=4, n_expert=6, slots=3, n_ranked=None, tail=b"") -> bytes:
    n = len(pairs) if n_ranked is None else n_ranked
    head = magic + struct.pack("<5I", version, n_layers, n_expert, slots, n)
    return head + b"".join(struct.pack("<HH", *pair) for pair in pairs) + tail


def write(folder: Path, data: bytes) -> Path:
    path = folder / "p.strp"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("n_expert", "n_bytes"), [(512, 196_632), (256, 98_328)])
def test_full_rankings_of_48_layers_have_their_known_size(tmp_path, n_expert, n_bytes):
    dims = ProfileDims(n_layers=48, n_expert=n_expert, experts=(n_expert,) * 48)
    pairs = all_pairs(dims)
    path = tmp_path / "big.strp"
    write_profile(path, dims, pairs, slots=1000, sidecar=SIDECAR)
    assert path.stat().st_size == n_bytes
    loaded = read_profile(path, dims, fingerprint=MARK)
    assert np.array_equal(loaded.profile.pairs, pairs)
    assert loaded.profile.slots == 1000
    assert loaded.notes == ()


def test_the_bytes_are_the_described_ones():
    pairs = all_pairs()
    data = encode_profile(DIMS, pairs, slots=5)
    assert data[:24] == struct.pack("<4s5I", b"STRP", 1, 4, 6, 5, 16)
    assert data[24:28] == struct.pack("<HH", *pairs[0].tolist())
    ranks = np.frombuffer(data[24 + 64 :], "<i4").reshape(4, 6)
    assert (ranks[0] == -1).all()
    assert ranks[3].tolist()[4:] == [-1, -1]
    assert ranks[tuple(pairs[7])] == 7
    assert len(data) == 24 + 16 * 4 + 24 * 4


def test_foreign_files_are_accepted_with_notes(tmp_path):
    pairs = all_pairs()[:5].tolist()
    path = write(tmp_path, raw(pairs, slots=2))  # no tail, no sidecar, more pairs than slots
    loaded = read_profile(path, DIMS, fingerprint=MARK)
    assert loaded.profile.pairs.tolist() == pairs
    assert loaded.profile.slots == 2
    assert loaded.sidecar is None
    assert loaded.notes == (f"{path} has no sidecar that names its model; its dimensions fit",)
    shares = np.random.default_rng(1).random((4, 6)).astype("<f4").tobytes()
    assert read_profile(write(tmp_path, raw(pairs, tail=shares)), DIMS).profile.pairs.tolist() == pairs
    odd = read_profile(write(tmp_path, raw(pairs, tail=b"abc")), DIMS)
    assert "3 bytes follow the list instead of 96 or none" in odd.notes[0]


def test_repeated_pairs_count_once(tmp_path):
    path = write(tmp_path, raw([(1, 2), (2, 3), (1, 2), (3, 0), (2, 3)]))
    loaded = read_profile(path, DIMS)
    assert loaded.profile.pairs.tolist() == [[1, 2], [2, 3], [3, 0]]
    assert "2 of 5 pairs are repeated" in loaded.notes[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file has 0 bytes; a header has 24"),
        (raw([])[:23], "the file has 23 bytes; a header has 24"),
        (raw([], magic=b"GGUF"), "magic is b'GGUF'; expected b'STRP'"),
        (raw([], version=2), "version is 2; this program reads 1"),
        (raw([], n_layers=5), "n_layers is 5; the model has 4"),
        (raw([], n_expert=7), "n_expert is 7; the model has 6"),
        (raw([], n_ranked=25), "n_ranked is 25; n_layers x n_expert is 24"),
        (raw([], n_ranked=2**32 - 1), "n_ranked is 4294967295; n_layers x n_expert is 24"),
        (raw([(1, 1)], n_ranked=3), "the list holds 1 pairs; n_ranked is 3"),
        (raw([(1, 1), (4, 1)]), "pair 1: layer is 4; accepted: 0 to 3"),
        (raw([(1, 1), (0, 1)]), "pair 1: layer is 0, which has no experts; expert is 1"),
        (raw([(1, 6)]), "pair 0: expert is 6; accepted in layer 1: 0 to 5"),
        (raw([(3, 4)]), "pair 0: expert is 4; accepted in layer 3: 0 to 3"),
    ],
)
def test_refusals_name_the_field_and_both_values(tmp_path, data, message):
    path = write(tmp_path, data)
    with pytest.raises(ProfileError) as caught:
        read_profile(path, DIMS)
    assert str(caught.value) == f"{path}: {message}"


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ProfileError, match="No such file"):
        read_profile(tmp_path / "none.strp", DIMS)
    with pytest.raises(ProfileError, match="cannot be read"):
        read_profile(tmp_path, DIMS)


def test_the_sidecar_ties_a_profile_to_its_model(tmp_path):
    path = tmp_path / "p.strp"
    write_profile(path, DIMS, all_pairs(), slots=3, sidecar=SIDECAR)
    assert sidecar_path(path) == tmp_path / "p.strp.json"
    assert json.loads(sidecar_path(path).read_text())["fingerprint"] == MARK
    assert read_profile(path, DIMS, fingerprint=MARK).sidecar == SIDECAR
    assert read_profile(path, DIMS).sidecar == SIDECAR
    with pytest.raises(ProfileError, match=f"fingerprint is {MARK} \\(m\\); the model's is {'cd' * 32}"):
        read_profile(path, DIMS, fingerprint="cd" * 32)
    more = json.loads(sidecar_path(path).read_text()) | {"another": 1}
    sidecar_path(path).write_text(json.dumps(more))
    assert read_profile(path, DIMS, fingerprint=MARK).sidecar == SIDECAR


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "missing required field `fingerprint`"),
        ('{"fingerprint": 3}', "Expected `str`, got `int` - at `\\$.fingerprint`"),
        ("not json", "malformed"),
        ("\xff", "p.strp.json"),
        ('"' + "x" * 70_000 + '"', "more than 65536 bytes"),
        ("[" * 30_000, "p.strp.json"),
    ],
)
def test_a_broken_sidecar_is_refused(tmp_path, text, message):
    path = write(tmp_path, raw([(1, 1)]))
    sidecar_path(path).write_text(text, encoding="latin-1")
    with pytest.raises(ProfileError, match=message):
        read_profile(path, DIMS)


def test_without_a_sidecar_an_old_one_goes(tmp_path):
    path = tmp_path / "p.strp"
    write_profile(path, DIMS, all_pairs(), slots=3, sidecar=SIDECAR)
    write_profile(path, DIMS, all_pairs(seed=1), slots=3)
    assert not sidecar_path(path).exists()
    assert os.listdir(tmp_path) == ["p.strp"]


@pytest.mark.parametrize(
    "pairs",
    [all_pairs()[:-1], np.concatenate([all_pairs()[:-1], all_pairs()[:1]]), np.where(all_pairs() == 5, 7, all_pairs())],
)
def test_only_complete_rankings_are_written(tmp_path, pairs):
    with pytest.raises(ValueError, match="pair"):
        write_profile(tmp_path / "p.strp", DIMS, pairs, slots=3)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("fails", ["fsync", "fchmod"])
def test_a_disk_that_refuses_leaves_the_old_profile(tmp_path, monkeypatch, fails):
    path = tmp_path / "p.strp"
    write_profile(path, DIMS, all_pairs(), slots=3, sidecar=SIDECAR)
    path.chmod(0o640)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, fails, refuse)
    with pytest.raises(ProfileError, match="cannot be written: No space left on device"):
        write_profile(path, DIMS, all_pairs(seed=1), slots=3, sidecar=SIDECAR)
    monkeypatch.undo()
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    write_profile(path, DIMS, all_pairs(seed=1), slots=3, sidecar=SIDECAR)
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(ProfileError, match="No such file"):
        write_profile(tmp_path / "no" / "p.strp", DIMS, all_pairs(), slots=3)


def test_pairs_and_rankings_are_the_same_thing():
    experts = mixed()  # layer 4 has two sets: profiles mean the first
    dims = ProfileDims(n_layers=6, n_expert=8, experts=(0, 8, 8, 0, 8, 8))
    order = np.random.default_rng(2).permutation(np.argwhere(np.ones(experts.exists.shape))).astype(np.int32)
    pairs = profile_pairs(experts, order)
    assert len(pairs) == dims.n_pairs
    assert 0 not in pairs[:, 0]
    loaded = Profile(n_layers=6, n_expert=8, slots=0, pairs=pairs)
    assert np.array_equal(profile_ranking(experts, loaded), order[order[:, 0] != 3])
    assert encode_profile(dims, pairs, 0)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_no_file_does_more_than_refuse(tmp_path_factory, data):
    good = encode_profile(DIMS, all_pairs(), 5)
    made = bytearray(data.draw(st.sampled_from([good, good[:60], b"STRP" + bytes(40)])))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(made) - 1))
        made[at] = data.draw(st.integers(0, 255))
    path = write(tmp_path_factory.getbasetemp(), bytes(made[: data.draw(st.integers(0, len(made)))]))
    try:
        loaded = read_profile(path, DIMS)
    except ProfileError:
        return
    pairs = loaded.profile.pairs
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    assert all(expert < DIMS.experts[layer] for layer, expert in pairs)
