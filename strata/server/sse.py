"""Framing of server-sent events. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

CONTENT_TYPE = "text/event-stream"
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def event(data: Any, name: str | None = None) -> bytes:
    """Return one event whose data is `data` as JSON, which never contains a line break."""
    head = b"data: " if name is None else b"event: " + name.encode() + b"\ndata: "
    return head + _encode(data) + b"\n\n"
