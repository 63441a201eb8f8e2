"""The plan's tables: what the native library receives, row by row, as native/include/strata.h describes it.

The enums repeat that header's numbers; a test binds the two. Offsets and sizes are bytes; ids index the tables; -1 is
"absent". Pure data with a JSON form that reads back as the same plan.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

__all__ = [
    "Act",
    "ExpertSet",
    "Glu",
    "KvLayer",
    "ModelPlan",
    "NormKind",
    "PlanBuffer",
    "PlanOp",
    "PlanRope",
    "PlanSource",
    "PlanState",
    "PlanTensor",
    "Role",
    "RopeStyle",
    "Rows",
    "Scores",
    "WindowKind",
]


class Role(IntEnum):
    """STRATA_ROLE_*"""

    MATRIX = 0
    VECTOR = 1
    EXPERT_MATRIX = 2
    EXPERT_VECTOR = 3


class Rows(IntEnum):
    """STRATA_ROWS_*"""

    TOKENS = 0
    OUTPUTS = 1


class RopeStyle(IntEnum):
    """STRATA_ROPE_*"""

    NORM = 0
    NEOX = 1


class NormKind(IntEnum):
    """STRATA_NORM_*"""

    RMS = 0
    LAYER = 1
    L2 = 2


class Glu(IntEnum):
    """STRATA_GLU_*"""

    SILU = 0
    GELU = 1
    RELU = 2
    SWIGLU_OAI = 3
    SILU_CLAMP_EARLY = 4
    SILU_CLAMP_LATE = 5
    SITU = 6
    UP_SILU = 7
    UP_RELU_SQR = 8
    UP_GELU = 9


class Scores(IntEnum):
    """STRATA_SCORES_*"""

    SOFTMAX = 1
    SIGMOID = 2
    SOFTMAX_WEIGHT = 3
    SQRT_SOFTPLUS = 4


class Act(IntEnum):
    """STRATA_ACT_*"""

    NONE = 0
    SIGMOID = 1
    SILU = 2
    SOFTPLUS = 3


class WindowKind(IntEnum):
    """STRATA_WINDOW_*"""

    STANDARD = 0
    CHUNKED = 1


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the rows."""


class PlanTensor(Table, frozen=True, kw_only=True):
    """strata_tensor. `name` is the file's, for messages."""

    name: str
    type: int
    role: int
    n_cols: int
    n_rows: int
    n_mats: int
    shard: int
    source_first: int
    file_offset: int
    file_stride_bytes: int
    arena_offset: int
    mat_stride_bytes: int


class PlanSource(Table, frozen=True, kw_only=True):
    """strata_source."""

    shard: int
    file_offset: int


class PlanBuffer(Table, frozen=True, kw_only=True):
    """strata_buffer; width and row_stride in floats, offset in bytes."""

    offset: int
    width: int
    row_stride: int
    rows: int


class PlanRope(Table, frozen=True, kw_only=True):
    """strata_rope."""

    style: int
    n_rot: int
    freq_first: int
    factors: int
    magnitude: float


class KvLayer(Table, frozen=True, kw_only=True):
    """strata_kv_layer."""

    n_head_kv: int
    head_k: int
    head_v: int
    v_in_k: int


class PlanState(Table, frozen=True, kw_only=True):
    """strata_state."""

    n_floats: int


class ExpertSet(Table, frozen=True, kw_only=True):
    """strata_expert_set."""

    layer: int
    n_expert: int
    n_used: int
    glu: int
    n_in: int
    n_ff: int
    n_out: int
    weight_on_input: int
    gate: int
    up: int
    down: int
    gate_bias: int
    up_bias: int
    down_bias: int
    gate_scale: int
    up_scale: int
    down_scale: int
    p0: float
    p1: float
    arena_offset: int
    slot_bytes: int


class PlanOp(Table, frozen=True, kw_only=True, omit_defaults=True):
    """strata_op. kind: the lower-case word after STRATA_OP_; trailing absent operands are left out.

    i and f: parameters by the lower-case word after STRATA_<OP>_I_ or _F_; those left out are zero.
    """

    kind: str
    layer: int
    ins: tuple[int, ...] = ()
    outs: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    i: dict[str, int] = {}
    f: dict[str, float] = {}


class ModelPlan(Table, frozen=True, kw_only=True):
    """strata_model_desc, and the totals that the memory ledger and the reports use.

    read_bytes_per_token: weights that one decoded token reads, embedding row included, KV cache not.
    kv_values_per_token: numbers that one position keeps in all caches together.
    states: what the recurrent layers keep of a sequence, whatever its length.
    expert_bytes: of all slots; the rest of weights_bytes is dense.
    n_ctx: the longest context that the rotary tables were chosen for.
    """

    arch: str
    paths: tuple[str, ...]
    n_layer: int
    n_vocab: int
    n_embd: int
    n_ctx_train: int
    n_ctx: int
    n_batch: int
    n_outputs_max: int
    weights_bytes: int
    activations_bytes: int
    expert_bytes: int
    read_bytes_per_token: int
    kv_values_per_token: int
    tensors: tuple[PlanTensor, ...]
    sources: tuple[PlanSource, ...]
    buffers: tuple[PlanBuffer, ...]
    ropes: tuple[PlanRope, ...]
    freqs: tuple[float, ...]
    kv_layers: tuple[KvLayer, ...]
    expert_sets: tuple[ExpertSet, ...]
    ops: tuple[PlanOp, ...]
    states: tuple[PlanState, ...] = ()
