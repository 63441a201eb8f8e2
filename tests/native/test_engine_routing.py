"""Captured routing: what the router ops chose, in router order, on the demo model; and the trace that it fills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata import planning, runtime
from strata.cli import main
from strata.config import load_config
from strata.engine.backend import BatchRow, Phase, StepBatch
from strata.engine.trace import TraceReader
from strata.ffi.native import NativeBackend, NativeModel
from strata.gguf.inventory import fingerprint
from strata.gguf.reader import read_gguf
from strata.models import demo_model_path

N_SETS, N_EXPERT, K = 6, 32, 4
IDS = tuple(range(100, 112))


@pytest.fixture(scope="module")
def demo() -> Any:
    """(model, options) of the demo model, loaded once."""
    config = load_config({})
    with planning.open_source(config, None, None) as source:
        prepared = planning.prepare(
            config, source, planning.Shape(kv_type="f16", max_seqs=2, n_ctx=128, all_logits=True)
        )
        with NativeModel(runtime.Library(), prepared.plan) as model:
            model.load(n_threads=2)
            yield model, prepared.run


def rows(*spans: tuple[int, int, int]) -> StepBatch:
    """Rows (seq, first position, end position) of IDS."""
    return StepBatch(
        rows=tuple(
            BatchRow(seq_id=seq, tokens=IDS[first:end], first_pos=first, blocks=(seq,), all_logits=True)
            for seq, first, end in spans
        )
    )


def test_it_is_off_by_default(demo):
    model, run = demo
    backend = NativeBackend(model, run, n_ctx=128)
    try:
        assert backend.run_sync(rows((0, 0, 12))).routing is None
    finally:
        backend.close()


def test_capturing_changes_no_bit_and_batching_changes_no_choice(demo):
    model, run = demo
    plain = NativeBackend(model, run, n_ctx=128)
    backend = NativeBackend(model, run, n_ctx=128, capture_routing=True)
    try:
        whole = backend.run_sync(rows((0, 0, 12)))
        assert np.array_equal(plain.run_sync(rows((0, 0, 12))).logits, whole.logits)
        ids, weights = whole.routing.ids, whole.routing.weights
        assert ids.shape == weights.shape == (N_SETS, 12, K)
        assert ids.min() >= 0
        assert ids.max() < N_EXPERT
        assert all(len(set(chosen)) == K for chosen in ids.reshape(-1, K).tolist())
        assert (np.diff(weights, axis=-1) <= 0).all(), "router order: the most wanted first"
        assert np.allclose(weights.sum(axis=-1), 1, atol=1e-6)
        assert whole.expert_rows == ids.size
        assert whole.experts_touched == sum(len(np.unique(layer)) for layer in ids)
        first = backend.run_sync(rows((1, 0, 5))).routing
        later = backend.run_sync(rows((0, 11, 12), (1, 5, 12))).routing  # two sequences of unequal length in one step
        assert np.array_equal(np.concatenate([first.ids, later.ids[:, 1:]], axis=1), ids)
        assert np.array_equal(later.ids[:, 0], ids[:, 11])
        assert np.array_equal(later.weights[:, 1:], weights[:, 5:])
        assert np.array_equal(whole.routing.ids, ids), "a result's arrays are its own"
    finally:
        plain.close()
        backend.close()


def test_a_step_that_is_aborted_has_no_routing(demo):
    model, run = demo
    backend = NativeBackend(model, run, n_ctx=128, capture_routing=True)
    try:
        ticket = backend.submit(rows((0, 0, 12)))
        backend.abort(ticket)
        while (result := backend._completions.take_nowait(ticket)) is None:
            pass
        assert (result.error is None) == (result.routing is not None)
    finally:
        backend.close()


def test_bench_writes_a_trace_of_every_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "bench.strt"
    assert main(["bench", "-p", "20", "-n", "6", "-r", "2", "--trace", str(out), "--json"]) == 0
    json.loads(capsys.readouterr().out.splitlines()[-1])
    with demo_model_path() as path, TraceReader(out, fingerprint=fingerprint(read_gguf(path))) as reader:
        assert reader.header.layers == tuple(range(N_SETS))
        assert (reader.header.n_layers, reader.header.n_expert, reader.header.k) == (N_SETS, N_EXPERT, K)
        (records,) = reader.pieces()
    assert len(records) == 3 * 26  # the warming run is a run, with tokens of its own
    for start in (0, 26, 52):
        part = slice(start, start + 26)
        assert records.position[part].tolist() == list(range(26))
        assert records.phase[part].tolist() == [Phase.PREFILL] * 20 + [Phase.DECODE] * 6
    assert np.array_equal(records.experts[26:52], records.experts[52:]), "equal tokens take equal ways"
    assert not records.on_gpu.any()
    decoded = records.experts[records.phase == Phase.DECODE]
    assert decoded.min() >= 0, "every layer of a decoded token is there"
    assert len(np.unique(records.step)) == 3 * 7


def test_run_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "run.strt"
    assert main(["run", "-p", "Once upon a time", "--temp", "0", "-n", "5", "--trace", str(out)]) == 0
    with TraceReader(out) as reader:
        (records,) = reader.pieces()
    assert (records.phase == Phase.DECODE).sum() == 4  # the fifth token is drawn and not computed
    assert (np.diff(records.position.astype(int)) == 1).all()


def test_a_trace_that_cannot_be_written_is_refused_before_loading(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "-p", "x", "--trace", str(tmp_path / "no" / "where.strt")]) == 1
    assert "the trace cannot be written: No such file or directory" in capsys.readouterr().err


def test_a_synthetic_model_has_the_fingerprint_of_its_file(tmp_path: Path):
    from strata.synthetic import SyntheticModel
    from strata.synthetic.writer import write_gguf

    for name in ("tiny-gpt-oss", "tiny-deepseek2"):
        model = SyntheticModel(name)
        write_gguf(model, tmp_path / "m.gguf", progress=False)
        assert model.fingerprint() == fingerprint(read_gguf(tmp_path / "m.gguf"))
    assert SyntheticModel("tiny-gpt-oss", seed=1).fingerprint() != SyntheticModel("tiny-gpt-oss").fingerprint()
