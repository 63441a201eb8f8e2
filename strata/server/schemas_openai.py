"""Wire structs of the OpenAI dialect, with llama-server's additions. None means "not given" throughout."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from strata.server.schemas import Refusal


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside its text."""

    include_usage: bool = False


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that chat and plain completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    logit_bias: Any = None
    max_tokens: int | None = None
    n_predict: int | None = None
    ignore_eos: bool | None = None
    deadline_s: float | None = None  # of this request; the server's own limit caps it

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repeat_last_n: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    min_keep: int | None = None
    n_probs: int | None = None

    # taken, without effect here
    cache_prompt: bool | None = None  # prefixes are always reused
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    parallel_tool_calls: Any = None
    id_slot: Any = None  # sequences have no fixed slots
    verbosity: Any = None


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message; fields that only a chat template reads are passed on as they came."""

    role: str
    content: str | list[ContentPart] | None = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    add_generation_prompt: bool | None = None


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of /v1/completions."""

    prompt: Any
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


class TemplateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /apply-template."""

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /tokenize."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /detokenize."""

    tokens: list[int]


_CONSTRAINED = "constrained output is not built in yet"
_SAMPLERS = "the samplers' order and kinds are fixed"

COMMON_REFUSALS: dict[str, Refusal] = {
    "response_format": Refusal(({"type": "text"},), _CONSTRAINED),
    "grammar": Refusal(("",), _CONSTRAINED),
    "json_schema": Refusal(({},), _CONSTRAINED),
    "samplers": Refusal((), _SAMPLERS),
    "mirostat": Refusal((0,), _SAMPLERS),
    "dynatemp_range": Refusal((0,), _SAMPLERS),
    "lora": Refusal(([],), "adapters are not loaded"),
    "n_keep": Refusal((0,), "the context is never shifted"),
    "n_indent": Refusal((0,), "no filter by indentation"),
    "t_max_predict_ms": Refusal((0, -1), "deadline_s limits a request's time"),
    "post_sampling_probs": Refusal((False,), "log-probabilities are those before the samplers"),
    "return_tokens": Refusal((False,), "ask for logprobs to see tokens"),
    "image_data": Refusal(([],), "the model takes text only"),
}

CHAT_REFUSALS: dict[str, Refusal] = COMMON_REFUSALS | {
    "tool_choice": Refusal(("auto", "none"), "a forced tool call needs constrained output, which is not built in yet"),
    "functions": Refusal(([],), "use tools"),
    "function_call": Refusal(("auto", "none"), "use tools and tool_choice"),
    "modalities": Refusal((["text"], []), "the model takes and gives text only"),
    "audio": Refusal((), "the model takes and gives text only"),
    "prediction": Refusal((), "predicted output is not used"),
    "web_search_options": Refusal((), "there is no web search"),
    "continue_final_message": Refusal((False,), "an answer always starts a new message"),
}

COMPLETION_REFUSALS: dict[str, Refusal] = COMMON_REFUSALS | {
    "suffix": Refusal(("",), "text is only continued, never filled in"),
    "input_prefix": Refusal(("",), "text is only continued, never filled in"),
    "input_suffix": Refusal(("",), "text is only continued, never filled in"),
}
