"""Errors that only HTTP has, and the error envelopes of both dialects."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import msgspec
from starlette.types import Scope

from strata.errors import Overloaded, RequestError, StrataError


class Dialect(StrEnum):
    """Whose error envelope a client expects."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class BadField(RequestError):
    """One field of the request is wrong; `param` is its path, such as messages[0].content."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class BadKey(StrataError):
    """The API key is missing or unknown."""

    http_status = 401
    code = "invalid_api_key"


class NoSuchRoute(StrataError):
    """Nothing is served under this path."""

    http_status = 404
    code = "not_found"


class NoSuchModel(NoSuchRoute):
    """The request names a model that this process does not serve."""

    code = "model_not_found"


class WrongMethod(StrataError):
    """The path exists, for other HTTP methods."""

    http_status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTooSlow(StrataError):
    """The client stopped sending in the middle of the request's body."""

    http_status = 408
    code = "request_timeout"


class BodyTooLarge(StrataError):
    """The request's body is larger than the server takes."""

    http_status = 413
    code = "request_too_large"


class ClientGone(Exception):
    """The connection ended; nobody is left to answer. Never reaches a client."""


_OPENAI_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def envelope(error: StrataError, dialect: Dialect, request_id: str) -> dict[str, Any]:
    """Return the JSON body that tells a client of `error` in its own dialect."""
    status, message = error.http_status, str(error)
    default = "invalid_request_error" if status < 500 else None
    if dialect is Dialect.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(status, default or "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
    kind = _OPENAI_TYPES.get(status, default or "server_error")
    return {"error": {"message": message, "type": kind, "param": getattr(error, "param", None), "code": error.code}}


def error_body(error: StrataError, dialect: Dialect, request_id: str) -> bytes:
    return msgspec.json.encode(envelope(error, dialect, request_id))


def error_headers(error: StrataError) -> list[tuple[bytes, bytes]]:
    """Return the headers that belong to an error's status."""
    if isinstance(error, Overloaded):
        return [(b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode())]
    if isinstance(error, BadKey):
        return [(b"www-authenticate", b"Bearer")]
    if isinstance(error, WrongMethod):
        return [(b"allow", error.allow.encode())]
    return []


def dialect_of(scope: Scope) -> Dialect:
    """Tell which API a request speaks: Anthropic's has paths of its own and a version header."""
    is_anthropic = scope["path"].startswith("/v1/messages") or any(
        name == b"anthropic-version" for name, _ in scope["headers"]
    )
    return Dialect.ANTHROPIC if is_anthropic else Dialect.OPENAI
