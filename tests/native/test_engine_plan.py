"""Plans are refused before anything is allocated: every table, by index, field and value. Garbage never crashes."""

from __future__ import annotations

import random
import select
from collections.abc import Callable
from typing import Any

import engine_kit as kit
import msgspec
import pytest

from strata.arch.plan_tables import ModelPlan
from strata.errors import NativeError
from strata.ffi.library import Library
from strata.ffi.native import NativeModel
from strata.ffi.tables import ModelDesc

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def library() -> Library:
    if not kit.LIBRARY.exists():
        pytest.skip("libstrata_test is not built")
    return Library(kit.LIBRARY)


@pytest.fixture(scope="module")
def plan(library: Library) -> ModelPlan:
    return replace(kit.make(library).plan, paths=("somewhere",))


def change(table: str, index: int, **fields: Any) -> Callable[[ModelPlan], ModelPlan]:
    """A plan with some fields of one row changed."""

    def apply(plan: ModelPlan) -> ModelPlan:
        rows = list(getattr(plan, table))
        rows[index] = replace(rows[index], **fields)
        return replace(plan, **{table: tuple(rows)})

    return apply


def whole(**fields: Any) -> Callable[[ModelPlan], ModelPlan]:
    return lambda plan: replace(plan, **fields)


def parameter(index: int, **values: Any) -> Callable[[ModelPlan], ModelPlan]:
    """One op with some parameters changed."""

    def apply(plan: ModelPlan) -> ModelPlan:
        op = plan.ops[index]
        i = {**op.i, **{name: value for name, value in values.items() if isinstance(value, int)}}
        f = {**op.f, **{name: value for name, value in values.items() if isinstance(value, float)}}
        return change("ops", index, i=i, f=f)(plan)

    return apply


def test_the_plan_itself_is_accepted(library: Library, plan: ModelPlan) -> None:
    NativeModel(library, plan).close()


