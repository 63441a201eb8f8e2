"""Sampling fields of a request -> the engine's SamplingParams, over the served model's defaults."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from strata.server.ports import ServedModel, TextTokenizer
from strata.server.problems import BadField
from strata.server.schemas import shown
from strata.server.schemas_openai import SamplingFields
from strata.types import SamplingParams

MAX_CHOICES = 128
MAX_STOPS = 64
MAX_STOP_CHARS = 1024  # each; a stop string's automaton is built before the request waits, while everyone else does

_ID_DIGITS = 20  # of a token id written as text

_SAME_NAMES = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "min_keep",
)


def sampling_params(fields: SamplingFields, model: ServedModel, n_logprobs: int | None) -> SamplingParams:
    """Return checked parameters with a seed. Raises: BadSampling, BadField."""
    given: dict[str, Any] = {name: getattr(fields, name) for name in _SAME_NAMES if getattr(fields, name) is not None}
    if fields.dry_sequence_breakers is not None:
        given["dry_sequence_breakers"] = tuple(fields.dry_sequence_breakers)
    if fields.logit_bias is not None:
        given["logit_bias"] = parse_logit_bias(fields.logit_bias, model.tokenizer)
    params = msgspec.structs.replace(model.defaults, **given, n_logprobs=n_logprobs)
    seed = fields.seed if fields.seed is not None else params.seed
    if seed is None or seed == -1:  # -1 is llama-server's word for a random one
        seed = secrets.randbits(63)
    return msgspec.structs.replace(params, seed=seed).checked(model.engine.limits.n_vocab)


def choice_params(params: SamplingParams, choice: int) -> SamplingParams:
    """Return the parameters of the n-th choice: the seeds of one request's choices are consecutive."""
    seed = params.seed
    return params if seed is None else msgspec.structs.replace(params, seed=(seed + choice) % 2**64)


def parse_logit_bias(raw: Any, tokenizer: TextTokenizer) -> tuple[tuple[int, float], ...]:
    """Read OpenAI's {"id": bias} or llama-server's [[id or text, bias or false], ...]."""
    if isinstance(raw, dict):
        pairs: list[Any] = [[key, value] for key, value in raw.items()]
    elif isinstance(raw, list):
        pairs = raw
    else:
        raise BadField("logit_bias", f"logit_bias is {shown(raw)}; expected an object or a list of pairs")
    biases: dict[int, float] = {}
    for pair in pairs:
        for token in _bias_tokens(pair, tokenizer, is_pair=isinstance(raw, list)):
            biases[token] = _bias_value(pair)
    return tuple(biases.items())


def _bias_tokens(pair: Any, tokenizer: TextTokenizer, *, is_pair: bool) -> list[int]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise BadField("logit_bias", f"logit_bias has the entry {shown(pair)}; expected a token and its bias")
    key = pair[0]
    if isinstance(key, int) and not isinstance(key, bool):
        return [key]
    if is_pair and isinstance(key, str):
        return tokenizer.encode(key, add_special=False, parse_special=False)
    if isinstance(key, str) and len(key) <= _ID_DIGITS and key.isascii() and key.isdigit():
        return [int(key)]
    raise BadField("logit_bias", f"logit_bias names {shown(key)}; expected a token id")


def _bias_value(pair: list[Any]) -> float:
    value = pair[1]
    if value is False:
        return float("-inf")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadField("logit_bias", f"logit_bias of {shown(pair[0])} is {shown(value)}; expected a number or false")
    return float(value)


def parse_stop(stop: str | list[str] | None, name: str = "stop") -> tuple[str, ...]:
    """Return the stop strings. Raises: BadField for an empty string, or too many."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise BadField(name, f"{name} has {len(stops)} strings; accepted: up to {MAX_STOPS}")
    if "" in stops:
        raise BadField(name, f"{name} holds an empty string, which would stop before the first token")
    if (longest := max(map(len, stops), default=0)) > MAX_STOP_CHARS:
        raise BadField(name, f"{name} holds a string of {longest} characters; accepted: up to {MAX_STOP_CHARS}")
    return stops


def parse_n(n: int | None) -> int:
    if n is not None and not 1 <= n <= MAX_CHOICES:
        raise BadField("n", f"n is {n}; accepted: 1 to {MAX_CHOICES}")
    return n or 1


def max_tokens_of(model: ServedModel, given: tuple[tuple[str, int | None], ...]) -> int | None:
    """Return the first given limit, else the model's; None and -1: up to the context's end. Raises: BadField."""
    for name, value in given:
        if value is None:
            continue
        if value == -1:
            return None
        if value < 1:
            raise BadField(name, f"{name} is {value}; accepted: 1 or more, or -1 for up to the context's end")
        return value
    return model.max_tokens
