"""Anthropic's API: /v1/messages and /v1/messages/count_tokens, for text."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from strata.server.exchange import Exchange, JsonReply, Reply
from strata.server.generation import collect, engine_deadline_s, note_usage
from strata.server.problems import BadField
from strata.server.prompts import ChatPrompt, encode_chat
from strata.server.reply_anthropic import MessageEncoder, message_body
from strata.server.responses import SseResponse
from strata.server.sampling import parse_stop, sampling_params
from strata.server.schemas import decode, shown
from strata.server.schemas_anthropic import REFUSALS, MessagesRequest, PromptFields, TextBlock
from strata.server.schemas_openai import SamplingFields
from strata.types import Request


async def messages(exchange: Exchange) -> Reply:
    """POST /v1/messages"""
    fields, _ = decode(exchange.body, MessagesRequest, REFUSALS)
    model = exchange.services.model
    if fields.max_tokens < 1:
        raise BadField("max_tokens", f"max_tokens is {fields.max_tokens}; accepted: 1 or more")
    chat = _chat_prompt(fields, fields.chat_template_kwargs)
    sampling = SamplingFields(temperature=fields.temperature, top_p=fields.top_p, top_k=fields.top_k)
    stop = parse_stop(fields.stop_sequences, "stop_sequences")
    exchange.admit(1)
    prompt = await encode_chat(model, chat)
    request = Request(
        request_id=f"{exchange.request_id}.0",
        prompt=tuple(prompt),
        max_tokens=fields.max_tokens,
        sampling=sampling_params(sampling, model, None),
        stop=stop,
        deadline_s=engine_deadline_s(exchange, None),
    )
    message_id = f"msg_{secrets.token_hex(12)}"
    if fields.stream:
        return SseResponse([request], MessageEncoder(message_id, model.id, len(prompt), fields.max_tokens))
    (answer,) = await collect(exchange, [request])
    note_usage(exchange, [answer.usage])
    return JsonReply(message_body(message_id, model.id, answer, fields.max_tokens))


async def count_tokens(exchange: Exchange) -> Reply:
    """POST /v1/messages/count_tokens"""
    fields, _ = decode(exchange.body, PromptFields, REFUSALS)
    prompt = await encode_chat(exchange.services.model, _chat_prompt(fields, None))
    return JsonReply({"input_tokens": len(prompt)})


def _chat_prompt(fields: PromptFields, template_kwargs: dict[str, Any] | None) -> ChatPrompt:
    """Return the conversation in the words of chat templates. Raises: BadField."""
    is_without_tools = isinstance(fields.tool_choice, dict) and fields.tool_choice == {"type": "none"}
    return ChatPrompt(
        messages=_turns(fields),
        tools=None if is_without_tools else _tools(fields.tools or []),
        variables=_effort(fields) | (template_kwargs or {}),
    )


def _turns(fields: PromptFields) -> list[dict[str, Any]]:
    if not fields.messages:
        raise BadField("messages", "messages is empty; at least one is needed")
    if fields.messages[-1].role == "assistant":
        raise BadField("messages", "messages ends with an assistant turn; going on with it is not supported")
    turns: list[dict[str, Any]] = []
    if fields.system:
        turns.append({"role": "system", "content": _text(fields.system, "system")})
    for i, message in enumerate(fields.messages):
        if message.role not in {"user", "assistant", "system"}:
            path = f"messages[{i}].role"
            raise BadField(path, f"{path} is {shown(message.role)}; accepted: user, assistant, system")
        turns.append({"role": message.role, "content": _text(message.content, f"messages[{i}].content")})
    return turns


def _effort(fields: PromptFields) -> dict[str, Any]:
    """Return what is said about reasoning as template variables."""
    thinking, output = fields.thinking, fields.output_config
    if thinking is not None and thinking.type not in {"disabled", "adaptive"}:
        raise BadField(
            "thinking.type",
            f"thinking.type is {shown(thinking.type)}, which is not supported: reasoning is not told apart from the"
            " answer yet; accepted: disabled, adaptive",
        )
    if output is None:
        return {}
    if output.format is not None:
        raise BadField(
            "output_config.format", "output_config.format is not supported: constrained output is not built in yet"
        )
    return {} if output.effort is None else {"reasoning_effort": output.effort}


def _text(content: str | Sequence[TextBlock], path: str) -> str:
    if isinstance(content, str):
        return content
    for i, block in enumerate(content):
        if block.type != "text":
            raise BadField(f"{path}[{i}].type", f"{path}[{i}].type is {shown(block.type)}; accepted: text")
        if block.text is None:
            raise BadField(f"{path}[{i}].text", f"{path}[{i}].text is missing")
    return "\n".join(block.text or "" for block in content)


class _Tool(msgspec.Struct):
    """A tool that the client runs."""

    name: str
    input_schema: dict[str, Any]
    description: str = ""


def _tools(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tool declarations as chat templates read them. Raises: BadField."""
    tools: list[dict[str, Any]] = []
    for i, entry in enumerate(raw):
        try:
            tool = msgspec.convert(entry, _Tool)
        except msgspec.ValidationError as error:
            raise BadField(f"tools[{i}]", f"tools[{i}] is {shown(entry)}: {error}") from error
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        tools.append({"type": "function", "function": function})
    return tools