BIG = 2**62
CASES = [
    (whole(n_batch=0), r"desc\.n_batch is 0; accepted: 1 to"),
    (whole(n_outputs_max=25), r"desc\.n_outputs_max is 25; accepted: 1 to 24"),
    (whole(n_vocab=0), r"desc\.n_vocab is 0"),
    (whole(weights_bytes=-1), r"desc\.weights_bytes is -1"),
    (whole(weights_bytes=64), r"tensors\[0\] does not fit"),
    (whole(activations_bytes=1024), r"buffers\[0\] does not fit"),
    (whole(ops=()), r"n_ops is 0"),
    # tensors
    (change("tensors", 0, type=77), r"tensors\[0\]\.type is 77; this is no matrix type"),
    (change("tensors", 1, type=8), r"tensors\[1\]\.type is 8; a vector is F32"),
    (change("tensors", 0, role=4), r"tensors\[0\]\.role is 4; accepted: 0 to 3"),
    (change("tensors", 0, n_cols=0), r"tensors\[0\]\.n_cols is 0"),
    (change("tensors", 0, n_cols=BIG), r"tensors\[0\]\.n_cols is 4611686018427387904"),
    (change("tensors", 0, n_rows=BIG), r"tensors\[0\]\.n_rows is"),
    (change("tensors", 0, n_mats=BIG), r"tensors\[0\]\.n_mats is"),
    (change("tensors", 0, type=8, n_cols=63), r"tensors\[0\]\.n_cols is 63; rows of Q8_0 are multiples of 32"),
    (change("tensors", 2, arena_offset=32), r"tensors\[2\]\.arena_offset is 32; a multiple of 64"),
    (change("tensors", 2, arena_offset=-64), r"tensors\[2\]\.arena_offset is -64"),
    (change("tensors", 2, arena_offset=BIG), r"tensors\[2\]\.arena_offset is"),
    (change("tensors", 2, arena_offset=0), r"tensors\[\d\]\.arena_offset is 0, inside tensors"),
    (change("tensors", 2, mat_stride_bytes=33), r"tensors\[2\]\.mat_stride_bytes is 33; a multiple of 64"),
    (change("tensors", 0, shard=1), r"tensors\[0\]\.shard is 1; accepted: 0 to 0"),
    (change("tensors", 0, file_offset=-1), r"tensors\[0\]\.file_offset is -1"),
    (change("tensors", 0, file_offset=2**63 - 5), r"tensors\[0\]\.file_offset is .* does not fit in 64 bits"),
    (change("tensors", 10, file_stride_bytes=2**62), r"tensors\[10\]\.file_offset is .* does not fit in 64 bits"),
    (change("tensors", 10, file_stride_bytes=8), r"tensors\[10\]\.file_stride_bytes is 8"),
    (change("tensors", 0, source_first=0), r"tensors\[0\]\.source_first is 0"),
    (change("tensors", 0, source_first=-2), r"tensors\[0\]\.source_first is -2"),
    # buffers
    (change("buffers", 0, offset=2), r"buffers\[0\]\.offset is 2; a multiple of 4"),
    (change("buffers", 0, offset=-4), r"buffers\[0\]\.offset is -4"),
    (change("buffers", 0, width=0), r"buffers\[0\]\.width is 0"),
    (change("buffers", 0, row_stride=63), r"buffers\[0\]\.row_stride is 63"),
    (change("buffers", 0, row_stride=2**31 - 1), r"buffers\[0\] does not fit"),
    (change("buffers", 0, rows=2), r"buffers\[0\]\.rows is 2"),
    # ropes, KV layers
    (change("ropes", 0, n_rot=15), r"ropes\[0\]\.n_rot is 15; an even number"),
    (change("ropes", 0, n_rot=18), r"ropes\[0\]\.freq_first is 0; accepted: 0 to -1"),
    (change("ropes", 0, freq_first=1), r"ropes\[0\]\.freq_first is 1"),
    (change("ropes", 0, factors=1), r"ropes\[0\]\.factors' n_cols is 64"),
    (change("ropes", 0, magnitude=float("nan")), r"ropes\[0\]\.magnitude is not finite"),
    (whole(freqs=(float("inf"),) * 8), r"freqs\[0\] is not finite"),
    (change("kv_layers", 0, n_head_kv=0), r"kv_layers\[0\]\.n_head_kv is 0"),
    (change("kv_layers", 0, n_head_kv=3), r"ATTENTION ops\[5\]\.i\[N_HEAD\] is 4; a multiple"),
    (change("kv_layers", 0, v_in_k=1), r"ATTENTION ops\[5\]\.in\[2\] is 4; -1 goes with v_in_k 1"),
    (change("kv_layers", 0, head_v=8), r"ATTENTION ops\[5\]\.in\[2\] is buffer 4 of width 32"),
    # expert sets
    (change("expert_sets", 0, n_used=5), r"expert_sets\[0\]\.n_used is 5; accepted: 1 to 4"),
    (change("expert_sets", 0, n_used=1), r"EXPERTS ops\[11\]"),
    (change("expert_sets", 0, n_expert=3), r"tensors\[10\]\.n_mats is 4, but the set's n_expert is 3"),
    (change("expert_sets", 0, gate=-1), r"expert_sets\[0\]\.gate is -1"),
    (change("expert_sets", 0, glu=7), r"expert_sets\[0\]\.gate is 10; this glu has no gate"),
    (change("expert_sets", 0, up=10), r"tensors\[10\]\.arena_offset is .*but its place in the slot is"),
    (change("expert_sets", 0, n_ff=64), r"tensors\[10\]\.n_rows is 32, but the row count"),
    (change("expert_sets", 0, slot_bytes=64), r"tensors\[10\]\.mat_stride_bytes is .* but the set's slot_bytes is 64"),
    (change("expert_sets", 0, slot_bytes=BIG), r"expert_sets\[0\]\.slot_bytes is"),
    (change("expert_sets", 0, arena_offset=0), r"tensors\[10\]\.arena_offset is"),
    (change("expert_sets", 0, down_bias=-1), r"tensors\[13\]\.role is 3; the tensor is a part of no expert set"),
    (change("expert_sets", 0, layer=1), r"expert_sets\[0\]\.layer is 1"),
    (change("expert_sets", 0, p0=float("inf")), r"expert_sets\[0\]\.p0 is not finite"),
    # ops
    (change("ops", 2, ins=(99,)), r"LINEAR ops\[2\]\.in\[0\] is 99; accepted: 0 to 11"),
    (change("ops", 2, ins=(-1,)), r"LINEAR ops\[2\]\.in\[0\] is -1"),
    (change("ops", 2, outs=(2, 3)), r"LINEAR ops\[2\]\.out\[2\] is -1"),
    (change("ops", 2, outs=(2, 3, 3)), r"LINEAR ops\[2\]\.out\[2\] is 3; two results would share bytes"),
    (change("ops", 2, outs=(2, 3, 1)), r"LINEAR ops\[2\]\.out\[2\] is buffer 1 of width 64"),
    (change("ops", 2, weights=(2, 3, 1)), r"LINEAR ops\[2\]\.weight\[2\] is 1; this tensor is no matrix"),
    (change("ops", 2, weights=(2, 3, 10)), r"LINEAR ops\[2\]\.weight\[2\] is 10; this tensor is no matrix"),
    (change("ops", 2, layer=1), r"LINEAR ops\[2\]\.layer is 1"),
    (change("ops", 1, weights=(0,)), r"NORM ops\[1\]\.weight\[0\] is 0; this tensor is no vector"),
    (parameter(2, n=5), r"LINEAR ops\[2\]\.i\[N\] is 5"),
    (parameter(2, n=2), r"LINEAR ops\[2\]\.out\[2\] is 4"),
    (parameter(1, width=128), r"NORM ops\[1\]\.weight\[0\] is 1, a vector of 64; one of 128"),
    (parameter(1, n_vec=2), r"NORM ops\[1\]\.out\[0\] is 1; the vectors written overlap"),
    (parameter(1, out_offset=1), r"NORM ops\[1\]\.out\[0\] is buffer 1 of width 64; the op means"),
    (parameter(1, eps=float("nan")), r"NORM ops\[1\]\.f is not finite"),
    (parameter(3, table=1), r"ROPE ops\[3\]\.i\[TABLE\] is 1"),
    (parameter(3, n_head=5), r"ROPE ops\[3\]\.in\[0\] is buffer 2 of width 64"),
    (change("ops", 3, outs=(5,)), r"ROPE ops\[3\]\.out\[0\] is 5, but the op works in place"),
    (parameter(5, kv_layer=1), r"ATTENTION ops\[5\]\.i\[KV_LAYER\] is 1"),
    (parameter(5, n_head=8), r"ATTENTION ops\[5\]\.in\[0\] is buffer 2 of width 64"),
    (change("ops", 5, outs=(2,)), r"ATTENTION ops\[5\]\.out\[0\] is 2; the op would write over what it reads"),
    (parameter(10, n_used=3), r"ROUTER ops\[10\]\.out\[0\] is buffer 8 of width 4"),
    (parameter(10, n_group=3), r"ROUTER ops\[10\]\.i\[N_GROUP_USED\] is 0"),
    (parameter(10, scores=9), r"ROUTER ops\[10\]\.i\[SCORES\] is 9"),
    (
        change("ops", 11, ins=(1, 7)),
        r"EXPERTS ops\[11\]\.in\[1\] is 7; the buffer does not hold the result of a ROUTER",
    ),
    (change("ops", 12, ins=(9, 7)), r"COMBINE ops\[12\]\.in\[1\] is 7; the buffer does not hold"),
    (parameter(12, n_used=1), r"COMBINE ops\[12\]\.in\[0\] is buffer 9 of width 128"),
    (parameter(13, width=65), r"ADD ops\[13\]\.in\[0\] is buffer 0 of width 64"),
    (change("ops", 13, weights=(1,)), r"ADD ops\[13\]\.weight\[0\] is 1; accepted: -1 to -1"),
    (change("ops", 14, ins=(10,)), r"GATHER ops\[14\]\.in\[0\]'s rows is 1"),
    (change("ops", 15, ins=(0,)), r"NORM ops\[15\]\.in\[0\] is 0; TOKENS rows and OUTPUTS rows meet only in GATHER"),
    (change("ops", 15, ins=(11,), outs=(11,)), r"NORM ops\[15\]\.in\[0\] is 11; no earlier op writes this buffer"),
    (lambda plan: replace(plan, ops=plan.ops[:-1]), r"ops\[15\]\.kind is 2, but the last op is HEAD"),
    (lambda plan: replace(plan, ops=(*plan.ops, plan.ops[1])), r"HEAD ops\[16\]\.\(place in the table\) is 16"),
    (lambda plan: replace(plan, ops=plan.ops[2:]), r"LINEAR ops\[0\]\.in\[0\] is 1; no earlier op writes"),
    (
        lambda plan: replace(plan, ops=(*plan.ops[:12], plan.ops[11], *plan.ops[12:])),
        r"\.i\[SET\] is 0; an earlier op uses",
    ),
    (
        lambda plan: replace(plan, ops=(*plan.ops[:6], plan.ops[5], *plan.ops[6:])),
        r"an earlier op stores into this layer",
    ),
]


