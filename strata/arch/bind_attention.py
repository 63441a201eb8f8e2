"""Binding of attention: projections, QK norms, rotary numbers, windows, sinks, and the two forms of MLA.

Only `bind` calls this. Errors: BindError for metadata at once; tensor problems are collected in the claims.
"""

from __future__ import annotations

import math

from strata.arch.bind_keys import Keys
from strata.arch.bind_tensors import Claims
from strata.arch.bound import BoundGqa, BoundLinear, BoundMla, BoundNorm, BoundRope, BoundTensor
from strata.arch.spec import Dim, Gqa, Key, Mla, Norm, Rope, Yarn

__all__ = ["AttentionBinder", "bind_norm"]

ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
MIN_ROPE_BASE = 1.001  # pairs would not differ in speed, and YaRN divides by its logarithm
MIN_ROPE_FACTOR = 0.01  # keeps 1 + 0.1 ln(factor), which YaRN divides by, well above zero


def bind_norm(keys: Keys, claims: Claims, norm: Norm, stem: str, width: int) -> BoundNorm:
    """`stem`.weight, and `stem`.bias as the declaration says."""
    return BoundNorm(
        kind=norm.kind,
        eps=keys.real(norm.eps, minimum=0.0),
        gain=claims.vector(f"{stem}.weight", width),
        bias=claims.present_vector(f"{stem}.bias", width, norm.bias),
    )


def _mscale(factor: float, multiplier: float) -> float:
    """YaRN's magnitude for a context stretched by `factor`. Source: YaRN (arXiv 2309.00071) section 3.4."""
    return 1.0 if factor <= 1.0 else 1.0 + 0.1 * multiplier * math.log(factor)


