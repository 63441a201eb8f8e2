"""A whole forward pass from the bound architecture: the slow, obvious second implementation of every model.

It shares no code with the planner. MLA is computed in its plain form, with keys and values per head, where the plan
takes the absorbed one; all arithmetic is float64 on the file's dequantised weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strata.arch.bind import bind
from strata.arch.bound import (
    BoundArch,
    BoundChunks,
    BoundExperts,
    BoundFfn,
    BoundGate,
    BoundGqa,
    BoundIndexer,
    BoundLayer,
    BoundLinear,
    BoundMixer,
    BoundMla,
    BoundMoe,
    BoundStreamGates,
    BoundTemperature,
    BoundTensor,
)
from strata.arch.registry import Registry
from strata.arch.spec import Arch
from strata.gguf.reader import read_gguf
from strata.reference import ops
from strata.reference.mixers import Mixers
from strata.reference.model_base import ModelBase
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


class Reference(ModelBase):
    """One model. `routing` collects (layer, ids) of the latest prompt's tokens, in router order."""

    def __init__(self, bound: BoundArch, weights: FileWeights, n_ctx: int | None = None) -> None:
        super().__init__(bound, weights, n_ctx)
        self._mixers = Mixers(weights, self._linear)
        self.routing: list[tuple[int, list[int]]] = []
        self._cache: dict[int, tuple[Array, Array]] = {}
        self._left_out = np.zeros((0, 0), np.bool_)

    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits of every token of a prompt that starts at position 0."""
        bound = self.bound
        self.routing = []
        positions = np.arange(len(tokens))
        x = self._weights.bound(bound.embedding)[0][list(tokens)] * bound.embedding_scale
        inputs = self._token_inputs(x, tokens)
        streams = None if bound.streams is None else np.repeat(x[:, None], bound.streams.count, axis=1)
        kept: list[Array] = []
        for layer in bound.layers:
            if bound.checkpoints is not None:
                x = self._checkpoint_layer(x, kept, layer, positions)
                continue
            if streams is not None:
                streams = self._streams_layer(streams, layer, positions)
                continue
            start, h = x, self._norm(x, layer.attention_norm)
            if layer.attention is None or layer.ffn is None:
                mixed = None if layer.attention is None else self._mixed(h, layer.attention, positions, layer.index)
                x = x + (self._ffn(h, start, x, layer) if mixed is None else mixed)
                continue
            a = self._mixed(h, layer.attention, positions, layer.index)
            a = a if layer.post_attention_norm is None else self._norm(a, layer.post_attention_norm)
            if bound.normed_residual:
                x = self._normed(a, h, layer)
                continue
            a = a * bound.residual_scale
            if not bound.parallel_residual:
                x = x + a
            if layer.ffn_norm is not None:
                h = self._norm(x, layer.ffn_norm)
            f = self._ffn(h, start, x, layer)
            f = f if layer.post_ffn_norm is None else self._norm(f, layer.post_ffn_norm)
            f = f * bound.residual_scale
            x = x + a + f if bound.parallel_residual else x + f
            x = x if layer.token_input is None else x + self._token_input(x, layer, inputs)
            x = x if layer.output_scale is None else x * float(self._weights.bound(layer.output_scale)[0, 0, 0])
        if streams is not None:
            assert bound.streams is not None
            x = self._read_streams(streams, bound.streams.head)
        if bound.checkpoints is not None:
            x = self._mixed_residual(x, kept, bound.checkpoints.head)
        rows = self._linear(self._norm(x, bound.output_norm), bound.head, bound.head_scale)
        return rows if bound.softcap == 0.0 else bound.softcap * np.tanh(rows / bound.softcap)

    def _checkpoint_layer(self, p: Array, kept: list[Array], layer: BoundLayer, positions: np.ndarray) -> Array:
        """One layer of a residual p that is kept now and then; `kept` grows."""
        assert self.bound.checkpoints is not None
        assert layer.attention is not None
        assert layer.ffn_norm is not None
        x, keeps = self._mixed_residual(p, kept, layer.attention_mix), layer.index % self.bound.checkpoints.every == 0
        if keeps:
            kept.append(p)
        a = self._mixed(self._norm(x, layer.attention_norm), layer.attention, positions, layer.index)
        p = a if keeps else p + a
        x = self._mixed_residual(p, kept, layer.ffn_mix)
        return p + self._ffn(self._norm(x, layer.ffn_norm), x, x, layer)

    def _mixed_residual(self, p: Array, kept: list[Array], weights: BoundTensor | None) -> Array:
        if not kept:
            return p
        assert self.bound.checkpoints is not None
        return ops.mix(np.stack([*kept, p], 1), self._vector(weights), self.bound.checkpoints.eps)

    def _streams_layer(self, streams: Array, layer: BoundLayer, positions: np.ndarray) -> Array:
        """One layer of a residual of several streams [n_tokens, count, n_embd]."""
        mixer, ffn_norm = layer.attention, layer.ffn_norm
        assert mixer is not None
        assert ffn_norm is not None

        def attention(x: Array) -> Array:
            return self._mixed(self._norm(x, layer.attention_norm), mixer, positions, layer.index)

        def ffn(x: Array) -> Array:
            return self._ffn(self._norm(x, ffn_norm), x, x, layer)

        streams = self._sublayer(streams, layer.attention_gates, attention)
        return self._sublayer(streams, layer.ffn_gates, ffn)

    def _sublayer(self, streams: Array, gates: BoundStreamGates | None, run: Callable[[Array], Array]) -> Array:
        """The streams behind a sublayer; its gates are those of the streams before it."""
        assert gates is not None
        assert self.bound.streams is not None
        factors = self.bound.streams.magnitude * self._stream_factors(streams, gates.write) + self.bound.streams.eps
        return streams + factors * run(self._read_streams(streams, gates.read))[:, None]

    def _stream_factors(self, streams: Array, logits: BoundLinear) -> Array:
        """Sigmoids of a projection of all streams, [n_tokens, count, 1]."""
        assert self.bound.streams is not None
        flat = self._norm(streams.reshape(len(streams), -1), self.bound.streams.norm)
        return ops.sigmoid(self._linear(flat, logits))[:, :, None]

    def _read_streams(self, streams: Array, logits: BoundLinear) -> Array:
        assert self.bound.streams is not None
        return ((self._stream_factors(streams, logits) + self.bound.streams.eps) * streams).sum(1)

    def _normed(self, a: Array, h: Array, layer: BoundLayer) -> Array:
        """The rest of a layer whose sublayers add to their normed inputs."""
        assert layer.ffn_norm is not None
        stream = a + self.bound.residual_scale * h
        m = self._norm(stream, layer.ffn_norm)
        return self._ffn(m, stream, stream, layer) + self.bound.residual_scale * m

    def _token_inputs(self, x: Array, tokens: Sequence[int]) -> Array:
        """The layers' own vectors of the embedded tokens x, [n_tokens, n_layer, width]."""
        parts = self.bound.token_inputs
        if parts is None:
            return np.empty((len(tokens), 0, 0))
        shape = len(tokens), self.bound.n_layer, parts.width
        projected = self._linear(x, parts.projection).reshape(shape) / math.sqrt(self.bound.n_embd)
        own = self._weights.bound(parts.embedding)[0][list(tokens)].reshape(shape) * math.sqrt(parts.width)
        return (self._norm(projected, parts.norm) + own) / math.sqrt(2.0)

    def _token_input(self, y: Array, layer: BoundLayer, inputs: Array) -> Array:
        part = layer.token_input
        assert part is not None
        hidden = ops.glu("gelu", self._linear(y, part.gate), inputs[:, layer.index])
        return self._norm(self._linear(hidden, part.output), part.norm)

    def _mixed(self, h: Array, mixer: BoundGqa | BoundMla | BoundMixer, positions: np.ndarray, index: int) -> Array:
        if isinstance(mixer, BoundGqa):
            return self._gqa(h, mixer, positions, index)
        return self._mla(h, mixer, positions) if isinstance(mixer, BoundMla) else self._mixers.run(h, mixer)

    def _gqa(self, h: Array, a: BoundGqa, positions: np.ndarray, index: int) -> Array:
        n = len(h)
        q = self._linear(h, a.q)
        k = np.zeros((n, a.n_head_kv * a.head_k)) if a.k is None else self._linear(h, a.k)
        v = k if a.v is None else self._linear(h, a.v)
        query_gate = None
        if a.query_gate:
            q, query_gate = q.reshape(n, a.n_head, 2, a.head_k).transpose(2, 0, 1, 3)
            q = q.reshape(n, -1)
        if a.clamp > 0.0:
            q, k, v = (np.clip(x, -a.clamp, a.clamp) for x in (q, k, v))
        if a.qk_norm_over == "row":
            q, k = self._qk_normed(q, k, a)
        q, k = q.reshape(n, a.n_head, a.head_k), k.reshape(n, a.n_head_kv, a.head_k)
        if a.qk_norm_over == "head" and not a.qk_norm_after_rope:
            q, k = self._qk_normed(q, k, a)
        if a.rope is not None:
            rope, n_rot = a.rope, a.rope.n_rot
            q, k = (np.concatenate([self._rotate(x[..., :n_rot], rope, positions), x[..., n_rot:]], -1) for x in (q, k))
        if a.qk_norm_after_rope:
            q, k = self._qk_normed(q, k, a)
        v = v.reshape(n, a.n_head_kv, a.head_v)
        v = v if a.v_norm is None else self._norm(v, a.v_norm)
        self._cache[index] = self._cache[a.cache_of] if a.k is None else (k, v)
        out = ops.attention(
            _warmed(q, a.temperature, positions),
            *self._cache[index],
            ops.Score(a.scale, a.softcap),
            ops.hidden_keys(positions, n, ops.Mask(a.window, a.chunked, a.causal)),
            self._vector(a.sinks),
        )
        if query_gate is not None:
            out = out * ops.sigmoid(query_gate)
        return self._linear(self._gated(out, h, a.gate).reshape(n, -1), a.output) * a.output_scale

    def _gated(self, heads: Array, h: Array, gate: BoundGate | None) -> Array:
        """The heads' results [n_tokens, n_head, head_v] behind the gate of the normed input h."""
        if gate is None:
            return heads
        act = {"sigmoid": ops.sigmoid, "softplus": ops.softplus}[gate.act]
        return heads * act(self._linear(h, gate.linear)).reshape(len(h), heads.shape[1], -1)

    def _qk_normed(self, q: Array, k: Array, a: BoundGqa) -> tuple[Array, Array]:
        q = q if a.q_norm is None else self._norm(q, a.q_norm)
        return q, k if a.k_norm is None else self._norm(k, a.k_norm)

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
        k_shared = row[:, None, a.kv_rank :]
        k_shared = k_shared if a.k_norm is None else self._norm(k_shared, a.k_norm)
        if a.rope is not None:
            k_shared = self._rotate(k_shared, a.rope, positions)
            q = np.concatenate([q[..., :nope], self._rotate(q[..., nope:], a.rope, positions)], -1)
        q = _warmed(q, a.temperature, positions)
        k_nope, v = self._keys_values(latent, a)
        k = np.concatenate([k_nope, np.repeat(k_shared, a.n_head, axis=1)], -1)
        hidden = ops.hidden_keys(positions, n, ops.Mask(a.window, a.chunked))
        if a.indexer is not None:
            self._left_out = self._unchosen(h, a, a.indexer, positions)
        out = ops.attention(
            q, k, v, ops.Score(a.scale), hidden if a.choice_of < 0 else hidden | self._left_out, self._vector(a.sinks)
        )
        return self._linear(self._gated(out, h, a.gate).reshape(n, -1), a.output)

    def _unchosen(self, h: Array, a: BoundMla, indexer: BoundIndexer, positions: np.ndarray) -> NDArray[np.bool_]:
        assert a.q_a is not None
        assert a.q_a_norm is not None
        n, first, end = len(h), indexer.rotated_first, indexer.rotated_first + indexer.rope.n_rot
        q = self._linear(self._norm(self._linear(h, a.q_a), a.q_a_norm), indexer.q).reshape(n, indexer.n_head, -1)
        k = self._norm(self._linear(h, indexer.k), indexer.k_norm)[:, None]
        q, k = (
            np.concatenate([x[..., :first], self._rotate(x[..., first:end], indexer.rope, positions), x[..., end:]], -1)
            for x in (q, k)
        )
        return ops.unchosen_keys(q, k[:, 0], self._linear(h, indexer.weights), positions, indexer.top_k)

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
        hidden = ops.glu(
            ffn.act,
            None if ffn.gate is None else self._linear(h, ffn.gate),
            self._linear(h, ffn.up),
            ffn.limit,
            ffn.limit_up,
        )
        return self._linear(hidden, ffn.down)

    def _ffn(self, h: Array, start: Array, x: Array, layer: BoundLayer) -> Array:
        """A layer's FFN of its normed input h. start: the layer's input; x: the stream behind the attention."""
        if isinstance(layer.ffn, BoundMoe):
            return self._moe(h, layer.ffn, layer.index, {"ffn": h, "layer": start, "residual": x})
        assert layer.ffn is not None
        f = self._dense(h, layer.ffn)
        if layer.beside is None:
            return f
        beside = layer.beside
        u = self._norm(start if beside.input == "layer" else x, beside.norm)
        m = self._moe(u, beside.moe, layer.index, {"ffn": u, "layer": start, "residual": x})
        f = f if beside.post_dense_norm is None else self._norm(f, beside.post_dense_norm)
        return f + (m if beside.post_experts_norm is None else self._norm(m, beside.post_experts_norm))

    def _moe(self, h: Array, moe: BoundMoe, layer: int, inputs: dict[str, Array]) -> Array:
        router = moe.router
        seen = inputs[router.input]
        if router.norm is not None:
            seen = self._norm(seen, router.norm) * router.input_scale
        logits = self._linear(seen, router.logits)
        rule = Rule(
            scores=router.scores,
            n_used=router.n_used,
            n_group=router.n_group,
            n_group_used=router.n_group_used,
            normalize=router.normalize,
            scale=router.scale,
            by_logits=router.select_logits,
        )
        outer, h = h, h if moe.latent_down is None else self._linear(h, moe.latent_down)
        out = np.zeros_like(h)
        for t in range(len(h)):
            ids, weights = route(logits[t], rule, self._vector(router.select_bias))
            self.routing.append((layer, ids))
            for e, w in zip(ids, weights, strict=True):
                on_input = moe.experts.weight_on_input
                out[t] += self._expert(h[t] * w, moe.experts, e) if on_input else w * self._expert(h[t], moe.experts, e)
        out = out if moe.latent_norm is None else self._norm(out, moe.latent_norm)
        out = out if moe.latent_up is None else self._linear(out, moe.latent_up)
        if moe.shared is not None:
            gate = 1.0 if moe.shared_gate is None else ops.sigmoid(self._linear(outer, moe.shared_gate))
            out = (out + gate * self._dense(outer, moe.shared)) * moe.sum_scale
        return out if moe.chunks is None else out + moe.chunks.scale * self._chunked(out, logits, moe.chunks)

    def _chunked(self, m: Array, logits: Array, chunks: BoundChunks) -> Array:
        rule = Rule(scores="softmax", n_used=chunks.n_used, normalize=True, by_logits=True, chunk=chunks.group)
        out = np.zeros_like(m)
        for t in range(len(m)):
            for j, w in zip(*route(logits[t], rule), strict=True):
                out[t] += w * self._expert(m[t], chunks.experts, j)
        return out

    def _expert(self, x: Array, experts: BoundExperts, e: int) -> Array:
        def product(y: Array, part: str) -> Array | None:
            weight, bias, scale = (getattr(experts, part + suffix) for suffix in ("", "_bias", "_scale"))
            if weight is None:
                return None
            factor = 1.0 if scale is None else float(self._weights.bound(scale)[e, 0, 0])
            offset = None if bias is None else self._weights.bound(bias)[e, 0]
            return ops.linear(y, self._weights.bound(weight)[e], offset, factor)

        up = product(x, "up")
        assert up is not None
        down = product(ops.glu(experts.act, product(x, "gate"), up, experts.limit, experts.limit_up), "down")
        assert down is not None
        return down


def _warmed(q: Array, t: BoundTemperature | None, positions: np.ndarray) -> Array:
    """Queries [n_tokens, n_head, head_k] times the temperature of their positions."""
    return q if t is None else q * ops.temperature(positions, t.scale, t.length, t.offset)[:, None, None]
