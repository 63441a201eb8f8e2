"""Binding of recurrent mixers: which layers have one, its numbers and its tensors.

Only `bind` calls this. Errors: BindError for metadata at once; tensor problems are collected in the claims.
"""

from __future__ import annotations

from strata.arch.bind_keys import Keys
from strata.arch.bind_tensors import Claims
from strata.arch.bound import BoundLinear, BoundNorm
from strata.arch.bound_mixer import (
    BoundConv,
    BoundGatedDelta,
    BoundKda,
    BoundLightning,
    BoundMamba,
    BoundMamba2,
    BoundMixer,
    BoundShortConv,
)
from strata.arch.spec import Key, Norm, Recurrent
from strata.arch.spec_mixer import GatedDelta, Kda, Mamba, Mamba2, ShortConv

__all__ = ["MixerBinder"]

MAX_TAPS = 64
MAX_STATE = 4096  # of one head, or of one channel
MAX_WIDTH = 2**20
MIN_LOG_DECAY = -100.0  # exp of less is 0 in float32


class MixerBinder:
    """Binds the recurrent layers of one file."""

    def __init__(self, keys: Keys, claims: Claims, recurrent: Recurrent, norm: Norm) -> None:
        self._keys, self._claims, self._spec = keys, claims, recurrent
        self._eps = keys.real(norm.eps, minimum=0.0)
        if recurrent.layers == "no-kv-heads":
            self._flags = [n_head_kv == 0 for _, n_head_kv in keys.heads]
        else:
            self._flags = keys.recurrent_flags(recurrent.layers)

    def has_layer(self, index: int) -> bool:
        """Whether the mixer stands in the place of this block's attention."""
        return self._flags[index]

    def layer(self, index: int) -> BoundMixer:
        """The mixer of one block."""
        spec, lead = self._spec.mixer, f"blk.{index}."
        if isinstance(spec, ShortConv):
            return self._short_conv(spec, lead)
        if isinstance(spec, GatedDelta):
            return self._gated_delta(spec, lead)
        if isinstance(spec, Kda):
            return self._kda(spec, lead)
        if isinstance(spec, Mamba):
            return self._mamba(lead)
        return self._mamba2(lead) if isinstance(spec, Mamba2) else self._lightning(lead, index)

    # ---- parts

    def _size(self, name: str, maximum: int = MAX_WIDTH) -> int:
        return self._keys.integer(Key(name), minimum=1, maximum=maximum)

    def _plain(self, stem: str, n_in: int, n_out: int) -> BoundLinear:
        """A projection that no scale applies to."""
        return BoundLinear(weight=self._claims.matrix(f"{stem}.weight", n_in, n_out))

    def _norm(self, name: str, ne: tuple[int, ...]) -> BoundNorm:
        return BoundNorm(kind="rms", eps=self._eps, gain=self._claims.flat(f"{name}.weight", ne))

    def _conv(self, name: str, ne: tuple[int, ...], bias: bool = False) -> BoundConv:
        """ne: taps first, channels last."""
        width = max(ne[1:])
        return BoundConv(
            width=width,
            taps=ne[0],
            weight=self._claims.flat(f"{name}.weight", ne),
            bias=self._claims.vector(f"{name}.bias", width) if bias else None,
        )

    def _taps(self) -> int:
        return self._keys.integer(Key("ssm.conv_kernel"), minimum=2, maximum=MAX_TAPS)

    def _divided(self, name: str, value: int, by: str, divisor: int) -> int:
        if value % divisor != 0:
            raise self._keys.error(name, value, f"a multiple of {by} ({divisor})")
        return value // divisor

    # ---- mixers

    def _short_conv(self, spec: ShortConv, lead: str) -> BoundShortConv:
        claims, n_embd = self._claims, self._keys.dims["n_embd"]
        taps = self._keys.integer(spec.taps, minimum=2, maximum=MAX_TAPS)
        b, c, x = claims.split(f"{lead}shortconv.in_proj", n_embd, (n_embd,) * 3)
        return BoundShortConv(
            b=b,
            c=c,
            x=x,
            conv=self._conv(f"{lead}shortconv.conv", (taps, n_embd)),
            output=claims.linear(f"{lead}shortconv.out_proj", n_embd, n_embd),
        )

    def _gated_delta(self, spec: GatedDelta, lead: str) -> BoundGatedDelta:
        keys, claims, n_embd = self._keys, self._claims, self._keys.dims["n_embd"]
        head, n_v = self._size("ssm.state_size", MAX_STATE), self._size("ssm.time_step_rank")
        n_k, inner = self._size("ssm.group_count"), self._size("ssm.inner_size")
        self._divided("ssm.time_step_rank", n_v, "ssm.group_count", n_k)
        if inner != n_v * head:
            raise keys.error("ssm.inner_size", inner, f"time_step_rank * state_size ({n_v * head})")
        width = 2 * n_k * head + inner
        linear = claims.linear if spec.scaled else self._plain
        parts: dict[str, BoundLinear] = {}
        if spec.layout == "grouped" and not claims.has(f"{lead}attn_qkv.weight"):
            parts["mixed"] = linear(f"{lead}ssm_in", n_embd, width + inner)
        else:
            parts["qkv"] = linear(f"{lead}attn_qkv", n_embd, width)
            parts["z"] = linear(f"{lead}attn_gate", n_embd, inner)
            if spec.layout == "grouped" and claims.has(f"{lead}ssm_in.weight"):
                claims.ignore([f"{lead}ssm_in.weight"], "attn_qkv and attn_gate say the same")
        if spec.layout == "grouped":
            parts["ba"] = linear(f"{lead}ssm_ba", n_embd, 2 * n_v)
        else:
            parts["b"] = linear(f"{lead}ssm_beta", n_embd, n_v)
            parts["a"] = linear(f"{lead}ssm_alpha", n_embd, n_v)
        return BoundGatedDelta(
            n_k=n_k,
            n_v=n_v,
            head=head,
            tiled=spec.layout == "tiled",
            l2_eps=self._eps,
            conv=self._conv(f"{lead}ssm_conv1d", (self._taps(), width)),
            decay=claims.vector(f"{lead}ssm_a", n_v),
            decay_bias=claims.vector(f"{lead}ssm_dt.bias", n_v),
            norm=self._norm(f"{lead}ssm_norm", (head,)),
            output=linear(f"{lead}ssm_out", inner, n_embd),
            **parts,
        )

    def _kda(self, spec: Kda, lead: str) -> BoundKda:
        claims, n_embd, n_head = self._claims, self._keys.dims["n_embd"], self._keys.dims["n_head"]
        head = self._size("kda.head_dim", MAX_STATE)
        width, taps = n_head * head, self._taps()
        rank, gate_rank = width if spec.full_rank else head, head if spec.gate == "low-rank" else width
        bound = self._kda_bound(spec)
        q, k, v = self._kda_inputs(lead, width)
        convs = [self._conv(f"{lead}ssm_conv1d_{x}", (taps, 1, width)) for x in "qkv"]
        return BoundKda(
            n_head=n_head,
            head=head,
            l2_eps=self._eps,
            q=q,
            k=k,
            v=v,
            convs=(convs[0], convs[1], convs[2]),
            f_a=self._plain(f"{lead}ssm_f_a", n_embd, rank),
            f_b=None if spec.full_rank else self._plain(f"{lead}ssm_f_b", rank, width),
            beta=self._plain(f"{lead}ssm_beta", n_embd, n_head),
            decay=claims.flat(f"{lead}ssm_a", (1, n_head) if claims.n_rows(f"{lead}ssm_a") == n_head else (n_head,)),
            decay_bias=claims.vector(f"{lead}ssm_dt.bias", width),
            g_a=self._plain(f"{lead}ssm_g" if spec.gate == "named-full" else f"{lead}ssm_g_a", n_embd, gate_rank),
            g_b=self._plain(f"{lead}ssm_g_b", head, width) if spec.gate == "low-rank" else None,
            norm=self._norm(f"{lead}ssm_norm", (head,)),
            output=self._plain(f"{lead}attn_output", width, n_embd),
            bound=bound,
            negated=spec.negated and bound != 0.0,
        )

    def _kda_bound(self, spec: Kda) -> float:
        keys = self._keys
        if spec.bounded is not None and not keys.flag(spec.bounded):
            raise keys.error(spec.bounded.name, False, "true")
        if spec.bound is None:
            return 0.0
        bound = keys.real(spec.bound, minimum=MIN_LOG_DECAY)
        if bound == 0.0 and not keys.has(spec.bound.name):
            return 0.0
        if bound >= 0.0:
            raise keys.error(spec.bound.name, bound, f"{MIN_LOG_DECAY:g} to below 0")
        return bound

    def _kda_inputs(self, lead: str, width: int) -> tuple[BoundLinear, BoundLinear, BoundLinear]:
        claims, n_embd = self._claims, self._keys.dims["n_embd"]
        names = ("attn_qkv", "attn_q", "attn_k", "attn_v")
        idle = [f"{lead}{name}.bias" for name in names if claims.has(f"{lead}{name}.bias")]
        claims.ignore(idle, "a bias that this architecture does not apply")
        if claims.has(f"{lead}attn_qkv.weight"):
            rows = [range(width * part, width * (part + 1)) for part in range(3)]
            made = [BoundLinear(weight=claims.rows(f"{lead}attn_qkv.weight", n_embd, r, 3 * width)) for r in rows]
        else:
            made = [self._plain(f"{lead}attn_{x}", n_embd, width) for x in "qkv"]
        return made[0], made[1], made[2]

    def _mamba(self, lead: str) -> BoundMamba:
        claims, n_embd = self._claims, self._keys.dims["n_embd"]
        inner, n_state = self._size("ssm.inner_size"), self._size("ssm.state_size", MAX_STATE)
        rank = self._size("ssm.time_step_rank")
        x, z = claims.split(f"{lead}ssm_in", n_embd, (inner, inner))
        low, b, c = claims.split(f"{lead}ssm_x", inner, (rank, n_state, n_state))
        return BoundMamba(
            n_state=n_state,
            x=x,
            z=z,
            conv=self._conv(f"{lead}ssm_conv1d", (self._taps(), inner), bias=True),
            low=low,
            b=b,
            c=c,
            low_norm=self._norm(f"{lead}ssm_dt_norm", (rank,)),
            b_norm=self._norm(f"{lead}ssm_b_norm", (n_state,)),
            c_norm=self._norm(f"{lead}ssm_c_norm", (n_state,)),
            dt=self._plain(f"{lead}ssm_dt", rank, inner),
            dt_bias=claims.vector(f"{lead}ssm_dt.bias", inner),
            decay=claims.flat(f"{lead}ssm_a", (n_state, inner)),
            skip=claims.vector(f"{lead}ssm_d", inner),
            output=claims.linear(f"{lead}ssm_out", inner, n_embd),
        )

    def _mamba2(self, lead: str) -> BoundMamba2:
        claims, n_embd = self._claims, self._keys.dims["n_embd"]
        inner, n_state = self._size("ssm.inner_size"), self._size("ssm.state_size", MAX_STATE)
        n_head, n_group = self._size("ssm.time_step_rank"), self._size("ssm.group_count")
        head = self._divided("ssm.inner_size", inner, "ssm.time_step_rank", n_head)
        self._divided("ssm.time_step_rank", n_head, "ssm.group_count", n_group)
        width = inner + 2 * n_group * n_state
        z, xbc, dt = claims.split(f"{lead}ssm_in", n_embd, (inner, width, n_head))
        return BoundMamba2(
            n_head=n_head,
            head=head,
            n_group=n_group,
            n_state=n_state,
            z=z,
            xbc=xbc,
            dt=dt,
            conv=self._conv(f"{lead}ssm_conv1d", (self._taps(), width), bias=True),
            dt_bias=claims.vector(f"{lead}ssm_dt.bias", n_head),
            decay=claims.flat(f"{lead}ssm_a", (1, n_head)),
            skip=claims.flat(f"{lead}ssm_d", (1, n_head)),
            norm=self._norm(f"{lead}ssm_norm", (inner // n_group, n_group)),
            output=claims.linear(f"{lead}ssm_out", inner, n_embd),
        )

    def _lightning(self, lead: str, index: int) -> BoundLightning:
        dims = self._keys.dims
        n_embd, n_head, head, n_layer = dims["n_embd"], dims["n_head"], dims["head_k"], dims["n_layer"]
        if n_layer < 2:
            raise self._keys.error("block_count", n_layer, "2 or more: decays are spread over the layers")
        width = n_head * head
        return BoundLightning(
            n_head=n_head,
            head=head,
            slope=1.0 - index / (n_layer - 1) + 1e-5,
            qkv=self._plain(f"{lead}attn_qkv", n_embd, 3 * width),
            gate=self._plain(f"{lead}attn_gate", n_embd, width),
            norm=self._norm(f"{lead}attn_norm_2", (width,)),
            output=self._plain(f"{lead}attn_output", width, n_embd),
        )
