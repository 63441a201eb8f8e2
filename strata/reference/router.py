"""The choice of experts, in float64, one token at a time."""

from __future__ import annotations

import msgspec
import numpy as np

from strata.reference.ops import Array, sigmoid, softmax

__all__ = ["Rule", "route"]

WEIGHT_SUM_MIN = 2.0**-14


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """How a router chooses; n_group 0 or 1: no groups.

    by_logits: the choice is by logits. chunk G > 1: expert e leads to e // G, and the weight is the one at that place.
    """

    scores: str
    n_used: int
    n_group: int = 0
    n_group_used: int = 0
    normalize: bool = False
    scale: float = 1.0
    by_logits: bool = False
    chunk: int = 1


def route(logits: Array, rule: Rule, select_bias: Array | None = None) -> tuple[list[int], Array]:
    """Experts of one token in router order, and their weights. logits [n_expert].

    Ties go to the lower id. Groups are runs of neighbouring experts; a group's score is the sum of its two best.
    Source: DeepSeek-V3 (arXiv 2412.19437) section 2.1.2; gpt-oss for softmax-weight.
    """
    probabilities = _probabilities(logits, rule.scores)
    selection = logits if rule.by_logits else probabilities
    selection = selection if select_bias is None else selection + select_bias
    if rule.n_group > 1:
        selection = _within_best_groups(selection, rule.n_group, rule.n_group_used)
    ids = [e // rule.chunk for e in _best(selection, rule.n_used)]
    weights = probabilities[ids]
    if rule.scores == "softmax-weight":
        weights = softmax(weights)
    if rule.normalize:
        weights = weights / max(weights.sum(), WEIGHT_SUM_MIN)
    return ids, weights * rule.scale


def _probabilities(logits: Array, scores: str) -> Array:
    if scores == "softmax":
        return softmax(logits)
    if scores == "sigmoid":
        return sigmoid(logits)
    if scores == "sqrt-softplus":
        return np.sqrt(np.logaddexp(0.0, logits))
    if scores == "softmax-weight":
        return logits
    raise ValueError(f"unknown scores {scores!r}")


def _within_best_groups(selection: Array, n_group: int, n_group_used: int) -> Array:
    groups = selection.reshape(n_group, -1)
    totals = np.array([np.sort(group)[-2:].sum() for group in groups])
    kept = np.full_like(groups, -np.inf)
    for g in _best(totals, n_group_used):
        kept[g] = groups[g]
    return kept.reshape(-1)


def _best(values: Array, n: int) -> list[int]:
    return sorted(range(len(values)), key=lambda k: (-values[k], k))[:n]