class AttentionBinder:
    """Binds the attention of each layer from one declaration; numbers that all layers share are resolved once."""

    def __init__(self, keys: Keys, claims: Claims, attention: Gqa | Mla, norm: Norm) -> None:
        self._keys, self._claims, self._spec, self._norm = keys, claims, attention, norm
        self._log_multiplier = 0.0
        if isinstance(attention, Gqa):
            self._head_k = keys.dims["head_k"]
            default = Dim("n_embd", over="n_head")
            self._head_v = keys.integer(Key("attention.value_length", default, unset=(0,)), minimum=1)
            self._window_size, self._windowed = self._windows(attention)
            self._check_heads()

    def layer(self, index: int) -> BoundGqa | BoundMla:
        """The attention of one block."""
        spec = self._spec
        return self._gqa(spec, index) if isinstance(spec, Gqa) else self._mla(spec, f"blk.{index}.")

    def _check_heads(self) -> None:
        for n_head, n_head_kv in self._keys.heads:
            if n_head_kv > 0 and (n_head == 0 or n_head % n_head_kv != 0):
                raise self._keys.error("attention.head_count_kv", n_head_kv, f"a divisor of head_count ({n_head})")

    def _windows(self, spec: Gqa) -> tuple[int, list[bool]]:
        if spec.window is None:
            return 0, [False] * self._keys.dims["n_block"]
        size = self._keys.integer(spec.window.size, minimum=1)
        return size, self._keys.window_flags(spec.window.pattern, spec.window.form)

    def _gqa(self, spec: Gqa, index: int) -> BoundGqa:
        keys, claims, lead = self._keys, self._claims, f"blk.{index}."
        n_embd, (n_head, n_head_kv) = keys.dims["n_embd"], keys.heads[index]
        if n_head_kv == 0:
            raise keys.error("attention.head_count_kv", n_head_kv, f"at least 1 in layer {index}, which has attention")
        q, k, v = self._qkv(spec, lead, (n_head, n_head_kv))
        windowed = self._windowed[index]
        q_norm = k_norm = None
        over = spec.qk_norm.over if spec.qk_norm is not None else "head"
        if spec.qk_norm is not None:
            q_norm, k_norm = self._qk_norms(spec, lead, (n_head, n_head_kv))
        return BoundGqa(
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_k=self._head_k,
            head_v=self._head_v,
            scale=keys.real(spec.scale) if spec.scale is not None else 1.0 / math.sqrt(self._head_k),
            q=q,
            k=k,
            v=v,
            output=claims.linear(f"{lead}attn_output", n_head * self._head_v, n_embd, spec.output_bias),
            rope=self._rope(spec.rope, self._head_k, windowed),
            qk_norm_over=over,
            q_norm=q_norm,
            k_norm=k_norm,
            window=self._window_size if windowed else 0,
            sinks=claims.vector(f"{lead}attn_sinks.weight", n_head) if spec.sinks else None,
            clamp=keys.real(spec.clamp, minimum=0.0) if spec.clamp is not None else 0.0,
            softcap=keys.real(spec.softcap, minimum=0.0) if spec.softcap is not None else 0.0,
        )

    def _qk_norms(self, spec: Gqa, lead: str, heads: tuple[int, int]) -> tuple[BoundNorm | None, BoundNorm | None]:
        assert spec.qk_norm is not None
        whole = spec.qk_norm.over == "row"
        norm = Norm(kind="rms", eps=self._norm.eps)
        found: list[BoundNorm | None] = []
        for stem, count in zip(("attn_q_norm", "attn_k_norm"), heads, strict=True):
            if spec.qk_norm.presence == "if-present" and not self._claims.has(f"{lead}{stem}.weight"):
                found.append(None)
                continue
            width = count * self._head_k if whole else self._head_k
            found.append(bind_norm(self._keys, self._claims, norm, f"{lead}{stem}", width))
        return found[0], found[1]

    def _qkv(self, spec: Gqa, lead: str, heads: tuple[int, int]) -> tuple[BoundLinear, BoundLinear, BoundLinear]:
        claims, n_embd = self._claims, self._keys.dims["n_embd"]
        counts = {"q": heads[0] * self._head_k, "k": heads[1] * self._head_k, "v": heads[1] * self._head_v}
        if spec.qkv == "split" or (spec.qkv == "either" and not claims.has(f"{lead}attn_qkv.weight")):
            found = [claims.linear(f"{lead}attn_{x}", n_embd, n, spec.qkv_bias) for x, n in counts.items()]
            return found[0], found[1], found[2]
        total, start = sum(counts.values()), 0
        scale = claims.scale(f"{lead}attn_qkv")
        made: list[BoundLinear] = []
        for x, n in counts.items():
            rows = range(start, start + n)
            bias = self._fused_bias(spec, lead, x, rows, total)
            weight = claims.rows(f"{lead}attn_qkv.weight", n_embd, rows, total)
            made.append(BoundLinear(weight=weight, bias=bias, scale=scale))
            start += n
        return made[0], made[1], made[2]

    def _fused_bias(self, spec: Gqa, lead: str, x: str, rows: range, total: int) -> BoundTensor | None:
        """With fused weights the bias is fused too, or split; the split form needs all three."""
        claims = self._claims
        if spec.qkv_bias == "absent":
            return None
        split = [claims.has(f"{lead}attn_{name}.bias") for name in "qkv"]
        if claims.has(f"{lead}attn_qkv.bias") or (spec.qkv_bias == "required" and not all(split)):
            return claims.vector_rows(f"{lead}attn_qkv.bias", rows, total)
        return claims.vector(f"{lead}attn_{x}.bias", len(rows)) if all(split) else None

    def _mla(self, spec: Mla, lead: str) -> BoundMla:
        keys, claims = self._keys, self._claims
        n_head, n_embd = keys.dims["n_head"], keys.dims["n_embd"]
        kv_rank, q_rank = keys.integer(spec.kv_rank, minimum=1), keys.integer(spec.q_rank)
        k_mla, v_mla, legacy = self._mla_widths(spec)
        rope = self._rope(spec.rope, k_mla, windowed=False)
        nope = k_mla - rope.n_rot
        if nope <= 0:
            raise keys.error(spec.rope.n_rot.name, rope.n_rot, f"less than the head's {k_mla}")
        queries: dict[str, BoundLinear | BoundNorm | None] = {}
        if q_rank > 0:
            queries["q_a"] = claims.linear(f"{lead}attn_q_a", n_embd, q_rank)
            queries["q_a_norm"] = bind_norm(keys, claims, self._norm, f"{lead}attn_q_a_norm", q_rank)
            queries["q_b"] = claims.linear(f"{lead}attn_q_b", q_rank, n_head * k_mla)
        else:
            queries["q"] = claims.linear(f"{lead}attn_q", n_embd, n_head * k_mla)
        if legacy:
            queries["kv_b"] = claims.linear(f"{lead}attn_kv_b", kv_rank, n_head * (nope + v_mla))
        temperature = self._temperature(spec)
        return BoundMla(
            n_head=n_head,
            k_mla=k_mla,
            v_mla=v_mla,
            n_rot=rope.n_rot,
            kv_rank=kv_rank,
            scale=self._mla_scale(spec, rope, k_mla),
            rope=rope,
            kv_a=claims.linear(f"{lead}attn_kv_a_mqa", n_embd, kv_rank + rope.n_rot),
            kv_a_norm=bind_norm(keys, claims, self._norm, f"{lead}attn_kv_a_norm", kv_rank),
            output=claims.linear(f"{lead}attn_output", n_head * v_mla, n_embd),
            k_b=None if legacy else claims.matrix(f"{lead}attn_k_b.weight", nope, kv_rank, n_head),
            v_b=None if legacy else claims.matrix(f"{lead}attn_v_b.weight", kv_rank, v_mla, n_head),
            temperature_scale=temperature[0],
            temperature_length=temperature[1],
            **queries,  # pyright: ignore[reportArgumentType]
        )

    def _mla_widths(self, spec: Mla) -> tuple[int, int, bool]:
        """k_mla, v_mla, and whether the file has the unfactored attn_kv_b."""
        keys = self._keys
        k_mla, v_mla = keys.integer(spec.k_mla), keys.integer(spec.v_mla)
        if k_mla > 0 and v_mla > 0:
            return k_mla, v_mla, False
        if k_mla != v_mla or not spec.legacy_kv_b:
            name = spec.k_mla.name if k_mla == 0 else spec.v_mla.name
            raise keys.error(name, 0, "a width of at least 1")
        n_head, n_head_kv = keys.dims["n_head"], keys.dims["n_head_kv"]
        if n_head_kv != n_head:
            raise keys.error("attention.head_count_kv", n_head_kv, f"head_count ({n_head}) in files with attn_kv_b")
        default = Dim("n_embd", over="n_head")
        widths = [keys.integer(Key(f"attention.{x}_length", default), minimum=1) for x in ("key", "value")]
        return widths[0], widths[1], True

    def _temperature(self, spec: Mla) -> tuple[float, int]:
        if spec.temperature is None:
            return 0.0, 0
        scale = self._keys.real(spec.temperature.scale)
        length = self._keys.integer(spec.temperature.length)
        if scale != 0.0 and length == 0:
            raise self._keys.error(spec.temperature.length.name, 0, "at least 1 when temperature_scale is set")
        return scale, length

    def _mla_scale(self, spec: Mla, rope: BoundRope, k_mla: int) -> float:
        """1 / sqrt(k_mla), times M^2 with YaRN. Source: DeepSeek-V2's modeling code, as llama.cpp applies it."""
        if spec.scale == "head":
            return 1.0 / math.sqrt(k_mla)
        log_factor = math.log(1.0 / rope.freq_scale)
        stretched = rope.magnitude_base * (1.0 + 0.1 * log_factor)
        m = stretched * (1.0 + 0.1 * self._log_multiplier * log_factor)
        return m * m / math.sqrt(k_mla)

    def _rope(self, rope: Rope, head: int, windowed: bool) -> BoundRope:
        keys = self._keys
        n_rot = keys.integer(rope.n_rot, minimum=1)
        if n_rot % 2 != 0 or n_rot > head or (rope.whole_head and n_rot != head):
            rule = f"the head's width, {head}" if rope.whole_head else f"an even number up to the head's {head}"
            raise keys.error(rope.n_rot.name, n_rot, rule)
        scaling = keys.choice(Key("rope.scaling.type", "linear"), ROPE_SCALINGS)
        factor = self._factor() if scaling != "none" else 1.0
        factors, factors_long = self._factors(rope, scaling, n_rot // 2)
        base = keys.real(rope.base, minimum=MIN_ROPE_BASE)
        if windowed and rope.window_base is not None:
            base = self._window_base(rope.window_base, base)
        magnitude, magnitude_base = self._magnitude(rope.yarn, scaling, factor)
        n_ctx = keys.dims["n_ctx"]
        return BoundRope(
            style=rope.style,
            n_rot=n_rot,
            base=base,
            freq_scale=1.0 / factor,
            yarn=scaling == "yarn",
            n_ctx_orig=keys.integer(Key("rope.scaling.original_context_length", n_ctx, unset=(0,)), minimum=1),
            beta_fast=rope.yarn.beta_fast,
            beta_slow=rope.yarn.beta_slow,
            magnitude=magnitude,
            magnitude_base=magnitude_base,
            factors=factors,
            factors_long=factors_long,
        )

    def _window_base(self, key: Key, base: float) -> float:
        if self._keys.real(key) == 0.0:
            return base
        return self._keys.real(key, minimum=MIN_ROPE_BASE)

    def _factor(self) -> float:
        old = self._keys.real(Key("rope.scale_linear", 1.0, unset=(0.0,)), minimum=0.0)
        return self._keys.real(Key("rope.scaling.factor", old, unset=(0.0,)), minimum=MIN_ROPE_FACTOR)

    def _magnitude(self, yarn: Yarn, scaling: str, factor: float) -> tuple[float, float]:
        """Magnitude of cos and sin, and the same before YaRN's own 1 + 0.1 ln(factor) is multiplied in.

        With a log multiplier YaRN leaves the rotation alone; the scores' scale takes it instead (`_mla_scale`).
        """
        keys = self._keys
        extra = keys.real(Key("rope.scaling.attn_factor", 1.0, unset=(0.0,)))
        if yarn.log_multiplier is not None:
            self._log_multiplier = keys.real(yarn.log_multiplier) / yarn.log_divisor
        if scaling != "yarn":
            return extra, extra
        magnitude = extra if self._log_multiplier != 0.0 else extra * _mscale(factor, 1.0)
        return magnitude, magnitude / (1.0 + 0.1 * math.log(factor))

    def _factors(self, rope: Rope, scaling: str, n_pair: int) -> tuple[BoundTensor | None, BoundTensor | None]:
        claims = self._claims
        if scaling == "longrope":
            if not rope.factors:
                raise self._keys.error("rope.scaling.type", scaling, "none, linear, yarn")
            short = claims.vector("rope_factors_short.weight", n_pair)
            return short, claims.vector("rope_factors_long.weight", n_pair)
        if not rope.factors:
            return None, None
        freqs = claims.optional_vector("rope_freqs.weight", n_pair)
        return freqs, freqs
