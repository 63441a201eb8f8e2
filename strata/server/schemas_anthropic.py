"""Wire structs of Anthropic's dialect, for text."""

from __future__ import annotations

from typing import Any

import msgspec

from strata.server.schemas import Refusal


class TextBlock(msgspec.Struct, frozen=True):
    """One block of content; only type "text" is taken."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn."""

    role: str
    content: str | list[TextBlock]


class OutputConfig(msgspec.Struct, frozen=True):
    """How the answer should be; `effort` is told to the template as reasoning_effort."""

    effort: str | None = None
    format: Any = None


class Thinking(msgspec.Struct, frozen=True):
    """Whether the model reasons before it answers; "adaptive" leaves it to the model."""

    type: str


class PromptFields(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a prompt; /v1/messages/count_tokens takes only these."""

    model: str
    messages: list[Message]
    system: str | list[TextBlock] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(PromptFields, frozen=True, kw_only=True):
    """Body of /v1/messages."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # not Anthropic's own
    metadata: Any = None  # taken, without effect
    service_tier: Any = None  # taken, without effect
    cache_control: Any = None  # taken, without effect: prefixes are always reused


REFUSALS: dict[str, Refusal] = {
    "tool_choice": Refusal(
        ({"type": "auto"}, {"type": "none"}), "a forced tool call needs constrained output, which is not built in yet"
    ),
    "mcp_servers": Refusal(([],), "tools are run by the client"),
    "container": Refusal((), "there is no code execution"),
    "output_format": Refusal((), "constrained output is not built in yet"),
}
