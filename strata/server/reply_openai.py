"""Answers in OpenAI's words: whole ones, and the chunks of streamed ones. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strata import __version__
from strata.errors import StrataError
from strata.server import sse
from strata.server.generation import Answer
from strata.server.ports import TextTokenizer
from strata.server.problems import Dialect, envelope
from strata.types import Delta, FinishReason, TokenInfo, TokenLogprob, Usage

FINGERPRINT = f"strata-{__version__}"
_MIN_LOGPROB = -9999.0  # JSON has no infinity


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What every chunk and every whole answer of one request repeat."""

    id: str
    created: int  # unix seconds
    model: str
    tokenizer: TextTokenizer
    n_choices: int
    n_choices_per_prompt: int = 1
    n_logprobs: int | None = None
    include_usage: bool = False

    def body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        }


# ---- pieces ---------------------------------------------------------------------------------------------------


def finish_word(finish: FinishReason | None) -> str | None:
    return None if finish is None else {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}.get(finish, "stop")


def usage_body(usages: Sequence[Usage | None], n_choices_per_prompt: int) -> dict[str, Any]:
    """Return the token counts of a request; the choices of one prompt count it once."""
    known = [usage for usage in usages if usage is not None]
    n_prompt = sum(usage.n_prompt for usage in known[::n_choices_per_prompt])
    n_generated = sum(usage.n_generated for usage in known)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.n_prompt_cached for usage in known[::n_choices_per_prompt])
        },
    }


def timings_body(usage: Usage) -> dict[str, Any]:
    """Return llama-server's timings of one sequence: counts, milliseconds, tokens per second."""
    n_prompt_run = usage.n_prompt - usage.n_prompt_cached
    return {
        "cache_n": usage.n_prompt_cached,
        "prompt_n": n_prompt_run,
        "prompt_ms": usage.prefill_s * 1e3,
        "prompt_per_second": n_prompt_run / usage.prefill_s if usage.prefill_s > 0 else None,
        "predicted_n": usage.n_generated,
        "predicted_ms": usage.decode_s * 1e3,
        # the first token is drawn by the prompt's last step
        "predicted_per_second": (usage.n_generated - 1) / usage.decode_s if usage.decode_s > 0 else None,
        "queued_ms": usage.queued_s * 1e3,
    }


def _token_bytes(tokenizer: TextTokenizer, token: int) -> bytes:
    return tokenizer.token_bytes(token) or tokenizer.token_text(token).encode()


def _finite(logprob: float | None) -> float:
    return _MIN_LOGPROB if logprob is None or not logprob > _MIN_LOGPROB else logprob


def chat_logprobs(tokenizer: TextTokenizer, tokens: Sequence[TokenInfo]) -> dict[str, Any]:
    """Return chat's logprobs object of some tokens."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        raw = _token_bytes(tokenizer, token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(raw)}

    content = [
        entry(info.token, info.logprob) | {"top_logprobs": [entry(top.token, top.logprob) for top in info.top]}
        for info in tokens
    ]
    return {"content": content, "refusal": None}


class LegacyLogprobs:
    """Plain completions' logprobs of one choice, which tell the place of each token in the text."""

    def __init__(self, tokenizer: TextTokenizer, n_chars_before: int = 0) -> None:
        self._tokenizer = tokenizer
        self._n_chars = n_chars_before
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may span tokens

    def body(self, tokens: Sequence[TokenInfo]) -> dict[str, Any]:
        offsets: list[int] = []
        for info in tokens:
            offsets.append(self._n_chars)
            self._n_chars += len(self._decoder.decode(self._tokenizer.token_bytes(info.token)))
        return {
            "tokens": [self._text(info.token) for info in tokens],
            "token_logprobs": [_finite(info.logprob) for info in tokens],
            "top_logprobs": [self._top(info.top) for info in tokens],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return _token_bytes(self._tokenizer, token).decode("utf-8", "replace")

    def _top(self, top: tuple[TokenLogprob, ...]) -> dict[str, float]:
        best: dict[str, float] = {}
        for entry in top:  # best first; two tokens may look the same
            best.setdefault(self._text(entry.token), _finite(entry.logprob))
        return best


# ---- whole answers --------------------------------------------------------------------------------------------


def chat_reply(head: ReplyHead, answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the body of a whole chat answer."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": None if head.n_logprobs is None else chat_logprobs(head.tokenizer, answer.tokens),
            "finish_reason": finish_word(answer.finish),
        }
        for index, answer in enumerate(answers)
    ]
    return _whole(head, "chat.completion", choices, answers)


