"""NativeBackend under trio, the ABI handshake, the generated declarations, and the native test program."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cffi
import engine_kit as kit
import pytest
import trio
import trio.testing

from strata.engine.backend import StepBatch
from strata.errors import EngineStopped, NativeError, StrataError
from strata.ffi import library as library_module
from strata.ffi.completions import Completions
from strata.ffi.library import Library
from strata.ffi.native import EngineOptions, NativeBackend, NativeModel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def library() -> Library:
    if not kit.LIBRARY.exists():
        pytest.skip("libstrata_test is not built")
    return Library(kit.LIBRARY)


@pytest.fixture
async def engine(library: Library, tmp_path: Path) -> AsyncIterator[NativeBackend]:
    _, model = kit.loaded(library, tmp_path)
    made = kit.backend(model, n_threads=2)
    yield made
    await made.aclose()
    model.close()


def step(n: int = 5, seed: int = 1) -> StepBatch:
    return StepBatch(rows=(kit.row(kit.tokens(n, seed), sample=True),))


async def test_waiting_gives_the_step_s_result(engine: NativeBackend) -> None:
    with trio.fail_after(30):
        first, second = engine.submit(step()), engine.submit(step(6, 2))
        late = await engine.wait(second)
        early = await engine.wait(first)
    assert (early.ticket, late.ticket) == (first, second)
    assert early.error is None
    assert early.run_s > 0
    assert getattr(late.logits, "shape", None) == (6, kit.N_VOCAB)


async def test_several_tasks_wait_at_once(engine: NativeBackend) -> None:
    found: dict[int, int] = {}

    async def wait(ticket: int) -> None:
        found[ticket] = (await engine.wait(ticket)).ticket

    with trio.fail_after(30):
        for _ in range(20):
            tickets = [engine.submit(step()), engine.submit(step())]
            async with trio.open_nursery() as nursery:
                for ticket in reversed(tickets):
                    nursery.start_soon(wait, ticket)
            assert all(found[ticket] == ticket for ticket in tickets)


async def test_cancelled_wait_leaves_the_result(engine: NativeBackend) -> None:
    with trio.fail_after(30):
        ticket = engine.submit(step())
        with trio.CancelScope() as scope:
            scope.cancel()
            await engine.wait(ticket)
        assert scope.cancelled_caught
        assert (await engine.wait(ticket)).error is None


async def test_a_cancelled_leader_hands_over() -> None:
    """Two tasks wait; the one on the descriptor is cancelled; the other gets its result."""
    done: list[tuple[int, str]] = []
    ours, theirs = trio.socket.socketpair()

    def collect() -> list[tuple[int, str]]:
        found, done[:] = list(done), []
        return found

    completions = Completions(ours.fileno(), collect)
    got: list[str] = []

    async def follow() -> None:
        got.append(await completions.wait(2))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            leader = trio.CancelScope()

            async def lead() -> None:
                with leader:
                    await completions.wait(1)

            nursery.start_soon(lead)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked()
            leader.cancel()
            await trio.testing.wait_all_tasks_blocked()
            done.extend([(2, "two"), (1, "one")])
            await theirs.send(b"x")
    assert got == ["two"]
    assert completions.take_nowait(1) == "one"
    ours.close()
    theirs.close()


async def test_abort_is_an_error_of_the_step(engine: NativeBackend) -> None:
    with trio.fail_after(30):
        for _ in range(50):
            ticket = engine.submit(step(24))
            engine.abort(ticket)
            result = await engine.wait(ticket)
            if result.error is not None:
                break
        assert isinstance(result.error, NativeError)
        assert "aborted" in str(result.error)
        assert (await engine.wait(engine.submit(step()))).error is None


async def test_more_steps_than_the_queue_holds_are_refused(engine: NativeBackend) -> None:
    tickets = [engine.submit(step()), engine.submit(step())]
    with pytest.raises(NativeError, match="as many steps as queue_steps"):
        engine.submit(step())
    with trio.fail_after(30):
        for ticket in tickets:
            await engine.wait(ticket)


async def test_closed_engines_answer(engine: NativeBackend) -> None:
    engine.submit(step())
    await engine.aclose()
    await engine.aclose()
    with pytest.raises(EngineStopped):
        engine.submit(step())
    with pytest.raises(EngineStopped):
        await engine.wait(1)
    assert engine.health().phase == "dead"


async def test_closing_wakes_those_who_wait(engine: NativeBackend) -> None:
    stopped: list[int] = []

    async def wait(ticket: int) -> None:
        try:
            await engine.wait(ticket)
        except EngineStopped:
            stopped.append(ticket)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for ticket in (98, 99):  # never submitted: nothing but the end can wake them
                nursery.start_soon(wait, ticket)
            await trio.testing.wait_all_tasks_blocked()
            await engine.aclose()
    assert sorted(stopped) == [98, 99]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_threads": 0}, "config.n_threads is 0; accepted: 1 to 256"),
        ({"n_kv_blocks": 0}, "config.n_kv_blocks is 0"),
        ({"queue_steps": 3}, "config.queue_steps is 3; a power of two"),
        ({"max_seqs": 0}, "config.max_seqs is 0"),
        ({"spin_us": -2}, "config.spin_us is -2"),
    ],
)
def test_bad_options_are_refused(library: Library, tmp_path: Path, options: dict[str, Any], text: str) -> None:
    _, model = kit.loaded(library, tmp_path)
    with model, pytest.raises(NativeError, match=text):
        kit.backend(model, **options)


def test_measure_is_what_the_engine_takes(library: Library) -> None:
    plan = kit.make(library).plan
    with NativeModel(library, plan) as model:
        one = model.measure(EngineOptions(n_threads=1, n_kv_blocks=8, kv_type="f32"))
        two = model.measure(EngineOptions(n_threads=1, n_kv_blocks=16, kv_type="f32"))
    assert one.activations == plan.activations_bytes
    assert two.kv == 2 * one.kv == 2 * 8 * 64 * 4 * sum(2 * kit.N_HEAD_KV * kit.HEAD for _ in plan.kv_layers)
    assert one.scratch > 0


def test_idle_workers_go_to_sleep(library: Library, tmp_path: Path) -> None:
    _, model = kit.loaded(library, tmp_path)
    engine = kit.backend(model, n_threads=3, spin_us=0)
    engine.run_sync(step())
    stats = engine._stats
    give_up = time.monotonic() + 60
    while stats.sleeps < 2 and time.monotonic() < give_up:
        engine._lib.strata_engine_stats_read(engine._handle, stats)
    assert stats.sleeps >= 2
    assert engine.health().phase == "idle"
    assert engine.health().heartbeat_age_s == 0
    engine.close()
    model.close()


# ---- the border -----------------------------------------------------------------------------------------------------


class OtherNumbers:
    """The module's ffi with one answer changed."""

    def __init__(self, real: Any, **answers: Any) -> None:
        self._real = real
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return self._answers.get(name, getattr(self._real, name))


