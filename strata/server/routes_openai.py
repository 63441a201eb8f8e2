"""OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from strata.errors import RequestError
from strata.server.exchange import Exchange, JsonReply, Reply
from strata.server.generation import collect, engine_deadline_s, note_usage
from strata.server.ports import ServedModel
from strata.server.problems import BadField, NoSuchModel
from strata.server.prompts import ChatPrompt, check_messages, encode_chat, encode_text, parse_prompts
from strata.server.reply_openai import (
    ChatEncoder,
    CompletionEncoder,
    ReplyHead,
    chat_reply,
    completion_reply,
)
from strata.server.responses import SseResponse
from strata.server.sampling import choice_params, max_tokens_of, parse_n, parse_stop, sampling_params
from strata.server.schemas import decode
from strata.server.schemas_openai import (
    CHAT_REFUSALS,
    COMPLETION_REFUSALS,
    ChatRequest,
    CompletionRequest,
    SamplingFields,
)
from strata.types import MAX_LOGPROBS, Request


async def chat_completions(exchange: Exchange) -> Reply:
    """POST /v1/chat/completions"""
    fields, raw = decode(exchange.body, ChatRequest, CHAT_REFUSALS)
    model = exchange.services.model
    n_choices = parse_n(fields.n)
    limits = (
        ("max_completion_tokens", fields.max_completion_tokens),
        ("max_tokens", fields.max_tokens),
        ("n_predict", fields.n_predict),
    )
    max_tokens = max_tokens_of(model, limits)
    check_messages(fields.messages)
    n_logprobs = _chat_logprobs_wish(fields)
    exchange.admit(n_choices)
    chat = ChatPrompt(
        messages=raw["messages"],
        tools=None if fields.tool_choice == "none" else fields.tools,
        add_generation_prompt=fields.add_generation_prompt is not False,
        variables=template_variables(fields.chat_template_kwargs, fields.reasoning_effort),
    )
    prompt = await encode_chat(model, chat)
    requests = _requests(exchange, fields, [prompt] * n_choices, n_choices, max_tokens, n_logprobs)
    head = _head(model, fields, "chatcmpl", len(requests), n_choices, n_logprobs)
    if fields.stream:
        return SseResponse(requests, ChatEncoder(head))
    answers = await collect(exchange, requests)
    note_usage(exchange, [answer.usage for answer in answers])
    return JsonReply(chat_reply(head, answers))


async def completions(exchange: Exchange) -> Reply:
    """POST /v1/completions"""
    fields, _ = decode(exchange.body, CompletionRequest, COMPLETION_REFUSALS)
    model = exchange.services.model
    n_choices = parse_n(fields.n)
    n_logprobs = _completion_logprobs_wish(fields)
    max_tokens = max_tokens_of(model, (("max_tokens", fields.max_tokens), ("n_predict", fields.n_predict)))
    prompts = parse_prompts(fields.prompt)
    exchange.admit(len(prompts) * n_choices)
    prompt_ids = [await encode_text(model, prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    for ids in prompt_ids:
        _check_ids(ids, model)
    per_sequence = [ids for ids in prompt_ids for _ in range(n_choices)]
    requests = _requests(exchange, fields, per_sequence, n_choices, max_tokens, n_logprobs)
    head = _head(model, fields, "cmpl", len(requests), n_choices, n_logprobs)
    echoes = [_echo(model, prompt) if fields.echo else "" for prompt in prompts for _ in range(n_choices)]
    if fields.stream:
        return SseResponse(requests, CompletionEncoder(head, echoes))
    answers = await collect(exchange, requests)
    note_usage(exchange, [answer.usage for answer in answers])
    return JsonReply(completion_reply(head, answers, echoes))


async def list_models(exchange: Exchange) -> Reply:
    """GET /v1/models, for both dialects: OpenAI's and Anthropic's fields do not collide."""
    entry = model_entry(exchange.services.model)
    ends = {"has_more": False, "first_id": entry["id"], "last_id": entry["id"]}
    return JsonReply({"object": "list", "data": [entry], **ends})


async def get_model(exchange: Exchange) -> Reply:
    """GET /v1/models/{id}"""
    wanted: str = exchange.scope["path_params"]["id"]
    model = exchange.services.model
    if wanted != model.id:
        raise NoSuchModel(f"the model {wanted!r} is not served here; this server has {model.id!r}")
    return JsonReply(model_entry(model))


def model_entry(model: ServedModel) -> dict[str, Any]:
    """Describe the served model for a list of models."""
    return {
        "id": model.id,
        "object": "model",
        "type": "model",
        "created": model.created,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(model.created)),
        "owned_by": "strata",
        "display_name": model.id,
        "meta": {"n_ctx": model.n_ctx, "n_vocab": model.tokenizer.n_vocab, **model.meta},
    }


# ---- steps of both kinds --------------------------------------------------------------------------------------


def template_variables(kwargs: dict[str, Any] | None, reasoning_effort: str | None) -> dict[str, Any]:
    """Return a request's own template variables."""
    variables = dict(kwargs or {})
    if reasoning_effort is not None:
        variables.setdefault("reasoning_effort", reasoning_effort)
    return variables


