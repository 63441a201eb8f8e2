"""Answers in Anthropic's words: the whole message, and the events of a streamed one. Pure."""

from __future__ import annotations

from typing import Any

from strata.errors import StrataError
from strata.server import sse
from strata.server.generation import Answer
from strata.server.problems import Dialect, envelope
from strata.types import Delta, FinishReason, Usage

_PING = sse.event({"type": "ping"}, "ping")


def stop_reason(answer: Answer, max_tokens: int) -> str | None:
    """Translate why an answer ended."""
    if answer.finish is None:
        return None
    if answer.finish is FinishReason.LENGTH:
        is_cut_by_context = answer.usage is not None and answer.usage.n_generated < max_tokens
        return "model_context_window_exceeded" if is_cut_by_context else "max_tokens"
    return "end_turn" if answer.stopped_by is None else "stop_sequence"


def usage_body(usage: Usage) -> dict[str, int]:
    """Return the token counts; Anthropic's input_tokens leave out what came from the cache."""
    return {
        "input_tokens": usage.n_prompt - usage.n_prompt_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.n_prompt_cached,
        "output_tokens": usage.n_generated,
    }


def message_body(message_id: str, model: str, answer: Answer, max_tokens: int) -> dict[str, Any]:
    """Return a whole answer."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": answer.text}],
        "stop_reason": stop_reason(answer, max_tokens),
        "stop_sequence": answer.stopped_by,
        "usage": usage_body(answer.usage or Usage(n_prompt=0)),
    }


class MessageEncoder:
    """Events of a streamed answer.

    message_start, content_block_start, ping, content_block_delta..., content_block_stop, message_delta, message_stop
    """

    keep_alive = _PING

    def __init__(self, message_id: str, model: str, n_prompt: int, max_tokens: int) -> None:
        self._message_id = message_id
        self._model = model
        self._n_prompt = n_prompt
        self._max_tokens = max_tokens

    def start(self) -> bytes:
        message = message_body(self._message_id, self._model, Answer(usage=Usage(n_prompt=self._n_prompt)), 1)
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return (
            sse.event({"type": "message_start", "message": message | {"content": []}}, "message_start")
            + sse.event(block, "content_block_start")
            + _PING
        )

    def feed(self, index: int, delta: Delta) -> bytes:
        events = b""
        if delta.text:
            text = {"type": "text_delta", "text": delta.text}
            events = sse.event({"type": "content_block_delta", "index": 0, "delta": text}, "content_block_delta")
        if delta.finish is not None:
            events += self._end(delta)
        return events

    def finish(self) -> bytes:
        return sse.event({"type": "message_stop"}, "message_stop")

    def error(self, error: StrataError) -> bytes:
        return sse.event(envelope(error, Dialect.ANTHROPIC, self._message_id), "error")

    def _end(self, delta: Delta) -> bytes:
        answer = Answer()
        answer.add(delta)
        end = {
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason(answer, self._max_tokens), "stop_sequence": delta.stopped_by},
            "usage": usage_body(delta.usage or Usage(n_prompt=self._n_prompt)),
        }
        return sse.event({"type": "content_block_stop", "index": 0}, "content_block_stop") + sse.event(
            end, "message_delta"
        )
