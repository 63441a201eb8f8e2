"""Small models' experts, and routing for them."""

from __future__ import annotations

import numpy as np

from strata.engine.placement import Experts


def uniform(n_sets: int = 4, n_expert: int = 16, n_used: int = 2, slot_bytes: int = 1000) -> Experts:
    """One size class."""
    return Experts(tuple(range(n_sets)), (n_expert,) * n_sets, (n_used,) * n_sets, (0,) * n_sets, (slot_bytes,))


def mixed() -> Experts:
    """Three size classes; layer 4 has two sets, one of them narrow; layers 0 and 3 have no experts."""
    return Experts((1, 2, 4, 4, 5), (8, 8, 8, 4, 8), (2, 2, 2, 1, 2), (0, 1, 0, 2, 1), (1000, 1500, 300))


def skewed(experts: Experts, n_tokens: int, seed: int, power: float = 1.2) -> np.ndarray:
    """Decoded ids [n_sets, n_tokens, k]: popularity falls with rank in an order that belongs to the seed."""
    rng = np.random.default_rng(seed)
    k = max(experts.n_used)
    made = np.full((experts.n_sets, n_tokens, k), -1, np.int32)
    for set_id, (n, used) in enumerate(zip(experts.n_expert, experts.n_used, strict=True)):
        share = np.arange(1, n + 1) ** -power
        share = rng.permutation(share / share.sum())
        for t in range(n_tokens):
            made[set_id, t, :used] = rng.choice(n, used, replace=False, p=share)
    return made