def test_a_library_of_another_header_is_refused(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    real = library.ffi
    monkeypatch.setattr(library_module, "ffi", OtherNumbers(real, integer_const=lambda name: 99))
    with pytest.raises(StrataError, match=r"has ABI version 1, this package needs 99; build and install"):
        Library(kit.LIBRARY)
    sizes = OtherNumbers(real, sizeof=lambda name: real.sizeof(name) + (name == "strata_step"))
    monkeypatch.setattr(library_module, "ffi", sizes)
    with pytest.raises(StrataError, match=r"strata_step has \d+ bytes, this package expects \d+"):
        Library(kit.LIBRARY)


def test_a_missing_library_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StrataError, match="cannot be opened"):
        Library(tmp_path / "libstrata.so")


def test_every_struct_has_a_size(library: Library) -> None:
    ffi = library.ffi
    opaque = {"strata_model", "strata_engine"}
    for name in set(ffi.list_types()[0]) - opaque:
        assert library.lib.strata_struct_bytes(name.encode()) == ffi.sizeof(name), name
    assert library.lib.strata_struct_bytes(b"strata_nothing") == -1


def test_facts_about_the_machine(library: Library) -> None:
    assert library.cpu_count >= 1
    assert library.cpu_tier in {"scalar", "avx2", "avx512", "neon"}
    assert "optimised" in library.build_info
    assert library.measure_read(1, 1 << 20) > 0
    with pytest.raises(NativeError, match="bytes is 5"):
        library.measure_read(1, 5)
    assert library.packed_bytes(kit.F32, 16, 32) == 16 * 32 * 4
    assert library.packed_bytes(kit.Q8_0, 16, 33) == -1
    assert library.packed_bytes(1234, 16, 32) == -1


