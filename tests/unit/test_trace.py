"""Routing traces: round trips, reading while they grow, every refusal, and the tools that read them."""

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine.backend import BatchRow, Phase, Routing, StepBatch, StepResult
from strata.engine.bare_trace import BareRecord, read_bare, write_bare
from strata.engine.fake import FakeBackend
from strata.engine.profile import ProfileDims, read_profile
from strata.engine.trace import TraceHeader, TraceReader, TraceRecords, TraceWriter, is_trace
from strata.engine.traced import TracedBackend, trace_records
from strata.errors import TraceError

TOOLS = Path(__file__).resolve().parents[2] / "tools"
MARK = "0f" * 32
HEADER = TraceHeader(fingerprint=MARK, n_layers=5, n_expert=9, k=3, layers=(1, 2, 4))


def records(n: int, header: TraceHeader = HEADER, seed: int = 0, first_step: int = 1) -> TraceRecords:
    """Valid records; some sets use fewer experts, some none."""
    rng = np.random.default_rng(seed)
    experts = np.full((n, header.n_sets, header.k), -1, np.int32)
    for place in np.ndindex(n, header.n_sets):
        used = rng.integers(0, header.k + 1)
        experts[place][:used] = rng.permutation(header.n_expert)[:used]
    return TraceRecords(
        step=first_step + np.sort(rng.integers(0, max(n, 1), n)).astype(np.uint64),
        seq_id=rng.integers(0, 2**63, n).astype(np.uint64),
        position=rng.integers(0, 2**30, n).astype(np.uint32),
        phase=rng.integers(0, 3, n).astype(np.uint8),
        experts=experts,
        on_gpu=(rng.random(experts.shape) < 0.5) & (experts >= 0),
        weights=np.where(experts >= 0, rng.random(experts.shape), 0).astype(np.float32),
    )


def equal(a: TraceRecords, b: TraceRecords, *, weights: bool = True) -> bool:
    names = [name for name in TraceRecords.__struct_fields__ if weights or name != "weights"]
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def written(path: Path, *pieces: TraceRecords, header: TraceHeader = HEADER) -> Path:
    with TraceWriter(path, header) as writer:
        for piece in pieces:
            writer.write(piece)
    return path


@pytest.mark.parametrize("has_weights", [True, False])
def test_a_round_trip(tmp_path, has_weights):
    header = TraceHeader(fingerprint=MARK, n_layers=5, n_expert=9, k=3, layers=(1, 2, 4), has_weights=has_weights)
    made = records(40, header)
    path = written(tmp_path / "t.strt", made, header=header)
    assert path.stat().st_size == header.n_bytes + 40 * (24 + 9 * (2 + 1 + 4 * has_weights))
    assert is_trace(path)
    with TraceReader(path, fingerprint=MARK) as reader:
        assert reader.header == header
        assert len(reader) == 40
        assert equal(reader.read(0, 100), made, weights=has_weights)
        assert equal(
            reader.read(35, 2),
            TraceRecords(**{n: getattr(made, n)[35:37] for n in TraceRecords.__struct_fields__}),
            weights=has_weights,
        )
        assert len(reader.read(40, 5)) == len(reader.read(99, 5)) == 0


def test_the_header_s_bytes_are_the_described_ones():
    data = HEADER.encode()
    assert data[:4] == b"STRT"
    assert struct.unpack("<8I", data[4:36]) == (1, 80, 24 + 9 * 7, 1, 5, 9, 3, 3)
    assert data[36:68].hex() == MARK
    assert data[68:] == struct.pack("<3H", 1, 2, 4) + bytes(6)


def test_it_is_read_while_it_grows(tmp_path, monkeypatch):
    path = tmp_path / "t.strt"
    made = [records(3, seed=i, first_step=10 * i) for i in range(3)]
    with TraceWriter(path, HEADER) as writer, TraceReader(path) as reader:
        assert list(reader.pieces()) == []
        writer.write(made[0])
        (piece,) = reader.pieces()
        assert equal(piece, made[0])
        with path.open("ab") as file:  # a record that is not whole yet
            file.write(bytes(20))
        assert len(reader) == 3
        with path.open("r+b") as file:
            file.truncate(HEADER.n_bytes + 3 * HEADER.record.itemsize)
        writer._file.seek(0, 2)
        writer.write(made[1])
        (piece,) = reader.pieces(first=3)
        assert equal(piece, made[1])
        monkeypatch.setattr("strata.engine.trace.PIECE_BYTES", 2 * HEADER.record.itemsize)
        assert [len(p) for p in reader.pieces()] == [2, 2, 2]
        assert writer.n_records == 6