@pytest.mark.parametrize(("damage", "text"), CASES, ids=[text[:48] for _, text in CASES])
def test_damaged_plans_are_refused_by_name(
    library: Library, plan: ModelPlan, damage: Callable[[ModelPlan], ModelPlan], text: str
) -> None:
    with pytest.raises(NativeError, match=text):
        NativeModel(library, damage(plan)).close()


def test_a_selection_that_something_wrote_over_is_refused(library: Library, plan: ModelPlan) -> None:
    """The linear's result lands on the selection's bytes between ROUTER and EXPERTS."""
    again = replace(plan.ops[9], outs=(12,))
    buffers = (*plan.buffers, replace(plan.buffers[7], offset=plan.buffers[8].offset))
    ops = (*plan.ops[:11], again, *plan.ops[11:])
    with pytest.raises(NativeError, match=r"EXPERTS ops\[12\]\.in\[1\] is 8; the buffer does not hold"):
        NativeModel(library, replace(plan, buffers=buffers, ops=ops)).close()


def test_views_of_other_columns_do_not_meet(library: Library, plan: ModelPlan) -> None:
    """q, k and v as columns of one wide row."""
    stride = 64 + 32 + 32
    places = {2: (64, 0), 3: (32, 64), 4: (32, 96)}
    buffers = list(plan.buffers)
    for index, (width, column) in places.items():
        buffers[index] = replace(buffers[index], offset=buffers[2].offset + 4 * column, width=width, row_stride=stride)
    NativeModel(library, replace(plan, buffers=tuple(buffers))).close()


