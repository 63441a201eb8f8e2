"""Frozen structs that every layer shares: what is asked of the engine, and what it answers.

No behaviour beyond validation of ranges lives here. Times are seconds, probabilities natural logs.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from strata.errors import BadSampling

MAX_LOGPROBS = 20
MAX_BREAKERS = 64  # each is looked for in every token of the vocabulary
MAX_BREAKER_CHARS = 256


class FinishReason(StrEnum):
    """Why a stream ended, in the engine's words; each wire dialect has its own translation."""

    STOP = "stop"  # an end-of-generation token, or a stop string
    LENGTH = "length"  # max_tokens or the context's end
    ABORTED = "aborted"  # client gone, deadline, shutdown


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How one token is drawn. Field names and "off" values are llama-server's.

    Raises BadSampling on construction through `checked`; the plain constructor does not validate.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None  # None: drawn once per request
    n_logprobs: int | None = None  # None: none; 0: the chosen token's only
    min_keep: int = 1

    def checked(self, n_vocab: int) -> SamplingParams:
        """Return self when every value is in range, else raise BadSampling naming field, value and range."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                bounds = f"{low:g} to {high:g}" if isinstance(high, float) else f"{low} to {high}"
                raise BadSampling(f"{name} is {value!r}; accepted: {bounds}")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise BadSampling(f"seed is {self.seed!r}; accepted: 0 to 2^64 - 1")
        if self.n_logprobs is not None and not 0 <= self.n_logprobs <= MAX_LOGPROBS:
            raise BadSampling(f"logprobs asks for {self.n_logprobs} alternatives; accepted: 0 to {MAX_LOGPROBS}")
        self._check_breakers()
        for token, value in self.logit_bias:
            if not 0 <= token < n_vocab:
                raise BadSampling(f"logit_bias names token {token}; accepted: 0 to {n_vocab - 1}")
            if not (-1e9 <= value <= 1e9 or value == float("-inf")):
                raise BadSampling(f"logit_bias for token {token} is {value!r}; accepted: a finite number or -inf")
        if len({token for token, value in self.logit_bias if value == float("-inf")}) >= n_vocab:
            raise BadSampling("logit_bias excludes every token of the vocabulary; at least one must be left")
        return self

    def _check_breakers(self) -> None:
        breakers = self.dry_sequence_breakers
        if len(breakers) > MAX_BREAKERS:
            raise BadSampling(f"dry_sequence_breakers has {len(breakers)} texts; accepted: up to {MAX_BREAKERS}")
        if any("\ud800" <= char <= "\udfff" for text in breakers for char in text):
            raise BadSampling("dry_sequence_breakers holds a lone surrogate; accepted: Unicode text")
        longest = max(map(len, breakers), default=0)
        if longest > MAX_BREAKER_CHARS:
            raise BadSampling(
                f"dry_sequence_breakers holds a text of {longest} characters; accepted: up to {MAX_BREAKER_CHARS}"
            )


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_k", 0, 2**31 - 1),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("typical_p", 0.0, 1.0),
    ("top_n_sigma", -1.0, 1e6),
    ("xtc_probability", 0.0, 1.0),
    ("xtc_threshold", 0.0, 1.0),
    ("repeat_last_n", -1, 2**31 - 1),
    ("repeat_penalty", 1e-6, 100.0),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("dry_multiplier", 0.0, 100.0),
    ("dry_base", 1.0, 100.0),
    ("dry_allowed_length", 0, 2**31 - 1),
    ("dry_penalty_last_n", -1, 2**31 - 1),
    ("min_keep", 1, 2**31 - 1),
)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One generation: what the engine needs, free of any wire dialect."""

    request_id: str
    prompt: tuple[int, ...]  # token ids, at least one
    max_tokens: int | None = None  # None: up to the context's end
    sampling: SamplingParams = SamplingParams()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    include_special: bool = False  # special tokens become text
    deadline_s: float | None = None  # of the whole request, from admission


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token and its log-probability before temperature and filters."""

    token: int
    logprob: float


class TokenInfo(msgspec.Struct, frozen=True):
    """One generated token; `top` has the best alternatives when logprobs were asked for."""

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts and times of one request so far."""

    n_prompt: int
    n_prompt_cached: int = 0
    n_generated: int = 0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a stream. `text` never ends inside a character and never contains a stop string.

    The last delta has `finish` and `usage` set; `stopped_by` names the stop string that ended it, if one did.
    A delta may carry tokens without text (text held back) and text without tokens (the flush at the end).
    """

    text: str = ""
    tokens: tuple[TokenInfo, ...] = ()
    finish: FinishReason | None = None
    stopped_by: str | None = None
    usage: Usage | None = None


class PrefillProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Sent on a stream while a long prompt is processed."""

    n_done: int
    n_total: int
    n_cached: int