def test_null_arguments_are_refused(library: Library) -> None:
    ffi, lib = library.ffi, library.lib
    null, bad = ffi.NULL, ffi.integer_const("STRATA_E_ARGUMENT")
    for call in (
        lambda: lib.strata_model_open(null, null),
        lambda: lib.strata_model_load(null, null, null),
        lambda: lib.strata_model_progress(null, null, null),
        lambda: lib.strata_model_cancel(null),
        lambda: lib.strata_model_reserve(null),
        lambda: lib.strata_model_fill(null, 0, 0, 0, 0, null, 0),
        lambda: lib.strata_engine_measure(null, null, null),
        lambda: lib.strata_engine_open(null, null, null),
        lambda: lib.strata_engine_eventfd(null),
        lambda: lib.strata_engine_submit(null, null, null),
        lambda: lib.strata_engine_poll(null, null, 0, null),
        lambda: lib.strata_engine_abort(null, 0),
        lambda: lib.strata_engine_error(null, 0, null, 0),
        lambda: lib.strata_engine_stats_read(null, null),
        lambda: lib.strata_engine_kv_copy(null, 0, 0),
        lambda: lib.strata_measure_read(1, 1 << 20, null),
    ):
        assert call() == bad
        assert "is null" in ffi.string(lib.strata_last_error()).decode()
    assert lib.strata_model_close(null) == lib.strata_engine_close(null) == 0


def test_statuses_have_names(library: Library) -> None:
    ffi, lib = library.ffi, library.lib
    names = ["OK", "E_ARGUMENT", "E_MEMORY", "E_IO", "E_CANCELLED", "E_DEADLINE", "E_NUMERIC", "E_STATE"]
    names += ["E_UNSUPPORTED", "E_DEVICE", "E_DEVICE_MEMORY", "E_BUSY", "E_INTERNAL"]
    for name in names:
        status = ffi.integer_const(f"STRATA_{name}")
        assert ffi.string(lib.strata_status_name(status)).decode() == f"STRATA_{name}"


def test_only_the_abi_is_exported() -> None:
    if not kit.LIBRARY.exists():
        pytest.skip("libstrata_test is not built")
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", str(kit.LIBRARY)], capture_output=True, text=True, check=False
    )
    if shown.returncode != 0:
        pytest.skip("nm cannot read the library here")
    names = {line.split()[-1] for line in shown.stdout.splitlines()}
    assert {name for name in names if not name.startswith("strata_")} == set()


def test_declarations_are_fresh() -> None:
    run = subprocess.run(
        [sys.executable, "tools/gen_ffi.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_quotas_are_found(library: Library, tmp_path: Path) -> None:
    hooks = cffi.FFI()
    hooks.cdef("int32_t strata_test_cgroup_cpus(const char *root, const char *proc_cgroup);")
    lib: Any = hooks.dlopen(str(kit.LIBRARY))

    def cpus(names: str) -> int:
        (tmp_path / "proc").write_text(names)
        return int(lib.strata_test_cgroup_cpus(str(tmp_path).encode(), str(tmp_path / "proc").encode()))

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert cpus("0::/a/b\n") == 0
    write("a/b/cpu.max", "max 100000\n")
    assert cpus("0::/a/b\n") == 0
    write("a/cpu.max", "350000 100000\n")  # of the group above
    assert cpus("0::/a/b\n") == 3
    write("a/b/cpu.max", "50000 100000\n")
    assert cpus("0::/a/b\n") == 1
    assert cpus("0::/\n") == 0
    write("cpu.max", "200000 100000\n")  # a container sees its own group as the root
    assert cpus("0::/not/here\n") == 2
    write("cpu,cpuacct/x/cpu.cfs_quota_us", "400000\n")
    write("cpu,cpuacct/x/cpu.cfs_period_us", "100000\n")
    assert cpus("4:memory:/x\n3:cpu,cpuacct:/x\n") == 4
    write("cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n")
    assert cpus("3:cpu,cpuacct:/x\n") == 0


def test_pool_and_queue_program() -> None:
    program = kit.LIBRARY.parent / "test_pool"
    if not program.exists():
        pytest.skip("test_pool is not built")
    run = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout
