"""Messages and prompts -> token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio

from strata.errors import RequestError
from strata.server.ports import PromptTemplate, ServedModel
from strata.server.problems import BadField
from strata.server.schemas import shown
from strata.server.schemas_openai import ChatMessage
from strata.text.chat import RESERVED_VARIABLES

# Text longer than this is rendered and tokenized in a thread, so that the step loop does not wait for it. A thread
# costs about 0.1 ms; tokenizers do some MB/s.
_INLINE_CHARS = 16_384

T = TypeVar("T")


async def _off_loop(n_chars: int, call: Callable[[], T]) -> T:
    if n_chars <= _INLINE_CHARS:
        return call()
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)


async def encode_text(
    model: ServedModel, text: str, *, add_special: bool = True, parse_special: bool = True
) -> list[int]:
    """Tokenize plain text; as a prompt, with what the model wants at its start, and special tokens as written."""
    encode = partial(model.tokenizer.encode, text, add_special=add_special, parse_special=parse_special)
    return await _off_loop(len(text), encode)


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as a chat template reads it."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    variables: dict[str, Any] = {}  # the request's own, over the model's

    @property
    def n_chars(self) -> int:
        return sum(len(str(message.get("content") or "")) for message in self.messages)


async def encode_chat(model: ServedModel, chat: ChatPrompt) -> list[int]:
    """Render and tokenize a conversation; control tokens count only where the template wrote them.

    Raises: RequestError when there is no template, or it refuses the messages; BadField.
    """
    template, tokenizer, kwargs = _template(model), model.tokenizer, _variables(model, chat)

    def render_and_encode() -> list[int]:
        prompt = template.render_prompt(chat.messages, tokenizer.control_texts, **kwargs)
        return tokenizer.encode_prompt(prompt.text, literal_spans=prompt.literal_spans)

    return await _off_loop(chat.n_chars, render_and_encode)


async def render_chat(model: ServedModel, chat: ChatPrompt) -> str:
    """Render a conversation. Raises: as encode_chat."""
    return await _off_loop(chat.n_chars, partial(_template(model).render, chat.messages, **_variables(model, chat)))


def _template(model: ServedModel) -> PromptTemplate:
    if model.chat_template is None:
        raise RequestError(
            f"the model {model.id} has no chat template; give one with --chat-template-file, or use /v1/completions"
        )
    return model.chat_template


def _variables(model: ServedModel, chat: ChatPrompt) -> dict[str, Any]:
    variables = {**model.template_kwargs, **chat.variables}
    for name in RESERVED_VARIABLES:
        if name in variables:
            raise BadField("chat_template_kwargs", f"chat_template_kwargs holds {name}, which has a place of its own")
    return {**variables, "tools": chat.tools or None, "add_generation_prompt": chat.add_generation_prompt}


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Refuse what is no text. Raises: BadField."""
    if not messages:
        raise BadField("messages", "messages is empty; at least one is needed")
    for i, message in enumerate(messages):
        for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
            path = f"messages[{i}].content[{j}]"
            if part.type != "text":
                raise BadField(f"{path}.type", f"{path}.type is {shown(part.type)}; accepted: text")
            if part.text is None:
                raise BadField(f"{path}.text", f"{path}.text is missing")


def parse_prompts(prompt: Any) -> list[str | list[int]]:
    """Read a completion's prompt: a text, a list of token ids, or a list of either. Raises: BadField."""
    if isinstance(prompt, str) or _is_ids(prompt):
        return [prompt]
    if isinstance(prompt, list) and prompt and all(isinstance(part, str) or _is_ids(part) for part in prompt):
        return prompt
    raise BadField("prompt", f"prompt is {shown(prompt)}; expected a text, a list of token ids, or a list of either")


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)
