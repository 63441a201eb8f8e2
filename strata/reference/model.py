"""A whole forward pass from the bound architecture: the slow, obvious second implementation of every model.

It shares no code with the planner. MLA is computed in its plain form, with keys and values per head, where the plan
takes the absorbed one; all arithmetic is float64 on the file's dequantised weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from strata.arch.bind import bind
from strata.arch.bound import (
    BoundArch,
    BoundFfn,
    BoundGqa,
    BoundLinear,
    BoundMixer,
    BoundMla,
    BoundMoe,
    BoundNorm,
    BoundRope,
    BoundTensor,
)
from strata.arch.registry import Registry
from strata.arch.spec import Arch
from strata.gguf.reader import read_gguf
from strata.reference import ops
from strata.reference.mixers import Mixers
from strata.reference.ops import Array
from strata.reference.router import Rule, route
from strata.reference.weights import FileWeights

__all__ = ["Reference", "logits"]


def logits(path: str | Path, tokens: Sequence[int], *, arch: Arch | None = None, n_ctx: int | None = None) -> Array:
    """Logits of one prompt, float64 [n_tokens, n_vocab]. arch: default the installed one of the file's name."""
    file = read_gguf(path)
    if arch is None:
        arch = Registry().of_file(file)
    bound = bind(arch, file)
    return Reference(bound, FileWeights(bound.paths), n_ctx).logits(tokens)


