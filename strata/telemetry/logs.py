"""Log output of the process: one line a message, for people or as JSON.

Modules log through `logging.getLogger("strata.<room>")`; numbers go into `extra={"fields": {...}}`, not into the text.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Literal, TextIO

import msgspec

ROOT = "strata"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


class TextFormatter(logging.Formatter):
    """`12:34:56 info server: request ended  status=200 duration_s=1.25`"""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        room = record.name.removeprefix(f"{ROOT}.")
        pairs = "".join(f" {key}={_plain(value)}" for key, value in _fields(record).items())
        line = f"{clock} {record.levelname.lower()} {room}: {record.getMessage()}{' ' if pairs else ''}{pairs}"
        return line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (unix seconds), level, logger, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info is not None:
            entry["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry, enc_hook=str).decode()


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value)
    return repr(text) if not text or any(c.isspace() or not c.isprintable() for c in text) else text


def configure_logs(
    level: str = "info", style: Literal["text", "json"] = "text", stream: TextIO | None = None
) -> logging.Logger:
    """Send everything under the `strata` logger to `stream` (stderr unless given), and nothing to the root logger."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logger = logging.getLogger(ROOT)
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    return logger
