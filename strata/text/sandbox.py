"""The Jinja environment for chat templates. A template comes with a model file: it is not trusted.

What it may not do: reach attributes outside the data (Jinja's immutable sandbox), loop for ever, or build huge values.
Loop passes and printed characters are counted per render, and every operation that can multiply a string or list is
bounded, so that a render ends soon and within some hundred megabytes.

The dialect is the one of Hugging Face's `apply_chat_template`: `trim_blocks`, `lstrip_blocks`, loop controls, plain
JSON from `tojson`, `raise_exception`, `strftime_now`, and `generation` blocks, whose content is rendered as it is. Of
llama.cpp's dialect it knows the filter `from_json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

__all__ = ["MAX_TEMPLATE_CHARS", "ChatEnvironment"]

MAX_TEMPLATE_CHARS = 1 << 20
MAX_VALUE_ITEMS = 1 << 24
"""Characters of one string, entries of one list, and characters printed by one render."""
MAX_LOOP_PASSES = 1_000_000
"""Passes of all loops of one render together."""
MAX_ARGUMENT = 1 << 16
"""Largest integer passed to a method, filter or exponent: widths and counts, not data."""

_ENTRY_CHARS = 8
"""What an entry of a list or object counts for, beside its text, where a whole value becomes text."""

_WIDE_FORMAT = re.compile(r"\d{5}|\*|\{[^{}]*\{")
_HOLDERS = (str, list, tuple, dict)
_WITH_TEXT_PER_CHAR = ("wordwrap", "urlize", "translate")
_FILTERS_WITH_SIZES = ("center", "indent", "wordwrap", "format", "replace", "join")


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's text for training; here only its content matters."""

    tags = {"generation"}  # noqa: RUF012  the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _JoinGuard(NodeTransformer):
    """Turns every `a ~ b` into a call that bounds the result."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _environment_call("joined", node.nodes)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """One environment per template; one render at a time, because it counts."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._passes = 0
        self._printed = 0
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
            finalize=self._count_printed,
        )
        helpers: dict[str, Any] = {
            "raise_exception": _raise_exception,
            "strftime_now": _clock(now),
        }
        cast("dict[str, Any]", self.globals).update(helpers)
        self.filters["tojson"] = _to_json
        self.filters["from_json"] = json.loads
        self.filters["_bounded"] = _bounded
        for name, function in self.filters.items():
            self.filters[name] = _guard_filter(name, function)

    def start_render(self) -> None:
        """Start the counts of a new render."""
        self._passes = 0
        self._printed = 0

    def counted(self, items: Iterable[Any]) -> _CountedItems:
        """What every loop iterates over instead of `items`."""
        return _CountedItems(items if isinstance(items, Sequence) else list(items), self._count_pass)

    def joined(self, *parts: Any) -> str:
        """What `~` does."""
        return _join("", parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse what would grow beyond the bounds before it is computed."""
        if operator == "**":
            _check_numbers((left, right))
        elif operator == "*":
            count = next((side for side in (left, right) if isinstance(side, int)), 0)
            sized = next((side for side in (left, right) if isinstance(side, str | list | tuple)), ())
            _check_size(len(sized) * count)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, [right])
        return _bounded(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Call a method, macro or helper with bounded numbers and a bounded result."""
        if getattr(obj, "__self__", None) is not self and obj is not self.globals["range"]:
            _check_numbers((*args, *kwargs.values()))
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            if obj.__name__ == "join" and args:
                args = (list(args[0]), *args[1:])  # what can be read only once is measured, too
            _check_text_method(owner, obj.__name__, [*args, *kwargs.values()])
        return _bounded(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's own `str.format`, for formats without huge widths."""
        owner = getattr(value, "__self__", None)
        wrapped = super().wrap_str_format(value)
        if wrapped is None or not isinstance(owner, str):
            return wrapped

        def bounded(*args: Any, **kwargs: Any) -> str:
            _check_format(owner, [*args, *kwargs.values()])
            return wrapped(*args, **kwargs)

        return bounded

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Put the guards into the syntax tree, where no variable of the template can replace them."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = _environment_call("counted", [cast("nodes.Expr", loop.iter)])
        for block in tree.find_all(nodes.AssignBlock):
            block.filter = nodes.Filter(block.filter, "_bounded", [], [], None, None, lineno=block.lineno)
        return cast("nodes.Template", _JoinGuard().visit(tree))

    def _count_pass(self) -> None:
        self._passes += 1
        if self._passes > MAX_LOOP_PASSES:
            raise SecurityError(f"the template loops more than {MAX_LOOP_PASSES} times")

    def _count_printed(self, value: Any) -> Any:
        if isinstance(value, str):
            self._printed += len(value)
            _check_size(self._printed)
        else:
            _check_whole(value)
        return value


class _CountedItems:
    """A sized iterable whose iterators count."""

    def __init__(self, items: Sequence[Any], count: Callable[[], None]) -> None:
        self._items = items
        self._count = count

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._count()
            yield item


def _environment_call(method: str, args: list[nodes.Expr]) -> nodes.Call:
    lineno = args[0].lineno
    return nodes.Call(nodes.EnvironmentAttribute(method, lineno=lineno), args, [], None, None, lineno=lineno)


def _guard_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        # Filters that want the environment or the context get it first; the value follows.
        value, *rest = args[1:] if hasattr(function, "jinja_pass_arg") else args
        _check_whole([value, *rest, *kwargs.values()])
        if name in _FILTERS_WITH_SIZES:
            _check_numbers((*rest, *kwargs.values()))
        if name == "join":
            value = list(value)
            _check_whole(value)
            _check_size(_joined_size(rest[0] if rest else "", value))
            args = (*args[: len(args) - len(rest) - 1], value, *rest)
        elif isinstance(value, str):
            _check_text_method(value, name, [*rest, *kwargs.values()])
        return _bounded(function(*args, **kwargs))

    if hasattr(function, "jinja_pass_arg"):
        guarded.jinja_pass_arg = function.jinja_pass_arg  # pyright: ignore[reportFunctionMemberAccess]
    return guarded


def _bounded(value: Any) -> Any:
    if isinstance(value, bytes):
        raise SecurityError("bytes are not available in a template")
    if isinstance(value, str | list | tuple):
        _check_size(len(cast("Sequence[Any]", value)))
    elif isinstance(value, int) and value.bit_length() > MAX_ARGUMENT:
        raise SecurityError(f"the template computes a number of more than {MAX_ARGUMENT} bits")
    return value


def _join(separator: str, parts: Sequence[Any]) -> str:
    _check_whole(parts)
    texts = [str(part) for part in parts]
    _check_size(_joined_size(separator, texts))
    return separator.join(texts)


def _joined_size(separator: object, parts: Sequence[Any]) -> int:
    lengths = sum(len(part) for part in parts if isinstance(part, str))
    return lengths + len(parts) * (len(separator) if isinstance(separator, str) else 0)


def _check_text_method(text: str, name: str, args: Sequence[Any]) -> None:
    """Methods and filters of strings whose result can be much longer than what they are given."""
    n_whole = _check_whole(args)
    if name == "format":
        _check_format(text, args)
    elif name in _WITH_TEXT_PER_CHAR:
        _check_size(len(text) * max(1, n_whole - _ENTRY_CHARS * len(args)))
    elif name == "indent":
        _check_size(len(text) + text.count("\n") * n_whole)
    elif name == "expandtabs":
        _check_size(len(text) + text.count("\t") * max((arg for arg in args if isinstance(arg, int)), default=8))
    elif name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        _check_size(len(text) + text.count(args[0]) * len(args[1]))
    elif name == "join" and args and isinstance(args[0], list | tuple):
        _check_size(_joined_size(text, cast("Sequence[Any]", args[0])))


def _check_format(text: str, args: Sequence[Any]) -> None:
    """Any field may show any argument, again and again."""
    _check_size(_check_whole(args) * max(text.count("%"), text.count("{"), 1))
    if _WIDE_FORMAT.search(text):
        raise SecurityError("a format with a width of five digits or a computed width is not available")


def _check_size(n_items: int) -> None:
    if n_items > MAX_VALUE_ITEMS:
        raise SecurityError(f"the template builds {n_items} characters or entries, the limit is {MAX_VALUE_ITEMS}")


def _check_whole(value: object, n_indent: int = 0) -> int:
    """Return about how long the text of a whole value is, and refuse it when that is too long.

    A list may hold one long string a million times.

    n_indent: characters that each level of nesting puts before an entry.
    """
    size, pending = 0, [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, list | tuple):
            entries = cast("Sequence[Any]", item)
            size += len(entries) * (_ENTRY_CHARS + depth * n_indent)
            pending.extend((entry, depth + 1) for entry in entries if isinstance(entry, _HOLDERS))
        elif isinstance(item, dict):
            fields = cast("dict[Any, Any]", item)
            size += len(fields) * (_ENTRY_CHARS + depth * n_indent)
            pending.extend((part, depth + 1) for pair in fields.items() for part in pair if isinstance(part, _HOLDERS))
        _check_size(size)
    return size


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_ARGUMENT:
            raise SecurityError(f"the number {value} is above {MAX_ARGUMENT}")


def _clock(now: Callable[[], datetime]) -> Callable[[str], str]:
    return lambda form: now().strftime(form)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: nothing is escaped for HTML, and non-ASCII text stays as it is."""
    _check_numbers((indent,))
    _check_whole(value, len(indent) if isinstance(indent, str) else max(indent or 0, 0))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_items_of,
    )


def _items_of(value: object) -> list[Any]:
    """What `map` and `select` give is no list in Jinja; templates written for other engines expect one."""
    if isinstance(value, Iterator):
        return list(cast("Iterator[Any]", value))
    raise TypeError(f"{type(value).__name__} is not JSON")
