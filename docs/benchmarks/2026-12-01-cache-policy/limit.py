"""How near to the hindsight choice of 400 tokens a choice can be that does not know them. Prints limit.txt."""

import numpy as np

from strata.engine.placement import Experts, best_fixed, hit_share
from strata.synthetic.routing import RoutingSource
from strata.synthetic.shapes import SHAPES
from strata.testing.cache_replay import uses_of

for name, frac in (("gpt-oss-120b", 0.09), ("qwen3-30b-a3b", 0.4), ("qwen3-30b-a3b", 0.14)):
    for memory in (0.0, 0.3):
        source = RoutingSource(SHAPES[name], seed=1, memory=memory)
        n = source.n_sets
        experts = Experts(tuple(range(n)), (source.n_expert,) * n, (source.k,) * n, (0,) * n, (1,))
        slots = int(frac * experts.exists.sum())
        truth = uses_of(experts, source.tokens(1, 6000))
        uses = uses_of(experts, source.tokens(1, 400))
        seen = uses_of(experts, source.tokens(1, 150))
        best = hit_share(uses, best_fixed(experts, uses, (slots,)))
        shares = [
            hit_share(uses, best_fixed(experts, known, (int(slots * part),))) / best
            for known, part in ((truth, 1.0), (truth, 0.985), (seen, 0.985))
        ]
        print(
            f"{name}, {frac:.0%} of the experts, memory {memory}: true popularities {shares[0]:.3f}, with 1.5 % of the "
            f"slots spare {shares[1]:.3f}; the counts of 150 tokens, 1.5 % spare {shares[2]:.3f}"
        )
        assert np.isfinite(shares).all()