def completion_reply(head: ReplyHead, answers: Sequence[Answer], echoes: Sequence[str]) -> dict[str, Any]:
    """Return the body of a whole plain completion; echoes[i] is put before answer i."""
    choices = [
        {
            "index": index,
            "text": echo + answer.text,
            "logprobs": None
            if head.n_logprobs is None
            else LegacyLogprobs(head.tokenizer, len(echo)).body(answer.tokens),
            "finish_reason": finish_word(answer.finish),
        }
        for index, (answer, echo) in enumerate(zip(answers, echoes, strict=True))
    ]
    return _whole(head, "text_completion", choices, answers)


def _whole(head: ReplyHead, kind: str, choices: list[dict[str, Any]], answers: Sequence[Answer]) -> dict[str, Any]:
    usages = [answer.usage for answer in answers]
    body = head.body(kind, choices) | {"usage": usage_body(usages, head.n_choices_per_prompt)}
    if len(usages) == 1 and usages[0] is not None:
        body["timings"] = timings_body(usages[0])
    return body


# ---- streamed answers -----------------------------------------------------------------------------------------


class _ChunkEncoder:
    """What both kinds of streams share: the usage at the end, [DONE], errors."""

    keep_alive = sse.KEEP_ALIVE
    kind = ""

    def __init__(self, head: ReplyHead) -> None:
        self._head = head
        self._usages: list[Usage | None] = [None] * head.n_choices

    def feed(self, index: int, delta: Delta) -> bytes:
        self._usages[index] = delta.usage
        has_logprobs = self._head.n_logprobs is not None and bool(delta.tokens)
        events = b""
        if delta.text or has_logprobs:
            events = self._chunk([self._choice(index, delta, has_logprobs=has_logprobs)])
        if delta.finish is not None:
            events += self._last_chunk(index, delta)
        return events

    def finish(self) -> bytes:
        if not self._head.include_usage:
            return sse.DONE
        body = self._head.body(self.kind, [])
        return sse.event(body | {"usage": usage_body(self._usages, self._head.n_choices_per_prompt)}) + sse.DONE

    def error(self, error: StrataError) -> bytes:
        return sse.event(envelope(error, Dialect.OPENAI, self._head.id), "error")

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        body = self._head.body(self.kind, choices) | more
        if self._head.include_usage:
            body["usage"] = None
        return sse.event(body)

    def _last_chunk(self, index: int, delta: Delta) -> bytes:
        timings = {} if delta.usage is None else {"timings": timings_body(delta.usage)}
        return self._chunk([self._end_choice(index, finish_word(delta.finish))], **timings)

    def _choice(self, index: int, delta: Delta, *, has_logprobs: bool) -> dict[str, Any]:
        raise NotImplementedError

    def _end_choice(self, index: int, finish: str | None) -> dict[str, Any]:
        raise NotImplementedError


class ChatEncoder(_ChunkEncoder):
    """Chunks of /v1/chat/completions."""

    kind = "chat.completion.chunk"

    def start(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return b"".join(
            self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
            for index in range(self._head.n_choices)
        )

    def _choice(self, index: int, delta: Delta, *, has_logprobs: bool) -> dict[str, Any]:
        logprobs = chat_logprobs(self._head.tokenizer, delta.tokens) if has_logprobs else None
        return {"index": index, "delta": {"content": delta.text}, "logprobs": logprobs, "finish_reason": None}

    def _end_choice(self, index: int, finish: str | None) -> dict[str, Any]:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": finish}


class CompletionEncoder(_ChunkEncoder):
    """Chunks of /v1/completions; echoes[i] is sent before choice i's own text."""

    kind = "text_completion"

    def __init__(self, head: ReplyHead, echoes: Sequence[str]) -> None:
        super().__init__(head)
        self._echoes = echoes
        self._logprobs = [LegacyLogprobs(head.tokenizer, len(echo)) for echo in echoes]

    def start(self) -> bytes:
        return b"".join(
            self._chunk([{"index": index, "text": echo, "logprobs": None, "finish_reason": None}])
            for index, echo in enumerate(self._echoes)
            if echo
        )

    def _choice(self, index: int, delta: Delta, *, has_logprobs: bool) -> dict[str, Any]:
        logprobs = self._logprobs[index].body(delta.tokens) if has_logprobs else None
        return {"index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": None}

    def _end_choice(self, index: int, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": finish}