def test_unknown_parameters_and_kinds_never_reach_the_library(library: Library, plan: ModelPlan) -> None:
    with pytest.raises(ValueError, match=r"op 1 norm: strata\.h has no STRATA_NORM_I_SPEED"):
        NativeModel(library, parameter(1, speed=1)(plan))
    with pytest.raises(ValueError, match=r"op 1 warp: strata\.h has no STRATA_OP_WARP"):
        NativeModel(library, change("ops", 1, kind="warp")(plan))
    with pytest.raises(ValueError, match="5 operands, at most 4"):
        NativeModel(library, change("ops", 1, ins=(0, 1, 2, 3, 4))(plan))


def test_descriptions_of_another_version_are_refused(library: Library, plan: ModelPlan) -> None:
    ffi, lib = library.ffi, library.lib
    tables, out = ModelDesc(ffi, plan), ffi.new("strata_model **")
    for field, value, text in (
        ("struct_size", 4, "desc.struct_size is 4"),
        ("abi_version", 0, "desc.abi_version is 0"),
    ):
        kept = getattr(tables.desc, field)
        setattr(tables.desc, field, value)
        assert lib.strata_model_open(tables.desc, out) == ffi.integer_const("STRATA_E_ARGUMENT")
        assert text in ffi.string(lib.strata_last_error()).decode()
        setattr(tables.desc, field, kept)
    assert lib.strata_model_open(ffi.NULL, out) == ffi.integer_const("STRATA_E_ARGUMENT")
    tables.desc.tensors = ffi.NULL
    assert lib.strata_model_open(tables.desc, out) == ffi.integer_const("STRATA_E_ARGUMENT")
    assert "desc.tensors is null, but desc.n_tensors is 14" in ffi.string(lib.strata_last_error()).decode()


