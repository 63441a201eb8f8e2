"""The expert cache's policy as one object: heat, slots, rule and budget in the order a step loop calls them. Pure.

note(batch, result.routing)     after each step
plan(now_s) -> [Swap]           in the gaps; the caller starts these copies
copied(swap_id)                 when a copy's event has fired
commit(next_step) -> [Swap]     between steps; the caller flips these entries of the device's table
step_ended(step)                after each step, also a failed one
cancel_all()                    at any time
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strata.engine.backend import Phase, Routing, StepBatch
from strata.engine.heat import Heat, ShiftDetector
from strata.engine.placement import Experts, Mask, Split, best_fixed, hit_share
from strata.engine.residency import Residency, Swap
from strata.engine.swaps import SwapBudget, SwapRule, choose_swaps, is_static

__all__ = ["ExpertCache"]

SETTLE_TOKENS = 256  # decoded between two looks at whether a static choice is still a good one


class ExpertCache:
    """One per backend. `residency` is the slot table's host side; start it with residency.fill.

    With fewer residents than one token uses, the choice stands still, and is made anew only when what has been seen
    since says that another would hit more by the rule's margin.
    """

    def __init__(  # noqa: PLR0913  (each part can be replaced by a test or a measurement)
        self,
        experts: Experts,
        split: Split,
        budget: SwapBudget,
        *,
        heat: Heat | None = None,
        rule: SwapRule | None = None,
        detector: ShiftDetector | None = None,
        adapt: bool = True,
    ) -> None:
        self.experts = experts
        self.heat = heat or Heat(experts.n_sets, experts.width)
        self.residency = Residency(experts, split)
        self.budget = budget
        self.rule = rule or SwapRule()
        self.adapt = adapt
        self.static = is_static(experts, sum(split.resident))
        self.n_hits = 0
        self.n_uses = 0
        self.n_shifts = 0
        self._detector = detector or ShiftDetector()
        self._settled: NDArray[np.float64] | None = None  # heat that a static choice goes by
        self._settle_at = SETTLE_TOKENS
        self._n_seen = -1  # decoded tokens at the last plan that found nothing

    def note(self, batch: StepBatch, routing: Routing) -> None:
        """Count a finished step's routing. Without `on_gpu` in it, before `commit` changes what was resident."""
        phases = np.repeat([row.phase for row in batch.rows], [len(row.tokens) for row in batch.rows])
        is_prompt = phases == Phase.PREFILL
        if not is_prompt.all():
            on_gpu = None if routing.on_gpu is None else routing.on_gpu[:, ~is_prompt]
            self.note_decoded(routing.ids[:, ~is_prompt], on_gpu)
        if is_prompt.any():
            self.heat.note_prompt(routing.ids[:, is_prompt])

    def note_decoded(self, ids: NDArray[np.int32], on_gpu: NDArray[np.bool_] | None = None) -> int:
        """Count decoded tokens of one step, ids [n_sets, n_tokens, k]; how many of the uses were resident.

        on_gpu: which of them were, the same shape; None: those that are now.

        Checked guesses count as decoding: their experts are read like any other's.
        """
        used = ids >= 0
        if on_gpu is None:
            on_gpu = self.residency.resident[np.arange(len(ids))[:, None, None], ids] & used
        hits, uses = int(on_gpu.sum()), int(used.sum())
        self.heat.note_decoded(ids)
        self.n_hits += hits
        self.n_uses += uses
        if self.adapt and not self.static and self._detector.note(hits, uses, ids.shape[1]):
            self.heat.shift()
            self.n_shifts += 1
        return hits

    def plan(self, now_s: float, most: int = 8) -> list[Swap]:
        """Begin up to `most` swaps that the rule wants and the budget allows."""
        heat = self._heat()
        if heat is None or self.budget.available(now_s) < min(self.experts.slot_bytes):
            return []
        begun: list[Swap] = []
        for newcomer, victim in choose_swaps(self.residency, heat, self.rule, most):
            if not self.budget.spend(self.experts.slot_bytes[self.experts.class_of[newcomer[0]]], now_s):
                break
            begun.append(self.residency.begin(newcomer, victim))
        if not begun:
            self._n_seen = self.heat.n_decoded
        return begun

    def copied(self, swap_id: int) -> None:
        self.residency.copied(swap_id)

    def commit(self, next_step: int, in_use: Mask | None = None) -> list[Swap]:
        return self.residency.commit(next_step, in_use)

    def step_ended(self, step: int) -> None:
        self.residency.step_ended(step)

    def cancel_all(self) -> None:
        self.residency.cancel_all()

    def _heat(self) -> NDArray[np.float64] | None:
        """What swaps go by now; None when nothing may or need move."""
        if not self.adapt or self.heat.n_decoded == self._n_seen:
            return None
        if not self.static:
            return self.heat.values()
        if self.heat.n_decoded >= self._settle_at:
            self._settle_at = self.heat.n_decoded + SETTLE_TOKENS
            heat = self.heat.values()
            best = best_fixed(self.experts, heat, self.residency.split.resident)
            if hit_share(heat, best) > self.rule.margin * hit_share(heat, self.residency.resident):
                self._settled = heat
        return self._settled
