"""What the server needs of the layers below it, as protocols; `strata.runtime` hands over the real objects.

Nothing here imports a tokenizer library, the native library or numpy: tests serve scripted engines by it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from strata.engine.backend import BackendLimits
from strata.types import Delta, PrefillProgress, Request, SamplingParams

if TYPE_CHECKING:
    from strata.engine.loop import EngineSnapshot
    from strata.text.chat import RenderedPrompt


class Stream(Protocol):
    """Output of one request. Iteration ends after the delta with `finish`; a failure raises StrataError once."""

    def __aiter__(self) -> AsyncIterator[Delta | PrefillProgress]: ...

    def abort(self, reason: str) -> None:
        """Stop the work at the next step border; synchronous and idempotent."""
        ...


class Engine(Protocol):
    """Runs requests; the real one is `strata.engine.loop.Engine`."""

    @property
    def limits(self) -> BackendLimits: ...

    def open_stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """Queue a request; leaving the block aborts it.

        Raises: NotReady, EngineStopped, Overloaded, ContextTooLong, BadSampling, RequestError.
        """
        ...

    def snapshot(self) -> EngineSnapshot: ...

    def drain(self) -> None:
        """Refuse new requests; the open ones go on."""
        ...

    def abort_all(self, reason: str) -> None:
        """Abort every open request; synchronous."""
        ...


class TextTokenizer(Protocol):
    """Text to token ids and back; the real one is `strata.text.tokenizer.Tokenizer`."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eog_ids(self) -> frozenset[int]: ...

    @property
    def control_texts(self) -> tuple[str, ...]: ...

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...

    def encode_prompt(self, text: str, *, literal_spans: Sequence[tuple[int, int]] = ()) -> list[int]:
        """Tokenize a rendered template; in the spans, text that spells a control token stays text."""
        ...

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str: ...

    def token_bytes(self, token: int, /) -> bytes: ...

    def token_text(self, token: int, /) -> str: ...


class PromptTemplate(Protocol):
    """Messages to prompt text; the real one is `strata.text.chat.ChatTemplate`.

    Raises: RequestError when the template itself refuses the messages.
    """

    def source_of(self) -> str: ...

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str: ...

    def render_prompt(
        self,
        messages: list[dict[str, Any]],
        control_texts: Sequence[str],
        *,
        tools: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> RenderedPrompt: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The one model of this process and everything that requests to it need."""

    id: str  # alias, or the file's stem
    created: int  # unix seconds
    tokenizer: TextTokenizer
    chat_template: PromptTemplate | None
    engine: Engine
    n_ctx: int
    defaults: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None  # of requests that name none; None: up to the context's end
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])  # a request's own ones win
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])  # description for /props and /v1/models
