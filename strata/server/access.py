"""Who may call: API keys, and the routes that need none."""

from __future__ import annotations

import hmac
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from strata.config import ServerConfig
from strata.errors import ConfigError
from strata.server.problems import BadKey

OPEN_PATHS = frozenset({"/health", "/ready"})


def read_keys(config: ServerConfig) -> tuple[bytes, ...]:
    """Return the accepted keys. Raises: ConfigError when the key file cannot be read or holds none."""
    keys = list(config.api_keys)
    if config.api_key_file is not None:
        try:
            lines = Path(config.api_key_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the API key file {config.api_key_file} cannot be read: {error}") from error
        from_file = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not from_file:
            raise ConfigError(f"the API key file {config.api_key_file} holds no key")
        keys += from_file
    if "" in keys:
        raise ConfigError("an API key is empty")
    return tuple(key.encode() for key in keys)


class KeyGuard:
    """ASGI middleware that lets requests through that carry a known key, as Bearer token or as x-api-key."""

    def __init__(self, app: ASGIApp, keys: tuple[bytes, ...], refuse: ASGIApp) -> None:
        self._app = app
        self._keys = keys
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        needs_key = scope["type"] == "http" and bool(self._keys) and scope["path"] not in OPEN_PATHS
        if needs_key and not any(self._is_known(key) for key in _offered(Headers(scope=scope))):
            await self._refuse(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_known(self, key: str) -> bool:
        """Compare with every key, always to the end, so that time tells nothing."""
        return sum(hmac.compare_digest(key.encode("latin-1"), known) for known in self._keys) > 0


def _offered(headers: Headers) -> list[str]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    offered = [token.strip()] if scheme.lower() == "bearer" else []
    return [*offered, *headers.getlist("x-api-key")]


def key_problem() -> BadKey:
    return BadKey("the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'")