class Reference:
    """One model. `routing` collects (layer, ids) of the latest prompt's tokens, in router order."""

    def __init__(self, bound: BoundArch, weights: FileWeights, n_ctx: int | None = None) -> None:
        self.bound, self._weights = bound, weights
        self._mixers = Mixers(weights, self._linear)
        self.routing: list[tuple[int, list[int]]] = []
        self._n_ctx = bound.n_ctx_train if n_ctx is None else n_ctx

    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits of every token of a prompt that starts at position 0."""
        bound = self.bound
        self.routing = []
        positions = np.arange(len(tokens))
        x = self._weights.bound(bound.embedding)[0][list(tokens)] * bound.embedding_scale
        for layer in bound.layers:
            h = self._norm(x, layer.attention_norm)
            a = self._mixed(h, layer.attention, positions)
            a = a if layer.post_attention_norm is None else self._norm(a, layer.post_attention_norm)
            if not bound.parallel_residual:
                x = x + a
            if layer.ffn_norm is not None:
                h = self._norm(x, layer.ffn_norm)
            f = self._dense(h, layer.ffn) if isinstance(layer.ffn, BoundFfn) else self._moe(h, layer.ffn, layer.index)
            f = f if layer.post_ffn_norm is None else self._norm(f, layer.post_ffn_norm)
            x = x + a + f if bound.parallel_residual else x + f
        rows = self._linear(self._norm(x, bound.output_norm), bound.head) * bound.head_scale
        return rows if bound.softcap == 0.0 else bound.softcap * np.tanh(rows / bound.softcap)

    def _mixed(self, h: Array, mixer: BoundGqa | BoundMla | BoundMixer, positions: np.ndarray) -> Array:
        if isinstance(mixer, BoundGqa):
            return self._gqa(h, mixer, positions)
        return self._mla(h, mixer, positions) if isinstance(mixer, BoundMla) else self._mixers.run(h, mixer)

    def _vector(self, tensor: BoundTensor | None) -> Array | None:
        return None if tensor is None else self._weights.bound(tensor)[0][0]

    def _matrix(self, tensor: BoundTensor) -> Array:
        return self._weights.bound(tensor)[0]

    def _norm(self, x: Array, norm: BoundNorm) -> Array:
        function = ops.rms_norm if norm.kind == "rms" else ops.layer_norm
        return function(x, norm.eps, self._vector(norm.gain), self._vector(norm.bias))

    def _linear(self, x: Array, linear: BoundLinear) -> Array:
        scale = self._vector(linear.scale)
        factor = 1.0 if scale is None else float(scale[0])
        return ops.linear(x, self._matrix(linear.weight), self._vector(linear.bias), factor)

    def _rotate(self, x: Array, rope: BoundRope, positions: np.ndarray) -> Array:
        """Rotate vectors [n_tokens, n_head, n_rot]."""
        base = rope.base ** (-2.0 * np.arange(rope.n_rot // 2) / rope.n_rot)
        factors = self._vector(rope.factors_long if self._n_ctx > rope.n_ctx_orig else rope.factors)
        base = base if factors is None else base / factors
        full = positions[:, None] * base[None, :]
        angles = full * rope.freq_scale
        if rope.yarn:
            angles = _yarn_blend(full, angles, rope)
        return ops.rotate(x, angles, rope.style, rope.magnitude)

    def _gqa(self, h: Array, a: BoundGqa, positions: np.ndarray) -> Array:
        n = len(h)
        q, k, v = self._linear(h, a.q), self._linear(h, a.k), self._linear(h, a.v)
        if a.clamp > 0.0:
            q, k, v = (np.clip(x, -a.clamp, a.clamp) for x in (q, k, v))
        if a.qk_norm_over == "row":
            q = q if a.q_norm is None else self._norm(q, a.q_norm)
            k = k if a.k_norm is None else self._norm(k, a.k_norm)
        q, k = q.reshape(n, a.n_head, a.head_k), k.reshape(n, a.n_head_kv, a.head_k)
        if a.qk_norm_over == "head":
            q = q if a.q_norm is None else self._norm(q, a.q_norm)
            k = k if a.k_norm is None else self._norm(k, a.k_norm)
        n_rot = a.rope.n_rot
        q, k = (np.concatenate([self._rotate(x[..., :n_rot], a.rope, positions), x[..., n_rot:]], -1) for x in (q, k))
        out = ops.attention(
            q,
            k,
            v.reshape(n, a.n_head_kv, a.head_v),
            ops.Score(a.scale, a.softcap),
            ops.hidden_keys(positions, n, a.window),
            self._vector(a.sinks),
        )
        return self._linear(out.reshape(n, -1), a.output)

    def _mla(self, h: Array, a: BoundMla, positions: np.ndarray) -> Array:
        """Plain multi-head form: keys [nope | shared rotated part] and values per head from the latent."""
        n, nope = len(h), a.k_mla - a.n_rot
        if a.q is not None:
            q = self._linear(h, a.q)
        else:
            assert a.q_a is not None
            assert a.q_a_norm is not None
            assert a.q_b is not None
            q = self._linear(self._norm(self._linear(h, a.q_a), a.q_a_norm), a.q_b)
        q = q.reshape(n, a.n_head, a.k_mla)
        row = self._linear(h, a.kv_a)
        latent = self._norm(row[:, : a.kv_rank], a.kv_a_norm)
        k_shared = self._rotate(row[:, None, a.kv_rank :], a.rope, positions)
        q = np.concatenate([q[..., :nope], self._rotate(q[..., nope:], a.rope, positions)], -1)
        if a.temperature_scale != 0.0:
            q = q * ops.temperature(positions, a.temperature_scale, a.temperature_length)[:, None, None]
        k_nope, v = self._keys_values(latent, a)
        k = np.concatenate([k_nope, np.repeat(k_shared, a.n_head, axis=1)], -1)
        out = ops.attention(q, k, v, ops.Score(a.scale), ops.hidden_keys(positions, n), None)
        return self._linear(out.reshape(n, -1), a.output)

    def _keys_values(self, latent: Array, a: BoundMla) -> tuple[Array, Array]:
        """Keys without rotation [n, n_head, nope] and values [n, n_head, v_mla]."""
        nope = a.k_mla - a.n_rot
        if a.kv_b is not None:
            both = self._linear(latent, a.kv_b).reshape(len(latent), a.n_head, nope + a.v_mla)
            return both[..., :nope], both[..., nope:]
        assert a.k_b is not None
        assert a.v_b is not None
        # attn_k_b maps a query into the latent space, so its transpose maps the latent to a key
        keys = np.einsum("nr,hrd->nhd", latent, self._weights.bound(a.k_b))
        return keys, np.einsum("nr,hvr->nhv", latent, self._weights.bound(a.v_b))

    def _dense(self, h: Array, ffn: BoundFfn) -> Array:
        hidden = ops.glu(ffn.act, self._linear(h, ffn.gate), self._linear(h, ffn.up))
        return self._linear(hidden, ffn.down)

    def _moe(self, h: Array, moe: BoundMoe, layer: int) -> Array:
        router = moe.router
        scores = self._linear(h, router.logits)
        rule = Rule(
            scores=router.scores,
            n_used=router.n_used,
            n_group=router.n_group,
            n_group_used=router.n_group_used,
            normalize=router.normalize,
            scale=router.scale,
        )
        out = np.zeros_like(h)
        for t in range(len(h)):
            ids, weights = route(scores[t], rule, self._vector(router.select_bias))
            self.routing.append((layer, ids))
            out[t] = sum(w * self._expert(h[t], moe, e) for e, w in zip(ids, weights, strict=True))
        if moe.shared is None:
            return out
        gate = 1.0 if moe.shared_gate is None else ops.sigmoid(self._linear(h, moe.shared_gate))
        return out + gate * self._dense(h, moe.shared)

    def _expert(self, x: Array, moe: BoundMoe, e: int) -> Array:
        experts = moe.experts

        def product(y: Array, part: str) -> Array | None:
            weight, bias, scale = (getattr(experts, part + suffix) for suffix in ("", "_bias", "_scale"))
            if weight is None:
                return None
            factor = 1.0 if scale is None else float(self._weights.bound(scale)[e, 0, 0])
            offset = None if bias is None else self._weights.bound(bias)[e, 0]
            return ops.linear(y, self._weights.bound(weight)[e], offset, factor)

        up = product(x, "up")
        assert up is not None
        down = product(ops.glu(experts.act, product(x, "gate"), up), "down")
        assert down is not None
        return down


def _yarn_blend(full: Array, slowed: Array, rope: BoundRope) -> Array:
    """Between the full and the slowed angle by how often a pair turns over the original context.

    Source: YaRN (arXiv 2309.00071) section 3.2, with the range rounded outwards to whole pairs.
    """

    def pair(turns: float) -> float:
        return rope.n_rot * math.log(rope.n_ctx_orig / (2 * math.pi * turns)) / (2 * math.log(rope.base))

    low = max(math.floor(pair(rope.beta_fast)), 0)
    high = min(math.ceil(pair(rope.beta_slow)), rope.n_rot - 1)
    slow_share = np.clip((np.arange(rope.n_rot // 2) - low) / max(high - low, 1e-3), 0, 1)
    return slowed * slow_share + full * (1 - slow_share)
