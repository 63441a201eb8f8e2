"""How often each expert is wanted: decayed counts per (expert set, expert). Pure; a token costs a few microseconds.

Only decoding counts: a prompt touches almost everything once and says little about the tokens that follow, so its
statistics are kept apart. Two memories run side by side. The recent one follows a change of topic; the lasting one
remembers across conversations, steadies the recent one's noise, and is what profiles are made from.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Counts", "Heat", "ShiftDetector"]

RECENT_TOKENS = 256  # half-life
LASTING_TOKENS = 8192  # half-life
PRIOR_TOKENS = 16.0  # the lasting memory weighs as much as so many recent tokens
PROFILE_TOKENS = 1024.0  # a loaded ranking counts like so many tokens of the lasting memory
SHIFT_KEEP_FRAC = 0.05  # of the recent memory, and of the trust in the lasting one, survives a change of topic
TRUST_TOKENS = 512.0  # half-life of the distrust after a change
_RESCALE = 2.0**64


class Counts:
    """Counts that lose half their weight every `half_life` tokens."""

    def __init__(self, shape: tuple[int, int], half_life: float) -> None:
        if half_life <= 0:
            raise ValueError(f"a half-life of {half_life} tokens is none")
        self._raw = np.zeros(shape, np.float64)
        self._unit = 1.0  # what one use adds now: older ones stay as they are and weigh less beside it
        self._mass = 0.0  # tokens, decayed as the uses are
        self._growth = 2.0 ** (1.0 / half_life)

    @property
    def mass(self) -> float:
        """Tokens counted, decayed."""
        return self._mass / self._unit

    def add(self, flat: NDArray[np.intp], n_tokens: int) -> None:
        """Count uses (indices into the flattened shape, repeats allowed) of tokens of one step."""
        self.advance(n_tokens)
        np.add.at(self._raw.reshape(-1), flat, self._unit)
        self._mass += n_tokens * self._unit

    def advance(self, n_tokens: int) -> None:
        """Let everything counted so far age by n_tokens."""
        self._unit *= self._growth**n_tokens
        if self._unit > _RESCALE:
            self._raw /= self._unit
            self._mass /= self._unit
            self._unit = 1.0

    def keep(self, frac: float) -> None:
        """Let everything counted so far weigh `frac` of what it did."""
        self._raw *= frac
        self._mass *= frac

    def seed(self, counts: NDArray[np.float64], mass: float) -> None:
        """Add counts as if they had been observed now, in `mass` tokens."""
        self._raw += counts * self._unit
        self._mass += mass * self._unit

    def values(self) -> NDArray[np.float64]:
        """Decayed uses, [n_sets, n_expert]; the newest token's weigh 1."""
        return self._raw / self._unit


class ShiftDetector:
    """Tells a change of topic by the hit share: its short average falls well below its long one.

    Well below: by a part of it, and by several times what the short average varies anyway, as the tokens' own hit
    shares show; with few uses a token that is more.
    """

    def __init__(
        self, *, short_tokens: float = 10, long_tokens: float = 100, drop: float = 0.92, sigmas: float = 4.0
    ) -> None:
        """Half-lives; drop: short average over long average; sigmas: standard errors of the short average."""
        self._short_decay = 2.0 ** (-1.0 / short_tokens)
        self._long_decay = 2.0 ** (-1.0 / long_tokens)
        self._least = 0.6 * long_tokens
        self._drop = drop
        self._sigmas = sigmas
        self._short = np.zeros(2)  # tokens, sum of hit shares
        self._long = np.zeros(3)  # tokens, sum of hit shares, sum of their squares

    def note(self, hits: int, uses: int, n_tokens: int = 1) -> bool:
        """Take in a step; whether the topic has changed. After a change the long average starts anew."""
        if not uses:
            return False
        share = hits / uses
        self._short = self._short * self._short_decay**n_tokens + n_tokens * np.asarray([1.0, share])
        self._long = self._long * self._long_decay**n_tokens + n_tokens * np.asarray([1.0, share, share * share])
        if self._long[0] < self._least:
            return False
        short, (long, square) = self._short[1] / self._short[0], self._long[1:] / self._long[0]
        variance = max(square - long * long, 0.0) * (1.0 - self._short_decay) / (1.0 + self._short_decay)
        if short >= self._drop * long or long - short <= self._sigmas * variance**0.5:
            return False
        self._long[:] = 0.0
        return True


