"""Chat templates from the file: messages to the text that the model was trained on.

What lives here: which template, what it is given, and errors as the client should see them. What does not: the Jinja
dialect and its limits (`sandbox.py`), tokenizing the result (`Tokenizer.encode_prompt`).

What the client sends is fitted to what the template understands, found by trial renders as the file is loaded: text
parts become one string where the template wants strings, and a tool call's arguments become an object where the
template would otherwise escape the JSON a second time.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from strata.errors import ModelError, RequestError
from strata.text.metadata import Metadata, read_array, read_int, read_str
from strata.text.sandbox import MAX_TEMPLATE_CHARS, ChatEnvironment
from strata.text.vocabulary import DEFAULT_IDS

__all__ = ["RESERVED_VARIABLES", "ChatTemplate", "RenderedPrompt"]

RESERVED_VARIABLES = ("messages", "control_texts", "template", "tools", "add_generation_prompt")
"""Names that a render has places of its own for; extra variables may not take them."""

_KEY = "tokenizer.chat_template"
_DEFAULT = "default"
_TOOL_USE = "tool_use"
_NEEDLE = "strata needle"
# What running a template can raise besides Jinja's own errors.
_RENDER_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError)

Message = Mapping[str, Any]


class RenderedPrompt(NamedTuple):
    """A rendered template, and the character ranges in which no control token may be recognised."""

    text: str
    literal_spans: list[tuple[int, int]]


class ChatTemplate:
    """The templates of one model. Renders are serialised by a lock, so it may be shared between threads."""

    def __init__(
        self,
        templates: Mapping[str, str],
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile `templates` (name to Jinja source; the unnamed one is "default").

        Raises: ModelError for a template that is too long or does not compile.
        """
        self._source = source
        self._lock = threading.Lock()
        self._specials = {"bos_token": bos_token, "eos_token": eos_token}
        self._sources = dict(templates)
        self._compiled = {name: _Compiled(text, name, source, now) for name, text in templates.items()}
        self._fits: dict[str, _Fit] = {}

    @classmethod
    def from_metadata(cls, meta: Metadata, source: str) -> ChatTemplate | None:
        """The templates of a GGUF file, or None when it has none. Raises: ModelError as the constructor does."""
        templates: dict[str, str] = {}
        for key in meta:
            if key == _KEY or key.startswith(_KEY + "."):
                text = read_str(meta, source, key)
                if text is not None:
                    templates[key[len(_KEY) + 1 :] or _DEFAULT] = text
        if not templates:
            return None
        bos, eos = (_special_text(meta, source, name) for name in ("bos", "eos"))
        return cls(templates, source, bos_token=bos, eos_token=eos)

    @property
    def names(self) -> tuple[str, ...]:
        """The templates' names."""
        return tuple(self._sources)

    def source_of(self, name: str = _DEFAULT) -> str:
        """The Jinja text of one template. Raises: RequestError for an unknown name."""
        return self._sources[self._known(name)]

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for `messages`.

        Args:
            messages: dicts with "role" and "content" (text, text parts or None), as in OpenAI's chat API.
            tools: function declarations; a template named "tool_use" is used for them if the file has one.
            add_generation_prompt: end with the beginning of the assistant's answer.
            template: the name of another template of the file.
            kwargs: further variables of the template (enable_thinking, reasoning_effort, ...).

        Raises:
            RequestError: with the template's own message where it refuses the conversation.
        """
        name = self._choose(template, tools)
        fit = self._fit_of(name)
        fitted = [_fit_message(message, fit, position) for position, message in enumerate(messages)]
        return self._run(name, fitted, tools, add_generation_prompt=add_generation_prompt, **kwargs)

    def render_prompt(
        self,
        messages: Sequence[Message],
        control_texts: Sequence[str],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> RenderedPrompt:
        """As `render`, and also where text from outside spells a control token (`Tokenizer.control_texts`).

        With these spans `Tokenizer.encode_prompt` gives control tokens only where the template wrote them. Each such
        spelling is hidden from the template behind a placeholder, so it cannot mislead the template either.
        """
        disguise = _Disguise(control_texts)
        hidden = cast("list[Message]", disguise.hide(list(messages)))
        hidden_tools = None if tools is None else cast("list[Mapping[str, Any]]", disguise.hide(list(tools)))
        return disguise.reveal(self.render(hidden, tools=hidden_tools, **kwargs))

    # -- choosing and running

    def _known(self, name: str) -> str:
        if name not in self._sources:
            raise RequestError(f"{self._source} has no chat template {name!r}; it has: {', '.join(self._sources)}")
        return name

    def _choose(self, name: str | None, tools: Sequence[Any] | None) -> str:
        if name is not None:
            return self._known(name)
        return _TOOL_USE if tools and _TOOL_USE in self._sources else self._known(_DEFAULT)

    def _run(self, name: str, messages: Sequence[Message], tools: Sequence[Any] | None, **variables: Any) -> str:
        context = {"documents": None, **self._specials, **variables, "messages": messages, "tools": tools or None}
        with self._lock:
            try:
                return self._compiled[name].render(context)
            except TemplateError as error:
                raise RequestError(f"chat template: {error.message or type(error).__name__}") from error
            except _RENDER_ERRORS as error:
                raise RequestError(f"chat template: {type(error).__name__}: {error}") from error

    def _fit_of(self, name: str) -> _Fit:
        if name not in self._fits:
            self._fits[name] = self._probe(name)
        return self._fits[name]

    def _probe(self, name: str) -> _Fit:
        """Find out what the template understands, by renders with a text that cannot be missed."""

        def shows(needles: Sequence[str], *messages: Message) -> bool:
            try:
                text = self._run(name, messages, None, add_generation_prompt=False)
            except RequestError:
                return False
            return any(needle in text for needle in needles)

        def user(content: object) -> Message:
            return {"role": "user", "content": content}

        def calling(arguments: object) -> list[Message]:
            function = {"name": "probe", "arguments": arguments}
            call = {"id": "call00001", "type": "function", "function": function}
            answer = {"role": "tool", "tool_call_id": "call00001", "name": "probe", "content": "x"}
            return [user("x"), {"role": "assistant", "content": "", "tool_calls": [call]}, answer]

        parts = [{"type": "text", "text": _NEEDLE}]
        listed = shows([_NEEDLE], user(parts)) and not shows(["'type'", '"type"'], user(parts))
        argument = {_NEEDLE: 1}
        as_text = [f'"{_NEEDLE}":', f"'{_NEEDLE}':"]  # JSON inside JSON would have backslashes here
        return _Fit(
            takes_parts=listed,
            takes_text=shows([_NEEDLE], user(_NEEDLE)) or not listed,
            wants_object=not shows(as_text, *calling(json.dumps(argument))) and shows([_NEEDLE], *calling(argument)),
        )


class _Fit(NamedTuple):
    """What a template understands."""

    takes_parts: bool
    takes_text: bool
    wants_object: bool


class _Compiled:
    """One compiled template in its own environment."""

    def __init__(self, text: str, name: str, source: str, now: Callable[[], datetime]) -> None:
        if len(text) > MAX_TEMPLATE_CHARS:
            raise ModelError(
                f"{source}: chat template {name!r} has {len(text)} characters; accepted: up to {MAX_TEMPLATE_CHARS}"
            )
        self._environment = ChatEnvironment(now)
        try:
            self._template = self._environment.from_string(text)
        except (TemplateSyntaxError, RecursionError) as error:
            line = f" line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
            raise ModelError(f"{source}: chat template {name!r} does not compile:{line}: {error}") from error

    def render(self, context: Mapping[str, Any]) -> str:
        self._environment.start_render()
        return self._template.render(context)


class _Disguise:
    """Replaces control token texts in client data by placeholders, and finds them again in the rendered text.

    A placeholder is a number between two private-use characters; those characters themselves are replaced too.
    """

    _OPEN, _CLOSE = "\U000fde00", "\U000fde01"
    _PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")

    def __init__(self, control_texts: Sequence[str]) -> None:
        longest_first = sorted({*control_texts, self._OPEN, self._CLOSE}, key=len, reverse=True)
        self._texts = longest_first
        self._number = {text: number for number, text in enumerate(longest_first)}

    def hide(self, value: object) -> object:
        """The same data with every string disguised."""
        if isinstance(value, str):
            present = [text for text in self._texts if text in value]
            if not present:
                return value
            pattern = re.compile("|".join(map(re.escape, present)))
            return pattern.sub(lambda m: f"{self._OPEN}{self._number[m.group()]}{self._CLOSE}", value)
        if isinstance(value, Mapping):
            return {key: self.hide(item) for key, item in cast("Mapping[str, object]", value).items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in cast("Sequence[object]", value)]
        return value

    def reveal(self, text: str) -> RenderedPrompt:
        """The text with the spellings back in place, and their ranges."""
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        length = done = 0
        for match in self._PLACEHOLDER.finditer(text):
            original = self._texts[int(match[1])]
            before = text[done : match.start()]
            spans.append((length + len(before), length + len(before) + len(original)))
            parts += (before, original)
            length, done = spans[-1][1], match.end()
        return RenderedPrompt("".join(parts) + text[done:], spans)


def _fit_message(message: Message, fit: _Fit, position: int) -> dict[str, Any]:
    """One message as the template wants it. Raises: RequestError for content that is no text."""
    fitted = dict(message)
    content = fitted.get("content")
    if isinstance(content, str) and not fit.takes_text:
        fitted["content"] = [{"type": "text", "text": content}]
    elif isinstance(content, list | tuple):
        parts = [_text_part(part, position) for part in cast("Sequence[object]", content)]
        fitted["content"] = parts if fit.takes_parts else "\n".join(part["text"] for part in parts)
    elif content is not None and not isinstance(content, str):
        raise RequestError(f"messages[{position}].content is {type(content).__name__}; accepted: text or text parts")
    if fit.wants_object and fitted.get("tool_calls"):
        fitted["tool_calls"] = [_object_call(call) for call in fitted["tool_calls"]]
    return fitted


def _text_part(part: object, position: int) -> dict[str, str]:
    fields = cast("Mapping[str, object]", part) if isinstance(part, Mapping) else {}
    text = fields.get("text")
    if fields.get("type") != "text" or not isinstance(text, str):
        shown = fields.get("type", part)
        raise RequestError(f"messages[{position}] has a content part {shown!r}; accepted: type 'text' with 'text'")
    return {"type": "text", "text": text}


def _object_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call whose arguments, if they are the JSON text of an object, are that object."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return dict(call)
    return {
        **call,
        "function": {**function, "arguments": arguments if isinstance(arguments, dict) else function["arguments"]},
    }


def _special_text(meta: Metadata, source: str, name: str) -> str:
    """The text of the begin or end token, empty when there is none."""
    token_id = read_int(meta, source, f"tokenizer.ggml.{name}_token_id")
    if token_id is None:
        token_id = DEFAULT_IDS.get(read_str(meta, source, "tokenizer.ggml.model") or "", {}).get(name)
    texts = read_array(meta, source, "tokenizer.ggml.tokens")
    if token_id is None or texts is None or not 0 <= token_id < len(texts):
        return ""
    return str(texts[token_id])
