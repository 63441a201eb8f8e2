"""Binding of attention: projections, QK norms, windows, sinks, gates, and the two forms of MLA.

Only `bind` calls this. Errors: BindError for metadata at once; tensor problems are collected in the claims.
"""

from __future__ import annotations

import math

from strata.arch.bind_indexer import IndexerBinder
from strata.arch.bind_keys import Keys
from strata.arch.bind_rope import RopeBinder
from strata.arch.bind_tensors import Claims
from strata.arch.bound import (
    BoundGate,
    BoundGqa,
    BoundLinear,
    BoundMla,
    BoundNorm,
    BoundRope,
    BoundTemperature,
    BoundTensor,
)
from strata.arch.spec import Dim, Gate, Gqa, Key, Mla, Norm, QkNorm, Temperature, Window

__all__ = ["AttentionBinder", "bind_norm"]


def bind_norm(keys: Keys, claims: Claims, norm: Norm, stem: str, width: int) -> BoundNorm:
    """`stem`.weight, and `stem`.bias as the declaration says."""
    kind, eps = norm.kind, norm.eps
    if norm.or_rms is not None and keys.real(norm.or_rms, minimum=0.0) > 0.0:
        kind, eps = "rms", norm.or_rms
    return BoundNorm(
        kind=kind,
        eps=keys.real(eps, minimum=0.0),
        gain=claims.vector(f"{stem}.weight", width),
        bias=claims.present_vector(f"{stem}.bias", width, norm.bias),
    )


