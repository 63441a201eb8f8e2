"""Binding of feed-forward parts: dense FFN, router, routed experts, shared expert.

Only `bind` calls this. Errors: BindError for metadata at once; tensor problems are collected in the claims.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from strata.arch.bind_keys import Keys
from strata.arch.bind_tensors import Claims
from strata.arch.bound import BoundExperts, BoundFfn, BoundMoe, BoundRouter, BoundTensor
from strata.arch.spec import Arch, Experts, FeedForward, Key, Moe, Router, SharedExpert
from strata.errors import BindError

__all__ = ["FfnBinder"]

MAX_EXPERTS = 1024
GATING_FUNCS = {1: "softmax", 2: "sigmoid", 3: "softmax-weight", 4: "sqrt-softplus"}
UNGATED_ACTS = ("silu", "gelu")  # the activations that make sense of `up` alone
PARTS: tuple[Literal["gate"], Literal["up"], Literal["down"]] = ("gate", "up", "down")


class FfnBinder:
    """Binds the FFN of each layer; knows from which layer on there are experts."""

    def __init__(self, keys: Keys, claims: Claims, arch: Arch) -> None:
        self._keys, self._claims, self._arch = keys, claims, arch
        n_layer, moe = keys.dims["n_layer"], arch.moe
        n_expert = keys.integer(Key("expert_count", 0), maximum=MAX_EXPERTS)
        n_used = keys.integer(Key("expert_used_count", 0), maximum=MAX_EXPERTS)
        self._first_moe = n_layer
        if moe is not None and not (moe.optional and n_expert == 0):
            dense = moe.dense_layers
            self._first_moe = dense if isinstance(dense, int) else keys.integer(dense)
            self._first_moe = min(self._first_moe, n_layer)
        if self._first_moe < n_layer:
            if n_expert < 1:
                raise keys.error("expert_count", n_expert, f"1 to {MAX_EXPERTS}")
            if not 1 <= n_used <= n_expert:
                raise keys.error("expert_used_count", n_used, f"1 to expert_count ({n_expert})")
        elif moe is None and n_expert > 0:
            raise keys.error("expert_count", n_expert, "0: the declaration has no experts")
        if self._first_moe > 0 and arch.ffn is None:
            raise keys.error("leading_dense_block_count", self._first_moe, "0: the declaration has no dense FFN")
        keys.dims["n_expert"], keys.dims["n_expert_used"] = n_expert, n_used

    def layer(self, index: int) -> BoundFfn | BoundMoe:
        """The FFN of one block."""
        arch, lead = self._arch, f"blk.{index}."
        if index >= self._first_moe:
            assert arch.moe is not None
            return self._moe(arch.moe, lead)
        assert arch.ffn is not None
        width = self._keys.per_layer_int(arch.ffn.width)[index]
        if width < 1:
            raise self._keys.error(arch.ffn.width.name, width, f"at least 1 in layer {index}, which has a dense FFN")
        return self._dense(arch.ffn, lead, width)

    def _dense(self, spec: FeedForward, lead: str, width: int) -> BoundFfn:
        n_embd = self._keys.dims["n_embd"]
        shapes = {"gate": (n_embd, width), "up": (n_embd, width), "down": (width, n_embd)}
        made = {x: self._claims.linear(f"{lead}ffn_{x}", *shape, spec.bias) for x, shape in shapes.items()}
        for x, linear in made.items():
            if linear.scale is not None and linear.bias is not None:
                # here the format's scale follows the bias, everywhere else it precedes it
                raise BindError(
                    f"{self._keys.file_name}: {lead}ffn_{x} has both a bias and a scale; accepted: one of them"
                )
        return BoundFfn(act=spec.act, width=width, gate=made["gate"], up=made["up"], down=made["down"])

    def _moe(self, spec: Moe, lead: str) -> BoundMoe:
        width = self._keys.integer(spec.experts.width, minimum=1)
        gated = spec.shared is not None and spec.shared.gate
        n_embd = self._keys.dims["n_embd"]
        return BoundMoe(
            router=self._router(spec.router, lead),
            experts=self._experts(spec.experts, lead, width),
            shared=self._shared(spec.shared, lead, width) if spec.shared is not None else None,
            shared_gate=self._claims.linear(f"{lead}ffn_gate_inp_shexp", n_embd, 1) if gated else None,
        )

    def _shared(self, spec: SharedExpert, lead: str, expert_width: int) -> BoundFfn:
        keys, claims, n_embd = self._keys, self._claims, self._keys.dims["n_embd"]
        if spec.width is not None:
            width = keys.integer(spec.width, minimum=1)
        else:
            count = 1 if spec.count is None else keys.integer(spec.count, minimum=1, maximum=MAX_EXPERTS)
            width = count * expert_width
        return BoundFfn(
            act=spec.act,
            width=width,
            gate=claims.linear(f"{lead}ffn_gate_shexp", n_embd, width),
            up=claims.linear(f"{lead}ffn_up_shexp", n_embd, width),
            down=claims.linear(f"{lead}ffn_down_shexp", width, n_embd),
        )

    def _router(self, spec: Router, lead: str) -> BoundRouter:
        keys, claims = self._keys, self._claims
        n_expert, n_used = keys.dims["n_expert"], keys.dims["n_expert_used"]
        n_group, n_group_used = self._groups(n_expert, n_used)
        scores = keys.choice(spec.scores, GATING_FUNCS) if isinstance(spec.scores, Key) else spec.scores
        scale = keys.real(spec.scale) if isinstance(spec.scale, Key) else spec.scale
        return BoundRouter(
            scores=cast("Any", scores),
            n_expert=n_expert,
            n_used=n_used,
            n_group=n_group,
            n_group_used=n_group_used,
            normalize=keys.flag(spec.normalize) if isinstance(spec.normalize, Key) else spec.normalize,
            scale=scale if scale != 0.0 else 1.0,
            logits=claims.linear(f"{lead}ffn_gate_inp", keys.dims["n_embd"], n_expert, spec.bias),
            select_bias=claims.present_vector(f"{lead}exp_probs_b.bias", n_expert, spec.select_bias),
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

    def _experts(self, spec: Experts, lead: str, width: int) -> BoundExperts:
        claims, n_embd, n_expert = self._claims, self._keys.dims["n_embd"], self._keys.dims["n_expert"]
        weights = self._expert_weights(spec, lead, width)
        lengths = {"gate": width, "up": width, "down": n_embd}
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
        up, down = weights["up"], weights["down"]
        assert up is not None
        assert down is not None
        return BoundExperts(
            act=spec.act,
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
        )

    def _expert_weights(self, spec: Experts, lead: str, width: int) -> dict[str, BoundTensor | None]:
        """The three stacks, in whichever spelling the file has."""
        claims, n_embd, n_expert = self._claims, self._keys.dims["n_embd"], self._keys.dims["n_expert"]
        shapes = {"gate": (n_embd, width), "up": (n_embd, width), "down": (width, n_embd)}
        if spec.per_expert_tensors and claims.has(f"{lead}ffn_down.0.weight"):
            return {
                x: claims.expert_parts([f"{lead}ffn_{x}.{e}.weight" for e in range(n_expert)], *shape)
                for x, shape in shapes.items()
            }
        found: dict[str, BoundTensor | None] = {}
        fused = f"{lead}ffn_gate_up_exps.weight"
        if spec.fused_gate_up and claims.has(fused):
            found["gate"] = claims.expert_rows(fused, n_embd, range(width), 2 * width, n_expert)
            found["up"] = claims.expert_rows(fused, n_embd, range(width, 2 * width), 2 * width, n_expert)
        for x, shape in shapes.items():
            name = f"{lead}ffn_{x}_exps.weight"
            if x in found:
                continue
            ungated = spec.gate == "if-present" and spec.act in UNGATED_ACTS
            if x == "gate" and ungated and not claims.has(name):
                found[x] = None
            else:
                found[x] = claims.expert_matrix(name, *shape, n_expert)
        return found
