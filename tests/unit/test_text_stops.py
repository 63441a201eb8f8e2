"""Stop strings against the obvious definition, for any chunks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import RequestError
from strata.text.stops import StopMatcher

SMALL_TEXT = st.text(alphabet="abc", max_size=24)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=6)


def _first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first end of a stop string, the longest that ends there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def _held_back(text: str, stops: list[str]) -> str:
    """The longest end of `text` that begins a stop string."""
    return next(
        (text[i:] for i in range(len(text)) if any(stop.startswith(text[i:]) and stop != text[i:] for stop in stops)),
        "",
    )


@given(chunks=st.lists(SMALL_TEXT, max_size=8), stops=STOPS)
@settings(max_examples=600, deadline=None)
def test_like_the_definition(chunks: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown, seen = "", ""
    for chunk in chunks:
        result = matcher.feed(chunk)
        shown, seen = shown + result.emit, seen + chunk
        text, stop = _first_stop(seen, stops)
        assert result.stopped_by == stop
        assert shown == (text if stop is not None else text.removesuffix(_held_back(text, stops)))
    tail = matcher.flush()
    text, stop = _first_stop(seen, stops)
    assert shown + tail == text
    assert matcher.stopped_by == stop


@given(text=SMALL_TEXT, stops=STOPS, size=st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_chunks_do_not_matter(text: str, stops: list[str], size: int) -> None:
    whole, parts = StopMatcher(stops), StopMatcher(stops)
    expected = whole.feed(text).emit + whole.flush()
    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    assert "".join(parts.feed(chunk).emit for chunk in chunks) + parts.flush() == expected


def test_holds_back_only_what_may_become_a_stop() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.feed("Hello\n") == ("Hello", None)
    assert matcher.feed("\nUs") == ("", None)
    assert matcher.feed("ual") == ("\n\nUsual", None)
    assert matcher.feed("\n\nUser: x") == ("", "\n\nUser:")
    assert matcher.feed("more") == ("", "\n\nUser:")
    assert matcher.flush() == ""


def test_many_stops_and_long_text() -> None:
    """A quadratic matcher would not finish: 2,000 stop strings over 400,000 characters of near misses."""
    stops = ["a" * 200 + str(n) for n in range(2000)]
    matcher = StopMatcher(stops)
    emitted = sum(len(matcher.feed("a" * 1000).emit) for _ in range(400))
    assert emitted == 400_000 - 200
    assert matcher.feed("1999").stopped_by == stops[1]


def test_empty_stop_is_refused() -> None:
    with pytest.raises(RequestError, match="stop string is empty"):
        StopMatcher(["x", ""])
