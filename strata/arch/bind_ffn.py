"""Binding of feed-forward parts: dense FFN, router, routed experts, shared expert.

Only `bind` calls this. Errors: BindError for metadata at once; tensor problems are collected in the claims.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, cast

from strata.arch.bind_attention import bind_norm
from strata.arch.bind_keys import Keys
from strata.arch.bind_tensors import Claims
from strata.arch.bound import (
    BoundAct,
    BoundBeside,
    BoundChunks,
    BoundExperts,
    BoundFfn,
    BoundLinear,
    BoundMoe,
    BoundNorm,
    BoundRouter,
    BoundTensor,
)
from strata.arch.spec import Act, Arch, Chunks, Clamp, Experts, FeedForward, Key, Moe, Router, SharedExpert
from strata.errors import BindError

__all__ = ["FfnBinder"]

MAX_EXPERTS = 1024
MIN_SITU_BETA = 1e-3  # a divisor
NO_CLAMP = 1e-6  # a bound up to here is none
GATING_FUNCS = {1: "softmax", 2: "sigmoid", 3: "softmax-weight", 4: "sqrt-softplus"}
UNGATED_ACTS = ("silu", "gelu")  # the activations that make sense of `up` alone
PARTS: tuple[Literal["gate"], Literal["up"], Literal["down"]] = ("gate", "up", "down")


class _Activation(NamedTuple):
    act: BoundAct
    limit: float = 0.0
    limit_up: float = 0.0


class FfnBinder:
    """Binds the FFN of each layer. dense: by block, whether it has no experts."""

    def __init__(self, keys: Keys, claims: Claims, arch: Arch) -> None:
        self._keys, self._claims, self._arch = keys, claims, arch
        n_layer, moe = keys.dims["n_layer"], arch.moe
        n_expert = keys.integer(Key("expert_count", 0), maximum=MAX_EXPERTS)
        self._n_used = self._used_counts()
        n_used = max(self._n_used)
        self.dense = [True] * keys.dims["n_block"]
        if moe is not None and not (moe.optional and n_expert == 0):
            self.dense = self._dense_layers(moe)
        dense = self.dense[:n_layer]
        if not all(dense):
            if n_expert < 1:
                raise keys.error("expert_count", n_expert, f"1 to {MAX_EXPERTS}")
            if not 1 <= n_used <= n_expert:
                raise keys.error("expert_used_count", n_used, f"1 to expert_count ({n_expert})")
        elif moe is None and n_expert > 0:
            raise keys.error("expert_count", n_expert, "0: the declaration has no experts")
        if any(dense) and arch.ffn is None:
            raise keys.error("leading_dense_block_count", sum(dense), "0: the declaration has no dense FFN")
        keys.dims["n_expert"], keys.dims["n_expert_used"] = n_expert, n_used

    def _used_counts(self) -> list[int]:
        """expert_used_count of each block."""
        keys, moe, key = self._keys, self._arch.moe, Key("expert_used_count", 0)
        if moe is not None and moe.by_layer:
            return keys.per_layer_int(key, maximum=MAX_EXPERTS)
        return [keys.integer(key, maximum=MAX_EXPERTS)] * keys.dims["n_block"]

    def has_layer(self, index: int) -> bool:
        """Whether a block of a model with one part a layer is an FFN."""
        return self._keys.per_layer_int(Key("feed_forward_length"))[index] > 0

    def _dense_layers(self, moe: Moe) -> list[bool]:
        keys, n_block = self._keys, self._keys.dims["n_block"]
        if moe.by_router:
            return [not self._claims.has(f"blk.{i}.ffn_gate_inp.weight") for i in range(n_block)]
        first = moe.dense_layers if isinstance(moe.dense_layers, int) else keys.integer(moe.dense_layers)
        every = 1 if moe.every is None else keys.integer(moe.every, minimum=1)
        return [i < first or (i + 1) % every != 0 for i in range(n_block)]

    def layer(self, index: int) -> BoundFfn | BoundMoe:
        """The FFN of one block; the dense one where the experts are beside it."""
        arch = self._arch
        if not self.dense[index] and (arch.moe is None or arch.moe.beside is None):
            assert arch.moe is not None
            return self._moe(arch.moe, index)
        assert arch.ffn is not None
        width = self._keys.per_layer_int(arch.ffn.width)[index]
        if width < 1:
            raise self._keys.error(arch.ffn.width.name, width, f"at least 1 in layer {index}, which has a dense FFN")
        return self._dense(arch.ffn, index, width)

    def beside(self, index: int) -> BoundBeside | None:
        """The experts next to a block's dense FFN, if it has both."""
        moe = self._arch.moe
        if self.dense[index] or moe is None or moe.beside is None:
            return None
        spec = moe.beside

        def norm(stem: str | None) -> BoundNorm | None:
            return None if stem is None else self._norm(f"blk.{index}.{stem}")

        return BoundBeside(
            moe=self._moe(moe, index),
            norm=self._norm(f"blk.{index}.{spec.norm}"),
            input=spec.input,
            post_dense_norm=norm(spec.post_dense_norm),
            post_experts_norm=norm(spec.post_experts_norm),
        )

    def _norm(self, stem: str) -> BoundNorm:
        return bind_norm(self._keys, self._claims, self._arch.norm, stem, self._keys.dims["n_embd"])

    def _act(self, act: Act, clamp: Clamp | None, index: int) -> _Activation:
        """A layer's activation, and its numbers."""
        if act == "situ":
            beta = self._keys.real(Key("activation.situ_beta"), minimum=MIN_SITU_BETA)
            return _Activation(act, beta, max(self._keys.real(Key("activation.situ_linear_beta")), 0.0))
        if clamp is None:
            return _Activation(act)
        limit = self._keys.per_layer_real(clamp.limit)[index]
        if limit <= NO_CLAMP:
            return _Activation(act)
        return _Activation("silu-early" if clamp.form == "early" else "silu-late", limit)

    def _dense(self, spec: FeedForward, index: int, width: int) -> BoundFfn:
        n_embd, lead = self._keys.dims["n_embd"], f"blk.{index}."
        shapes = {"gate": (n_embd, width), "up": (n_embd, width), "down": (width, n_embd)}
        if spec.act == "relu-sqr":
            del shapes["gate"]
        made = {x: self._claims.linear(f"{lead}ffn_{x}", *shape, spec.bias) for x, shape in shapes.items()}
        for x, linear in made.items():
            if linear.scale is not None and linear.bias is not None:
                # here the format's scale follows the bias, everywhere else it precedes it
                raise BindError(
                    f"{self._keys.file_name}: {lead}ffn_{x} has both a bias and a scale; accepted: one of them"
                )
        act, limit, limit_up = self._act(spec.act, spec.clamp, index)
        return BoundFfn(
            act=act,
            width=width,
            gate=made.get("gate"),
            up=made["up"],
            down=made["down"],
            limit=limit,
            limit_up=limit_up,
        )

    def _moe(self, spec: Moe, index: int) -> BoundMoe:
        keys, n_embd = self._keys, self._keys.dims["n_embd"]
        width, n_used = self._expert_width(spec, index), self._n_used[index]
        if not 1 <= n_used <= keys.dims["n_expert"]:
            raise keys.error("expert_used_count", n_used, f"1 to expert_count in layer {index}, which has experts")
        latent = (keys.integer(spec.latent) if spec.latent is not None else 0) or n_embd
        shared = None if spec.shared is None else self._shared(spec.shared, index, width)
        gated = shared is not None and spec.shared is not None and spec.shared.gate
        stem = f"blk.{index}.ffn_{spec.latent_names}"
        return BoundMoe(
            router=self._router(spec.router, f"blk.{index}.", n_used),
            experts=self._experts(spec.experts, index, width, latent),
            shared=shared,
            shared_gate=self._claims.linear(f"blk.{index}.ffn_gate_inp_shexp", n_embd, 1) if gated else None,
            sum_scale=spec.shared.sum_scale if shared is not None and spec.shared is not None else 1.0,
            chunks=None if spec.chunks is None else self._chunks(spec.chunks, index),
            latent_down=self._latent(spec, f"{stem}_down", (n_embd, latent)),
            latent_up=self._latent(spec, f"{stem}_up", (latent, n_embd)),
            latent_norm=self._latent_norm(spec, f"{stem}_norm", latent),
        )

    def _latent(self, spec: Moe, stem: str, shape: tuple[int, int]) -> BoundLinear | None:
        """A projection into or out of the experts' space; files without one have experts of the model's width."""
        if spec.latent is None or (shape[0] == shape[1] and not self._claims.has(f"{stem}.weight")):
            return None
        return BoundLinear(weight=self._claims.matrix(f"{stem}.weight", *shape))

    def _latent_norm(self, spec: Moe, stem: str, latent: int) -> BoundNorm | None:
        found = self._claims.has(f"{stem}.weight")
        if spec.latent is None or spec.latent_norm == "absent" or (spec.latent_norm == "if-present" and not found):
            return None
        return bind_norm(self._keys, self._claims, self._arch.norm, stem, latent)

    def _expert_width(self, spec: Moe, index: int) -> int:
        keys, key = self._keys, spec.experts.width
        if not spec.by_layer:
            return keys.integer(key, minimum=1)
        if keys.has(key.name):
            width = keys.per_layer_int(key)[index]
        else:
            width = keys.per_layer_int(Key("feed_forward_length"))[index] // max(self._n_used[index], 1)
        if width < 1:
            raise keys.error(key.name, width, f"at least 1 in layer {index}, which has experts")
        return width

    def _chunks(self, spec: Chunks, index: int) -> BoundChunks:
        keys, n_expert = self._keys, self._keys.dims["n_expert"]
        group = keys.integer(spec.group, minimum=1)
        if n_expert % group != 0:
            raise keys.error(spec.group.name, group, f"a divisor of expert_count ({n_expert})")
        n_embd, width, n_chunk = keys.dims["n_embd"], keys.integer(spec.width, minimum=1), n_expert // group
        shapes = {"gate": (n_embd, width), "up": (n_embd, width), "down": (width, n_embd)}
        gate, up, down = (
            self._claims.expert_matrix(f"blk.{index}.ffn_{x}_chexps.weight", *shapes[x], n_chunk) for x in PARTS
        )
        return BoundChunks(
            group=group,
            n_used=min(keys.dims["n_expert_used"], n_chunk),
            scale=keys.real(spec.scale),
            experts=BoundExperts(act="silu", width=width, gate=gate, up=up, down=down),
        )

    def _shared_width(self, spec: SharedExpert, expert_width: int) -> int:
        """The total width, 0 for none."""
        keys, least = self._keys, 0 if spec.optional else 1
        count = 1 if spec.count is None else keys.integer(spec.count, minimum=least, maximum=MAX_EXPERTS)
        each = (keys.integer(spec.each) if spec.each is not None else 0) or expert_width
        width = keys.integer(spec.width) if spec.width is not None else 0
        if count == 0 or (spec.optional and spec.count is None and width == 0):
            return 0
        return width or count * each

    def _shared(self, spec: SharedExpert, index: int, expert_width: int) -> BoundFfn | None:
        claims, n_embd = self._claims, self._keys.dims["n_embd"]
        width, tail = self._shared_width(spec, expert_width), "_shexp" if spec.names == "shexp" else ""
        stems = {x: f"blk.{index}.ffn_{x}{tail}" for x in PARTS}
        if width == 0 or (spec.names == "dense" and not claims.has(f"{stems['up']}.weight")):
            return None
        gate = None
        if spec.act == "relu-sqr":
            up = claims.linear(stems["up"], n_embd, width)
        elif spec.fused:
            gate, up = claims.split(stems["up"], n_embd, (width, width))
        else:
            gate, up = claims.linear(stems["gate"], n_embd, width), claims.linear(stems["up"], n_embd, width)
        act, limit, limit_up = self._act(spec.act, spec.clamp, index)
        down = claims.linear(stems["down"], width, n_embd)
        return BoundFfn(act=act, width=width, gate=gate, up=up, down=down, limit=limit, limit_up=limit_up)

    def _router(self, spec: Router, lead: str, n_used: int) -> BoundRouter:
        keys, claims = self._keys, self._claims
        n_expert, n_embd = keys.dims["n_expert"], keys.dims["n_embd"]
        n_group, n_group_used = self._groups(n_expert, n_used)
        scores = keys.choice(spec.scores, GATING_FUNCS) if isinstance(spec.scores, Key) else spec.scores
        scale = keys.real(spec.scale) if isinstance(spec.scale, Key) else spec.scale
        norm = None
        if spec.input == "residual":
            gain = claims.vector(f"{lead}ffn_gate_inp.scale", n_embd)
            norm = BoundNorm(kind="rms", eps=keys.real(self._arch.norm.eps, minimum=0.0), gain=gain)
        return BoundRouter(
            scores=cast("Any", scores),
            n_expert=n_expert,
            n_used=n_used,
            n_group=n_group,
            n_group_used=n_group_used,
            normalize=keys.flag(spec.normalize) if isinstance(spec.normalize, Key) else spec.normalize,
            scale=scale if scale != 0.0 else 1.0,
            logits=claims.linear(f"{lead}ffn_gate_inp", n_embd, n_expert, spec.bias),
            select_bias=claims.present_vector(f"{lead}{spec.select_bias_name}", n_expert, spec.select_bias),
            select_logits=spec.select == "logits",
            input=spec.input,
            norm=norm,
            input_scale=1.0 if norm is None else 1.0 / math.sqrt(n_embd),
        )

    def _groups(self, n_expert: int, n_used: int) -> tuple[int, int]:
        keys = self._keys
        n_group = keys.integer(Key("expert_group_count", 0))
        n_group_used = keys.integer(Key("expert_group_used_count", 0))
        if n_group <= 1:
            return 0, 0
        if n_group >= n_expert or n_expert % n_group != 0:
            raise keys.error("expert_group_count", n_group, f"a divisor of expert_count ({n_expert}) below it")
        if not 0 < n_group_used < n_group:
            raise keys.error("expert_group_used_count", n_group_used, f"1 to {n_group - 1}")
        if n_used > n_group_used * (n_expert // n_group):
            most = n_group_used * (n_expert // n_group)
            raise keys.error("expert_used_count", n_used, f"up to {most}, the experts of {n_group_used} groups")
        return n_group, n_group_used

    def _experts(self, spec: Experts, index: int, width: int, n_outer: int) -> BoundExperts:
        """n_outer: width of the experts' inputs and outputs."""
        lead, claims, n_expert = f"blk.{index}.", self._claims, self._keys.dims["n_expert"]
        weights = self._expert_weights(spec, lead, width, n_outer)
        lengths = {"gate": width, "up": width, "down": n_outer}
        biases: dict[str, BoundTensor | None] = {}
        scales: dict[str, BoundTensor | None] = {}
        for x in PARTS:
            stem = f"{lead}ffn_{x}_exps"
            name = f"{stem}.bias"
            wanted = spec.bias == "required" or (spec.bias == "if-present" and claims.has(name))
            present = weights[x] is not None
            biases[x] = claims.expert_vector(name, lengths[x], n_expert) if wanted and present else None
            own = present and claims.has(f"{stem}.weight")
            scales[x] = claims.expert_scale(stem, n_expert) if own else None
        fused = claims.has(f"{lead}ffn_gate_up_exps.weight")
        act, limit, limit_up = self._act(spec.act, None if fused else spec.clamp, index)
        up, down = weights["up"], weights["down"]
        assert up is not None
        assert down is not None
        return BoundExperts(
            act=act,
            width=width,
            gate=weights["gate"],
            up=up,
            down=down,
            gate_bias=biases["gate"],
            up_bias=biases["up"],
            down_bias=biases["down"],
            gate_scale=scales["gate"],
            up_scale=scales["up"],
            down_scale=scales["down"],
            limit=limit,
            limit_up=limit_up,
            weight_on_input=spec.weight_on_input,
        )

    def _expert_weights(self, spec: Experts, lead: str, width: int, n_outer: int) -> dict[str, BoundTensor | None]:
        """The three stacks, in whichever spelling the file has."""
        claims, n_expert = self._claims, self._keys.dims["n_expert"]
        shapes = {"gate": (n_outer, width), "up": (n_outer, width), "down": (width, n_outer)}
        if spec.per_expert_tensors and claims.has(f"{lead}ffn_down.0.weight"):
            return {
                x: claims.expert_parts([f"{lead}ffn_{x}.{e}.weight" for e in range(n_expert)], *shape)
                for x, shape in shapes.items()
            }
        found: dict[str, BoundTensor | None] = {}
        fused = f"{lead}ffn_gate_up_exps.weight"
        if spec.fused_gate_up and claims.has(fused):
            found["gate"] = claims.expert_rows(fused, n_outer, range(width), 2 * width, n_expert)
            found["up"] = claims.expert_rows(fused, n_outer, range(width, 2 * width), 2 * width, n_expert)
        for x, shape in shapes.items():
            name = f"{lead}ffn_{x}_exps.weight"
            if x in found:
                continue
            ungated = spec.gate == "if-present" and spec.act in UNGATED_ACTS
            if x == "gate" and (spec.act == "relu-sqr" or (ungated and not claims.has(name))):
                found[x] = None
            else:
                found[x] = claims.expert_matrix(name, *shape, n_expert)
        return found