def test_models_are_told_apart(tmp_path):
    path = written(tmp_path / "t.strt")
    with pytest.raises(TraceError, match=f"fingerprint is {MARK}, the model's is {'11' * 32}"):
        TraceReader(path, fingerprint="11" * 32)


def patched(data: bytes, at: int, value: int, size: int = 4) -> bytes:
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d[:50], "the file has 50 bytes; a header has 68 or more"),
        (lambda d: b"GGUF" + d[4:], "magic is b'GGUF'; expected b'STRT'"),
        (lambda d: patched(d, 4, 2), "version is 2; accepted: 1"),
        (lambda d: patched(d, 8, 88), "header_bytes is 88; the dimensions give 80"),
        (lambda d: patched(d, 12, 5), "record_bytes is 5; the dimensions give 87"),
        (lambda d: patched(d, 16, 3), "flags is 3; accepted: 0 or 1"),
        (lambda d: patched(d, 20, 0), "n_layers is 0; accepted: 1 to 4096"),
        (lambda d: patched(d, 24, 1 << 16), "n_expert is 65536; accepted: 1 to 32768"),
        (lambda d: patched(d, 28, 10), "k is 10; accepted: 1 to 9"),
        (lambda d: patched(d, 32, 0), "n_sets is 0; accepted: 1 to 8192"),
        (lambda d: patched(d, 32, 2**32 - 1), "n_sets is 4294967295; accepted: 1 to 8192"),
        (lambda d: patched(d, 32, 8000), "layers has 6 entries; n_sets is 8000"),
        (lambda d: patched(d, 70, 0, 2), "layers[1] is 0; accepted: 1 to 4"),
        (lambda d: patched(d, 72, 5, 2), "layers[2] is 5; accepted: 2 to 4"),
    ],
)
def test_headers_that_are_refused(tmp_path, change, message):
    path = tmp_path / "t.strt"
    path.write_bytes(change(HEADER.encode()))
    with pytest.raises(TraceError) as caught:
        TraceReader(path)
    assert str(caught.value) == f"{path}: {message}"


AT = {name: HEADER.record.fields[name][1] for name in HEADER.record.names}