TABLES = {
    "tensors": "strata_tensor",
    "buffers": "strata_buffer",
    "ropes": "strata_rope",
    "kv_layers": "strata_kv_layer",
    "expert_sets": "strata_expert_set",
    "ops": "strata_op",
}


WORDS = [0, 1, -1, 2, 3, 31, 64, 2**31 - 1, -(2**31), 0x7FC00000]
ROOM_BYTES = 1 << 28  # plans that ask for more are not run


@pytest.mark.parametrize("seed", range(8))
def test_garbage_tables_never_crash(library: Library, seed: int) -> None:
    """Words of the tables become garbage: the library refuses the plan, or runs a step of it without harm."""
    ffi, lib = library.ffi, library.lib
    plan = kit.make(library).plan
    rng = random.Random(seed)
    ran = refused = 0
    for _ in range(300):
        tables = ModelDesc(ffi, plan)
        for _ in range(rng.randint(1, 4)):
            name, c_type = rng.choice(list(TABLES.items()))
            n_words = getattr(tables.desc, f"n_{name}") * ffi.sizeof(c_type) // 4
            view = ffi.cast("int32_t *", getattr(tables.desc, name))
            at = rng.randrange(n_words)
            flipped = view[at] ^ (1 << rng.randrange(31))
            view[at] = rng.choice([rng.choice(WORDS), flipped, rng.randint(-(2**31), 2**31 - 1)])
        out = ffi.new("strata_model **")
        status = lib.strata_model_open(tables.desc, out)
        assert status in (0, ffi.integer_const("STRATA_E_ARGUMENT"))
        refused += status != 0
        if status == 0:
            ran += run_if_small(library, plan, out[0])
            assert lib.strata_model_close(out[0]) == 0
    assert ran > 0
    assert refused > 0


def run_if_small(library: Library, plan: ModelPlan, model: Any) -> bool:
    """Run one step on zero weights, if the engine is of a sensible size."""
    ffi, lib = library.ffi, library.lib
    config, size = ffi.new("strata_engine_config *"), ffi.new("strata_engine_bytes *")
    config.struct_size, size.struct_size = ffi.sizeof("strata_engine_config"), ffi.sizeof("strata_engine_bytes")
    config.n_threads = config.n_kv_blocks = config.max_seqs = config.queue_steps = 1
    config.poison, config.tier = 1, -1
    if lib.strata_engine_measure(model, config, size) != 0 or size.kv + size.scratch > ROOM_BYTES:
        return False
    assert lib.strata_model_reserve(model) == 0
    out, ticket = ffi.new("strata_engine **"), ffi.new("uint64_t *")
    assert lib.strata_engine_open(model, config, out) == 0
    step, n = ffi.new("strata_step *"), kit.N_BATCH
    ids, zeros, logits = (
        ffi.new("int32_t[]", list(range(n))),
        ffi.new("int32_t[]", n),
        ffi.new("float[]", n * plan.n_vocab),
    )
    step.struct_size = ffi.sizeof("strata_step")
    step.n_tokens = step.n_outputs = n
    step.n_seqs = step.max_blocks = 1
    step.token = step.pos = step.output_row = ids
    step.seq = step.block_table = zeros
    step.logits_out = logits
    assert lib.strata_engine_submit(out[0], step, ticket) == 0
    ready = select.poll()
    ready.register(lib.strata_engine_eventfd(out[0]), select.POLLIN)
    assert ready.poll(60000)
    assert lib.strata_engine_close(out[0]) == 0
    return True