class AttentionBinder:
    """Binds the attention of each layer from one declaration; numbers that all layers share are resolved once.

    dense: by block, whether its FFN is dense.
    """

    def __init__(self, keys: Keys, claims: Claims, attention: Gqa | Mla, norm: Norm, dense: list[bool]) -> None:
        self._keys, self._claims, self._spec, self._norm = keys, claims, attention, norm
        self._window_size, self._windowed = 0, [False] * keys.dims["n_block"]
        window = attention.window if isinstance(attention, Gqa) else attention.windowed and attention.windowed.window
        if window is not None:
            self._window_size, self._windowed = self._windows(window)
        if isinstance(attention, Gqa):
            self._widths = self._head_widths(attention.window)
            self._check_heads()
            self._n_own = keys.dims["n_layer"]
            if attention.shared_layers is not None:
                self._n_own -= keys.integer(attention.shared_layers, maximum=self._n_own - 1)
        self._rope = RopeBinder(keys, claims, attention.rope, self._windowed, dense)
        self._indexer = None
        spec = attention.indexer if isinstance(attention, Mla) else None
        if spec is not None and not (spec.optional and keys.integer(spec.top_k) == 0):
            self._indexer = IndexerBinder(keys, claims, spec)

    def layer(self, index: int) -> BoundGqa | BoundMla:
        """The attention of one block."""
        spec = self._spec
        return self._gqa(spec, index) if isinstance(spec, Gqa) else self._mla(spec, index)

    def _check_heads(self) -> None:
        for n_head, n_head_kv in self._keys.heads:
            if n_head_kv > 0 and (n_head == 0 or n_head % n_head_kv != 0):
                raise self._keys.error("attention.head_count_kv", n_head_kv, f"a divisor of head_count ({n_head})")

    def _windows(self, window: Window) -> tuple[int, list[bool]]:
        keys = self._keys
        size = keys.integer(window.size, minimum=0 if window.optional else 1)
        if size == 0:
            return 0, [False] * keys.dims["n_block"]
        return window.constant or size, keys.window_flags(window.pattern, window.form)

    def _head_widths(self, window: Window | None) -> list[tuple[int, int]]:
        """head_k and head_v of each block."""
        keys = self._keys
        default = Dim("n_embd", over="n_head")
        full = keys.dims["head_k"], keys.integer(Key("attention.value_length", default, unset=(0,)), minimum=1)
        if window is None or window.head_k is None or window.head_v is None:
            return [full] * keys.dims["n_block"]
        narrow = keys.integer(window.head_k, minimum=1), keys.integer(window.head_v, minimum=1)
        return [narrow if windowed else full for windowed in self._windowed]

    def _gqa(self, spec: Gqa, index: int) -> BoundGqa:
        keys, claims, lead = self._keys, self._claims, f"blk.{index}."
        n_embd, (n_head, n_head_kv), (head_k, head_v) = keys.dims["n_embd"], keys.heads[index], self._widths[index]
        if n_head_kv == 0:
            raise keys.error("attention.head_count_kv", n_head_kv, f"at least 1 in layer {index}, which has attention")
        q, k, v = self._qkv(spec, index)
        if spec.query_gate and head_v != head_k:
            raise keys.error("attention.value_length", head_v, f"key_length ({head_k}), where queries bring gates")
        windowed, rotates = self._windowed[index], self._rope.rotates(index)
        q_norm, k_norm = self._qk_norms(spec.qk_norm, index, rotates)
        eps = keys.real(self._norm.eps, minimum=0.0)
        sinks = claims.present_vector(f"{lead}attn_sinks.weight", n_head, spec.sinks)
        return BoundGqa(
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_k=head_k,
            head_v=head_v,
            scale=self._score_scale(spec, head_k),
            q=q,
            k=k,
            v=v,
            output=claims.linear(f"{lead}attn_output", n_head * head_v, n_embd, spec.output_bias),
            rope=self._rope.layer(index, head_k) if rotates else None,
            qk_norm_over="head" if spec.qk_norm is None else spec.qk_norm.over,
            qk_norm_after_rope=spec.qk_norm is not None and spec.qk_norm.after_rope,
            q_norm=q_norm,
            k_norm=k_norm,
            window=self._window_size if windowed else 0,
            chunked=windowed and spec.window is not None and spec.window.kind == "chunked",
            causal=keys.flag(spec.causal) if isinstance(spec.causal, Key) else spec.causal,
            sinks=sinks,
            clamp=keys.real(spec.clamp, minimum=0.0) if spec.clamp is not None else 0.0,
            softcap=keys.real(spec.softcap, minimum=0.0) if spec.softcap is not None else 0.0,
            temperature=self._temperature(spec.temperature, rotates),
            gate=self._gate(spec.gate, index, n_head, head_v),
            query_gate=spec.query_gate,
            output_scale=keys.real(spec.output_scale) if spec.output_scale is not None else 1.0,
            v_norm=BoundNorm(kind="rms", eps=eps, gain=None) if spec.value_norm and k is not None else None,
            cache_of=self._cache_of(index) if k is None else -1,
        )

    def _cache_of(self, index: int) -> int:
        """The layer whose keys and values one without any reads."""
        windowed = self._windowed[index]
        source = self._n_own - (2 if windowed else 1)
        if source < 0 or self._windowed[source] != windowed or self._widths[source] != self._widths[index]:
            raise self._keys.error(
                "attention.shared_kv_layers",
                self._keys.dims["n_layer"] - self._n_own,
                f"a number that leaves layer {index} a like layer to share with",
            )
        return source

    def _score_scale(self, spec: Gqa, head_k: int) -> float:
        stated = self._keys.real(spec.scale) if isinstance(spec.scale, Key) else spec.scale or 0.0
        return stated or 1.0 / math.sqrt(head_k)

    def _gate(self, gate: Gate | None, index: int, n_head: int, head_v: int) -> BoundGate | None:
        keys, claims, stem = self._keys, self._claims, f"blk.{index}.attn_gate"
        if gate is None or (gate.presence == "if-present" and not claims.has(f"{stem}.weight")):
            return None
        by_head = gate.width == "head" or (gate.width == "either" and claims.n_rows(f"{stem}.weight") == n_head)
        return BoundGate(
            linear=claims.linear(stem, keys.dims["n_embd"], n_head if by_head else n_head * head_v),
            act=gate.act,
            by_head=by_head,
        )

    def _qk_norms(self, spec: QkNorm | None, index: int, rotates: bool) -> tuple[BoundNorm | None, BoundNorm | None]:
        keys, heads, head_k = self._keys, self._keys.heads[index], self._widths[index][0]
        if spec is None or keys.dims["n_expert"] in spec.unless_n_expert or (spec.rotated_only and not rotates):
            return None, None
        norm = Norm(kind="rms", eps=self._norm.eps)
        found: list[BoundNorm | None] = []
        for x, count in zip("qk", heads, strict=True):
            stem = f"blk.{index}.attn_{x}_norm"
            if x == "k" and index >= self._n_own:
                found.append(None)
            elif not spec.gain:
                found.append(BoundNorm(kind="rms", eps=keys.real(norm.eps, minimum=0.0), gain=None))
            elif spec.presence == "if-present" and not self._claims.has(f"{stem}.weight"):
                found.append(None)
            else:
                width = count * head_k if spec.over == "row" else head_k
                found.append(bind_norm(keys, self._claims, norm, stem, width))
        return found[0], found[1]

    def _qkv(self, spec: Gqa, index: int) -> tuple[BoundLinear, BoundLinear | None, BoundLinear | None]:
        claims, n_embd, lead = self._claims, self._keys.dims["n_embd"], f"blk.{index}."
        heads, (head_k, head_v) = self._keys.heads[index], self._widths[index]
        counts = {
            "q": heads[0] * head_k * (2 if spec.query_gate else 1),
            "k": heads[1] * head_k,
            "v": heads[1] * head_v,
        }
        if spec.qkv == "split" or (spec.qkv == "either" and not claims.has(f"{lead}attn_qkv.weight")):
            if index >= self._n_own:
                return claims.linear(f"{lead}attn_q", n_embd, counts["q"], spec.qkv_bias), None, None
            q, k, v = (
                None
                if x == "v" and spec.values_from_keys and not claims.has(f"{lead}attn_v.weight")
                else claims.linear(f"{lead}attn_{x}", n_embd, n, spec.qkv_bias)
                for x, n in counts.items()
            )
            assert q is not None
            return q, k, v
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

    def _mla(self, spec: Mla, index: int) -> BoundMla:
        keys, claims, lead = self._keys, self._claims, f"blk.{index}."
        n_embd, q_rank = keys.dims["n_embd"], 0 if spec.q_rank is None else keys.integer(spec.q_rank)
        if spec.q_rank_by_norm and not claims.has(f"{lead}attn_q_a_norm.weight"):
            q_rank = 0
        n_head = self._mla_heads(spec, index)
        kv_rank, k_mla, v_mla, legacy = self._mla_widths(spec, index)
        rope = self._rope.layer(index, k_mla)
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
        indexer, choice_of = None, -1
        if self._indexer is not None and not self._windowed[index]:
            if q_rank == 0 or legacy:
                raise keys.error("attention.q_lora_rank", q_rank, "at least 1: the indexer reads the query latent")
            indexer, choice_of = self._indexer.layer(index, rope, q_rank)
        return BoundMla(
            n_head=n_head,
            k_mla=k_mla,
            v_mla=v_mla,
            n_rot=rope.n_rot,
            kv_rank=kv_rank,
            scale=self._mla_scale(spec, rope, k_mla),
            rope=rope if self._rope.rotates(index) else None,
            kv_a=claims.linear(f"{lead}attn_kv_a_mqa", n_embd, kv_rank + rope.n_rot),
            kv_a_norm=bind_norm(keys, claims, self._norm, f"{lead}attn_kv_a_norm", kv_rank),
            output=claims.linear(f"{lead}attn_output", n_head * v_mla, n_embd),
            k_b=None if legacy else claims.matrix(f"{lead}attn_k_b.weight", nope, kv_rank, n_head),
            v_b=None if legacy else claims.matrix(f"{lead}attn_v_b.weight", kv_rank, v_mla, n_head),
            temperature=self._temperature(spec.temperature, rotates=True),
            gate=self._gate(spec.gate, index, n_head, v_mla),
            sinks=claims.present_vector(f"{lead}attn_sinks.weight", n_head, spec.sinks),
            indexer=indexer,
            choice_of=choice_of,
            window=self._window_size if self._windowed[index] else 0,
            chunked=spec.windowed is not None and spec.windowed.window.kind == "chunked",
            k_norm=bind_norm(keys, claims, self._norm, f"{lead}attn_k_norm", rope.n_rot) if spec.key_norm else None,
            **queries,  # pyright: ignore[reportArgumentType]
        )

    def _mla_heads(self, spec: Mla, index: int) -> int:
        n_head = self._keys.heads[index][0] if spec.heads_by_layer else self._keys.dims["n_head"]
        if n_head == 0:
            raise self._keys.error("attention.head_count", n_head, f"at least 1 in layer {index}, which has attention")
        return n_head

    def _mla_widths(self, spec: Mla, index: int) -> tuple[int, int, int, bool]:
        """kv_rank, k_mla and v_mla of a layer, and whether the file has the unfactored attn_kv_b."""
        keys, own = self._keys, spec.windowed
        if own is not None and self._windowed[index]:
            kv_rank, k_mla, v_mla = (keys.integer(key, minimum=1) for key in (own.kv_rank, own.k_mla, own.v_mla))
            return kv_rank, k_mla, v_mla, False
        kv_rank = keys.integer(spec.kv_rank, minimum=1)
        k_mla, v_mla = keys.integer(spec.k_mla), keys.integer(spec.v_mla)
        if k_mla > 0 and v_mla > 0:
            return kv_rank, k_mla, v_mla, False
        if k_mla != v_mla or not spec.legacy_kv_b:
            name = spec.k_mla.name if k_mla == 0 else spec.v_mla.name
            raise keys.error(name, 0, "a width of at least 1")
        n_head, n_head_kv = keys.dims["n_head"], keys.dims["n_head_kv"]
        if n_head_kv != n_head:
            raise keys.error("attention.head_count_kv", n_head_kv, f"head_count ({n_head}) in files with attn_kv_b")
        default = Dim("n_embd", over="n_head")
        widths = [keys.integer(Key(f"attention.{x}_length", default), minimum=1) for x in ("key", "value")]
        return kv_rank, widths[0], widths[1], True

    def _temperature(self, spec: Temperature | None, rotates: bool) -> BoundTemperature | None:
        if spec is None or (spec.layers == "unrotated" and rotates):
            return None
        scale = self._keys.real(spec.scale) if isinstance(spec.scale, Key) else spec.scale
        length = self._keys.integer(spec.length) if isinstance(spec.length, Key) else spec.length
        if scale == 0.0:
            return None
        if length == 0 and isinstance(spec.length, Key):
            raise self._keys.error(spec.length.name, 0, "at least 1 when temperature_scale is set")
        return BoundTemperature(scale=scale, length=length, offset=spec.offset)

    def _mla_scale(self, spec: Mla, rope: BoundRope, k_mla: int) -> float:
        """1 / sqrt(k_mla), times M^2 with YaRN. Source: DeepSeek-V2's modeling code, as llama.cpp applies it."""
        if spec.scale == "head":
            return 1.0 / math.sqrt(k_mla)
        log_factor = math.log(1.0 / rope.freq_scale)
        stretched = rope.magnitude_base * (1.0 + 0.1 * log_factor)
        m = stretched * (1.0 + 0.1 * self._rope.log_multiplier * log_factor)
        return m * m / math.sqrt(k_mla)
