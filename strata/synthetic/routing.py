"""Routing without a model: which experts random tokens choose, with the skew of the shapes that imitate public models.

A topic is an order of popularity for each layer; another topic has some of the experts change places.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strata.synthetic.shapes import Shape

__all__ = ["RoutingSource"]

ROUTER_DEVIATION = 0.02  # of a router's weights, as strata.synthetic.layout draws them
RANK_BIAS = 0.47  # "bias": the router's bias is -0.47 ln(rank)
RANK_POWER = 0.3  # "rows": the router's rows shrink as rank^-0.3


class RoutingSource:
    """Tokens of any number of topics. Inputs to the routers are normal and of unit deviation, as after a norm."""

    def __init__(self, shape: Shape, *, seed: int = 0, moved_frac: float = 1.0, memory: float = 0.0) -> None:
        """moved_frac: part of each layer's experts that change places in topics other than 0.

        memory: correlation of a router's input with the token's before, 0 to below 1.
        """
        self.n_sets = shape.n_layer - shape.n_dense
        self.n_expert = shape.n_expert
        self.k = shape.n_used
        self._skew = shape.skew
        self._deviation = ROUTER_DEVIATION * shape.n_embd**0.5
        self._moved_frac = moved_frac
        self._memory = memory
        self._seed = seed
        self._rng = np.random.default_rng([seed, 1])
        self._input = self._rng.standard_normal((self.n_sets, self.n_expert))

    def ranks(self, topic: int) -> NDArray[np.float64]:
        """Popularity rank of every expert, 1 the most wanted, [n_sets, n_expert]."""
        rng = np.random.default_rng([self._seed, 0])
        order = np.stack([rng.permutation(self.n_expert) for _ in range(self.n_sets)])
        if topic:
            rng = np.random.default_rng([self._seed, 0, topic])
            n_moved = round(self._moved_frac * self.n_expert)
            for row in order:
                who = rng.permutation(self.n_expert)[:n_moved]
                row[who] = rng.permutation(row[who])
        return order.astype(np.float64) + 1.0

    def tokens(self, topic: int, n: int) -> NDArray[np.int32]:
        """The next n tokens' experts in router order, [n_sets, n, k]."""
        ranks = self.ranks(topic)
        made = np.empty((self.n_sets, n, self.k), np.int32)
        fresh = (1.0 - self._memory**2) ** 0.5
        for i in range(n):
            self._input = self._memory * self._input + fresh * self._rng.standard_normal(self._input.shape)
            scores = self._input * self._deviation
            scores = scores - RANK_BIAS * np.log(ranks) if self._skew == "bias" else scores * ranks**-RANK_POWER
            top = np.argpartition(-scores, self.k - 1, axis=1)[:, : self.k]
            order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1)
            made[:, i] = np.take_along_axis(top, order, axis=1)
        return made
