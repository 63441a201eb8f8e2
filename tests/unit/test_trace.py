"""Routing traces: round trips, reading while they grow, every refusal, and the backend that writes them."""

import io
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_kit import HEADER, MARK, equal, records, written

from strata.engine.backend import BatchRow, Phase, Routing, StepBatch, StepResult
from strata.engine.fake import FakeBackend
from strata.engine.trace import TraceHeader, TraceReader, TraceRecords, TraceWriter, is_trace
from strata.engine.traced import TracedBackend, trace_records
from strata.errors import TraceError


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


@settings(max_examples=300, deadline=None, derandomize=True)
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