@pytest.mark.parametrize(
    ("at", "value", "size", "message"),
    [
        (AT["phase"], 3, 1, "phase is 3; accepted: 0 to 2"),
        (AT["reserved"] + 1, 1, 1, "reserved is 1; accepted: 0"),
        (AT["experts"], 9, 2, "expert is 9; accepted: 0 to 8"),
        (AT["experts"], 7, 2, "expert is 7; accepted: each only once"),
        (AT["experts"], 0xFFFF, 2, "expert is 7; accepted: none after the set's last"),
        (AT["place"], 2, 1, "place is 2; accepted: 0 CPU, 1 GPU, 255 where there is no expert"),
        (AT["place"], 255, 1, "place is 255; accepted: 0 CPU"),
        (AT["step"], 1, 8, "step is 1; accepted: not below the record before"),
    ],
)
def test_records_that_are_refused_by_number(tmp_path, at, value, size, message):
    made = records(4)
    made.experts[:] = [5, 7, -1]
    made.step[:] = 9
    path = written(tmp_path / "t.strt", made)
    data = path.read_bytes()
    path.write_bytes(patched(data, HEADER.n_bytes + 2 * HEADER.record.itemsize + at, value, size))
    with TraceReader(path) as reader:
        with pytest.raises(TraceError) as caught:
            list(reader.pieces())
        assert len(reader.read(0, 2)) == 2
    assert str(caught.value).startswith(f"{path}: record 2: {message}")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_file_does_more_than_refuse(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    made = bytearray(written(folder / "fuzz.strt", records(3)).read_bytes())
    for _ in range(data.draw(st.integers(0, 5))):
        at = data.draw(st.integers(0, len(made) - 1))
        made[at] = data.draw(st.integers(0, 255))
    path = folder / "fuzz.strt"
    path.write_bytes(bytes(made[: data.draw(st.integers(0, len(made)))]))
    try:
        with TraceReader(path) as reader:
            for piece in reader.pieces():
                assert piece.experts.max() < reader.header.n_expert
                assert piece.phase.max() <= 2
    except TraceError:
        pass


def test_what_a_writer_refuses(tmp_path):
    with pytest.raises(TraceError, match="cannot be written: No such file"):
        TraceWriter(tmp_path / "no" / "t.strt", HEADER)
    with pytest.raises(TraceError, match=r"layers\[1\] is 1; accepted: 2 to 4"):
        TraceWriter(tmp_path / "t.strt", TraceHeader(fingerprint=MARK, n_layers=5, n_expert=9, k=3, layers=(2, 1)))
    made = records(1)
    bare_ones = {n: getattr(made, n) if n != "weights" else None for n in TraceRecords.__struct_fields__}
    with TraceWriter(tmp_path / "t.strt", HEADER) as writer, pytest.raises(ValueError, match="these records have none"):
        writer.write(TraceRecords(**bare_ones))
    with pytest.raises(TraceError, match="cannot be read"):
        TraceReader(tmp_path / "none.strt")
    with pytest.raises(TraceError, match="cannot be read"):
        is_trace(tmp_path / "none.strt")


# ---- from steps -----------------------------------------------------------------------------------------------

BATCH = StepBatch(
    rows=(
        BatchRow(seq_id=7, tokens=(1,), first_pos=12, blocks=(0,), phase=Phase.DECODE),
        BatchRow(seq_id=9, tokens=(1, 2), first_pos=0, blocks=(1,)),
    )
)


def routing(n_tokens: int = 3, seed: int = 0) -> Routing:
    ids = np.random.default_rng(seed).permuted(np.tile(np.arange(9, dtype=np.int32), (3, n_tokens, 1)), axis=2)
    return Routing(ids=ids[..., :3], weights=np.full((3, n_tokens, 3), 0.25, np.float32))


def test_a_step_becomes_one_record_a_token():
    made = trace_records(4, BATCH, routing())
    assert made.step.tolist() == [4, 4, 4]
    assert made.seq_id.tolist() == [7, 9, 9]
    assert made.position.tolist() == [12, 0, 1]
    assert made.phase.tolist() == [Phase.DECODE, Phase.PREFILL, Phase.PREFILL]
    assert np.array_equal(made.experts[1], routing().ids[:, 1])
    assert not made.on_gpu.any()
    where = np.zeros((3, 3, 3), bool)
    where[2, 0, 1] = True
    chosen = routing()
    placed = trace_records(4, BATCH, Routing(ids=chosen.ids, weights=chosen.weights, on_gpu=where))
    assert np.argwhere(placed.on_gpu).tolist() == [[0, 2, 1]]


class RoutedFake(FakeBackend):
    """Adds routing to what the fake computes."""

    async def wait(self, ticket: int) -> StepResult:
        result = await super().wait(ticket)
        n_tokens = self.batches[ticket - 1].n_tokens
        return StepResult(
            ticket=ticket, tokens=result.tokens, error=result.error, routing=None if result.error else routing(n_tokens)
        )


def fake() -> RoutedFake:
    from strata.engine.backend import BackendLimits

    limits = BackendLimits(n_ctx=128, n_batch=64, max_seqs=4, n_kv_blocks=8, n_vocab=32)
    return RoutedFake(limits, lambda ids: (ids[-1] + 1) % 32)


def steps(n: int) -> list[StepBatch]:
    return [
        StepBatch(rows=(BatchRow(seq_id=1, tokens=(i,), first_pos=i, blocks=(0,), phase=Phase.DECODE),))
        for i in range(n)
    ]


async def test_a_traced_backend_passes_everything_on(tmp_path):
    inner = fake()
    with TraceWriter(tmp_path / "t.strt", HEADER) as writer:
        backend = TracedBackend(inner, writer)
        assert (backend.name, backend.limits) == (inner.name, inner.limits)
        for batch in steps(5):
            ticket = backend.submit(batch)
            if ticket == 3:
                backend.abort(ticket)
            result = await backend.wait(ticket)
            assert (result.error is not None) == (ticket == 3)
        assert backend.health().steps == 5
        await backend.aclose()
        assert inner.dead
    with TraceReader(tmp_path / "t.strt") as reader:
        (piece,) = reader.pieces()
    assert piece.step.tolist() == [1, 2, 4, 5], "an aborted step is not there"
    assert piece.position.tolist() == [0, 1, 3, 4]


def full_disk() -> io.FileIO:
    return io.FileIO("/dev/full", "wb")


async def test_a_full_disk_ends_the_trace_and_not_the_requests(tmp_path, caplog):
    with TraceWriter(tmp_path / "t.strt", HEADER) as writer:
        backend = TracedBackend(fake(), writer)
        for i, batch in enumerate(steps(4)):
            if i == 2:
                writer._file.close()
                writer._file = full_disk()
            assert (await backend.wait(backend.submit(batch))).error is None
    assert [record.message for record in caplog.records] == [
        f"the routing trace ends after 2 tokens: {tmp_path / 't.strt'}: the trace cannot be written: "
        "No space left on device"
    ]


# ---- bare records ---------------------------------------------------------------------------------------------


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


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_no_bare_file_does_more_than_refuse(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.bin"
    path.write_bytes(data)
    try:
        for record in read_bare(path, n_layers=3, n_expert=5):
            assert 0 <= record.experts.min() <= record.experts.max() < 5
    except TraceError:
        pass


# ---- tools ----------------------------------------------------------------------------------------------------

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