def _requests(
    exchange: Exchange,
    fields: SamplingFields,
    prompts: Sequence[list[int]],
    n_choices: int,
    max_tokens: int | None,
    n_logprobs: int | None,
) -> list[Request]:
    """Return one engine request per sequence; those of one prompt are adjacent and have consecutive seeds."""
    params = sampling_params(fields, exchange.services.model, n_logprobs)
    stop = parse_stop(fields.stop)
    if fields.deadline_s is not None and not fields.deadline_s > 0:
        raise BadField("deadline_s", f"deadline_s is {fields.deadline_s}; accepted: more than 0")
    return [
        Request(
            request_id=f"{exchange.request_id}.{i}",
            prompt=tuple(prompt),
            max_tokens=max_tokens,
            sampling=choice_params(params, i % n_choices),
            stop=stop,
            ignore_eos=fields.ignore_eos is True,
            deadline_s=engine_deadline_s(exchange, fields.deadline_s),
        )
        for i, prompt in enumerate(prompts)
    ]


def _head(
    model: ServedModel, fields: SamplingFields, prefix: str, n_sequences: int, n_choices: int, n_logprobs: int | None
) -> ReplyHead:
    return ReplyHead(
        id=f"{prefix}-{secrets.token_hex(12)}",
        created=int(time.time()),
        model=model.id,
        tokenizer=model.tokenizer,
        n_choices=n_sequences,
        n_choices_per_prompt=n_choices,
        n_logprobs=n_logprobs,
        include_usage=fields.stream_options is not None and fields.stream_options.include_usage,
    )


def _chat_logprobs_wish(fields: ChatRequest) -> int | None:
    if fields.top_logprobs is not None and not fields.logprobs:
        raise BadField("top_logprobs", f"top_logprobs is {fields.top_logprobs}, which needs logprobs to be true")
    if fields.logprobs:
        return _in_logprobs_range("top_logprobs", fields.top_logprobs or fields.n_probs or 0)
    return _in_logprobs_range("n_probs", fields.n_probs) if fields.n_probs else None


def _completion_logprobs_wish(fields: CompletionRequest) -> int | None:
    if fields.best_of is not None and fields.best_of != parse_n(fields.n):
        raise BadField(
            "best_of", f"best_of is {fields.best_of}; supported: the same as n, which is {parse_n(fields.n)}"
        )
    if fields.logprobs is not None:
        if fields.echo:
            raise BadField("logprobs", "logprobs together with echo is not supported: only new tokens have them")
        return _in_logprobs_range("logprobs", fields.logprobs)
    return _in_logprobs_range("n_probs", fields.n_probs) if fields.n_probs else None


def _in_logprobs_range(name: str, value: int) -> int:
    if not 0 <= value <= MAX_LOGPROBS:
        raise BadField(name, f"{name} is {value}; accepted: 0 to {MAX_LOGPROBS}")
    return value


def _check_ids(ids: list[int], model: ServedModel) -> None:
    n_vocab = model.tokenizer.n_vocab
    wrong = next((token for token in ids if not 0 <= token < n_vocab), None)
    if wrong is not None:
        raise BadField("prompt", f"prompt holds the token id {wrong}; accepted: 0 to {n_vocab - 1}")
    if not ids:
        raise RequestError("the prompt is empty, and the model has no start token of its own")


def _echo(model: ServedModel, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt, special=True)
