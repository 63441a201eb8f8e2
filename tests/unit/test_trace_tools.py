"""Bare routing records, and the tools that read traces: make_profile and simulate_cache."""

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_kit import records, written

from strata.engine.bare_trace import BareRecord, read_bare, write_bare
from strata.engine.profile import ProfileDims, read_profile
from strata.engine.trace import TraceHeader, TraceRecords
from strata.errors import TraceError

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def bare(*entries: tuple[int, list[int]]) -> bytes:
    out = io.BytesIO()
    for layer, experts in entries:
        write_bare(
            out, BareRecord(layer, np.asarray(experts, np.int32), np.linspace(1, 0, len(experts), dtype=np.float32))
        )
    return out.getvalue()


def test_bare_records_round_trip_and_may_be_cut_off(tmp_path):
    path = tmp_path / "t.bin"
    data = bare((0, [1, 2]), (3, [7]))
    assert data[:16] == struct.pack("<4i", 0, 2, 1, 2)
    for cut, n in ((0, 2), (1, 1), (12, 1), (16, 1), (20, 0), (len(data), 0)):
        path.write_bytes(data[: len(data) - cut])
        got = list(read_bare(path, n_layers=4, n_expert=8))
        assert len(got) == n
    path.write_bytes(data)
    first, second = read_bare(path, n_layers=4, n_expert=8)
    assert (first.layer, first.experts.tolist(), first.weights.tolist()) == (0, [1, 2], [1.0, 0.0])
    assert (second.layer, second.experts.tolist()) == (3, [7])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bare((0, [1]), (4, [1])), "record 1: layer is 4; accepted: 0 to 3"),
        (bare((0, [1])) + struct.pack("<ii", 0, 0), "record 1: k is 0; accepted: 1 to 8"),
        (struct.pack("<ii", 0, 2**31 - 1), "record 0: k is 2147483647; accepted: 1 to 8"),
        (bare((0, [1]), (0, [2, 8])), "record 1: expert is 8; accepted: 0 to 7"),
        (bare((0, [-1])), "record 0: expert is -1; accepted: 0 to 7"),
    ],
)
def test_bare_records_that_are_refused(tmp_path, data, message):
    path = tmp_path / "t.bin"
    path.write_bytes(data)
    with pytest.raises(TraceError) as caught:
        list(read_bare(path, n_layers=4, n_expert=8))
    assert str(caught.value) == f"{path}: {message}"


def test_bare_refusals_of_files_and_records(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        list(read_bare(tmp_path / "none", n_layers=1, n_expert=1))
    with pytest.raises(ValueError, match="1 experts with 2 weights"):
        write_bare(io.BytesIO(), BareRecord(0, np.zeros(1, np.int32), np.zeros(2, np.float32)))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=80))
def test_no_bare_file_does_more_than_refuse(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.bin"
    path.write_bytes(data)
    try:
        for record in read_bare(path, n_layers=3, n_expert=5):
            assert 0 <= record.experts.min() <= record.experts.max() < 5
    except TraceError:
        pass


DEMO_DIMS = ProfileDims(n_layers=6, n_expert=32, experts=(32,) * 6)


def demo_trace(path: Path, n: int) -> np.ndarray:
    """A trace of the embedded model: one prompt token, then decoded ones; the ids of the decoded ones."""
    from strata.gguf.inventory import fingerprint
    from strata.gguf.reader import read_gguf
    from strata.models import demo_model_path

    with demo_model_path() as model:
        mark = fingerprint(read_gguf(model))
    header = TraceHeader(fingerprint=mark, n_layers=6, n_expert=32, k=4, layers=tuple(range(6)))
    rng = np.random.default_rng(1)
    order = rng.permuted(np.tile(np.arange(32), (n + 1, 6, 1)), axis=2)[..., :4].astype(np.int32)
    order[1:, 2] = [5, 6, 7, 8]
    made = TraceRecords(
        step=np.arange(n + 1, dtype=np.uint64),
        seq_id=np.zeros(n + 1, np.uint64),
        position=np.arange(n + 1, dtype=np.uint32),
        phase=np.asarray([0] + [1] * n, np.uint8),
        experts=order,
        on_gpu=np.zeros(order.shape, bool),
        weights=np.ones(order.shape, np.float32),
    )
    written(path, made, header=header)
    return order[1:]


def tool(name: str, monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    import importlib

    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.setattr(sys, "argv", [name, *argv])
    return importlib.import_module(name).main()


def test_profiles_are_made_from_either_kind_of_trace(tmp_path, monkeypatch, capsys):
    decoded = demo_trace(tmp_path / "a.strt", 30)
    with (tmp_path / "b.bin").open("wb") as file:
        for token in decoded:
            for layer, experts in enumerate(token):
                write_bare(file, BareRecord(layer, experts, np.ones(4, np.float32)))
    made = {}
    for name in ("a.strt", "b.bin"):
        out = tmp_path / f"{name}.strp"
        assert tool("make_profile", monkeypatch, "--out", str(out), "--slots", "9", str(tmp_path / name)) == 0
        assert "192 experts ranked by 30 tokens" in capsys.readouterr().out
        made[name] = read_profile(out, DEMO_DIMS)
    first = made["a.strt"].profile
    assert np.array_equal(first.pairs, made["b.bin"].profile.pairs)
    assert first.slots == 9
    assert sorted(first.pairs[:4].tolist()) == [[2, 5], [2, 6], [2, 7], [2, 8]]
    uses = np.zeros((6, 32), int)
    for token in decoded:
        for layer in range(6):
            uses[layer, token[layer]] += 1
    ranked = uses[first.pairs[:, 0], first.pairs[:, 1]]
    assert (np.diff(ranked) <= 0).all()
    sidecar = made["a.strt"].sidecar
    assert sidecar is not None
    assert (sidecar.tokens, sidecar.model) == (30, "strata-demo")
    args = ("--prompts", "--out", str(tmp_path / "c.strp"), str(tmp_path / "a.strt"), str(tmp_path / "b.bin"))
    assert tool("make_profile", monkeypatch, *args) == 0
    assert "by 61 tokens" in capsys.readouterr().out


def test_make_profile_refuses_other_models_and_empty_traces(tmp_path, monkeypatch, capsys):
    other = written(tmp_path / "other.strt", records(3))
    assert tool("make_profile", monkeypatch, "--out", str(tmp_path / "p.strp"), str(other)) == 1
    assert "the model's is" in capsys.readouterr().err
    demo_trace(tmp_path / "empty.strt", 0)
    assert tool("make_profile", monkeypatch, "--out", str(tmp_path / "p.strp"), str(tmp_path / "empty.strt")) == 1
    assert "no token counts" in capsys.readouterr().err
    assert not (tmp_path / "p.strp").exists()


def test_the_simulator_replays_traces_and_shapes(tmp_path, monkeypatch, capsys):
    demo_trace(tmp_path / "a.strt", 60)
    assert tool("simulate_cache", monkeypatch, "--trace", str(tmp_path / "a.strt"), "--slots-frac", "0.3") == 0
    out = capsys.readouterr().out
    assert "6 sets of 32, 24 uses a token" in out
    assert "a.strt: 60 tokens" in out
    assert tool("simulate_cache", monkeypatch, "--synthetic", "tiny-qwen3moe", "--topics", "60,60", "--json") == 0
    assert '"conversations"' in capsys.readouterr().out
    other = written(tmp_path / "other.strt", records(3))
    assert tool("simulate_cache", monkeypatch, "--trace", str(other)) == 1
    assert "3 sets of 9 experts; the model has 6 of 32" in capsys.readouterr().err