class Heat:
    """The statistics of one model: n_sets expert sets (MoE layers) of up to n_expert experts."""

    def __init__(
        self,
        n_sets: int,
        n_expert: int,
        *,
        recent_tokens: float = RECENT_TOKENS,
        lasting_tokens: float = LASTING_TOKENS,
        prior_tokens: float = PRIOR_TOKENS,
    ) -> None:
        self.shape = (n_sets, n_expert)
        self.recent = Counts(self.shape, recent_tokens)
        self.lasting = Counts(self.shape, lasting_tokens)
        self.prompt = np.zeros(self.shape, np.int64)  # uses by prompt tokens, never decayed, never a reason to swap
        self.n_decoded = 0
        self.n_prompt = 0
        self._prior_tokens = prior_tokens
        self._trust = 1.0
        self._first = (np.arange(n_sets) * n_expert).reshape(n_sets, 1, 1)

    def note_decoded(self, ids: NDArray[np.int32]) -> None:
        """Count decoded tokens of one step: ids [n_sets, n_tokens, k], -1 for none."""
        flat = self._flat(ids)
        n_tokens = ids.shape[1]
        self.recent.add(flat, n_tokens)
        self.lasting.add(flat, n_tokens)
        self.n_decoded += n_tokens
        self._trust = 1.0 - (1.0 - self._trust) * 2.0 ** (-n_tokens / TRUST_TOKENS)

    def note_prompt(self, ids: NDArray[np.int32]) -> None:
        """Count prompt tokens, apart."""
        self.prompt += np.bincount(self._flat(ids), minlength=self.prompt.size).reshape(self.shape)
        self.n_prompt += ids.shape[1]

    def values(self) -> NDArray[np.float64]:
        """What the cache goes by: recent uses, and the lasting rates as if `prior_tokens` recent tokens had shown them
        (fewer for a while after a change of topic).

        float64 [n_sets, n_expert].
        """
        mass = self.lasting.mass
        if mass == 0:
            return self.recent.values()
        return self.recent.values() + self.lasting.values() * (
            self._prior_tokens * self._trust / max(mass, self._prior_tokens)
        )

    def shift(self) -> None:
        """The topic has changed: what was hot says little about what comes."""
        self.recent.keep(SHIFT_KEEP_FRAC)
        self._trust *= SHIFT_KEEP_FRAC

    def seed(self, ranking: NDArray[np.int32], uses_per_token: int) -> None:
        """Start from a ranking [n, 2] of (set, expert), hottest first, until observation knows better.

        A ranking has no counts: they are taken to fall with rank as 1 / (rank + the tokens' uses), a curve that is flat
        at first, so that nothing is believed to be used more than once a token.
        """
        share = 1.0 / (np.arange(len(ranking)) + uses_per_token + 1.0)
        counts = np.zeros(self.shape, np.float64)
        if len(ranking):
            counts[ranking[:, 0], ranking[:, 1]] = share / share.sum() * uses_per_token * PROFILE_TOKENS
        self.lasting.seed(counts, PROFILE_TOKENS)

    def ranking(self) -> NDArray[np.int32]:
        """Every (set, expert), [n_sets * n_expert, 2], hottest of the lasting memory first; the prompt breaks ties."""
        sets, experts = np.divmod(np.arange(self.shape[0] * self.shape[1]), self.shape[1])
        order = np.lexsort((sets, experts, -self.prompt.reshape(-1), -self.lasting.values().reshape(-1)))
        return np.stack([sets[order], experts[order]], axis=1).astype(np.int32)

    def _flat(self, ids: NDArray[np.int32]) -> NDArray[np.intp]:
        used = ids >= 0
        return (ids + self._first)[used].astype(np.intp)
