"""The ASGI application: routes, middleware, and JSON answers for paths and methods that do not exist."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from strata.config import ServerConfig
from strata.errors import StrataError
from strata.server import routes_anthropic, routes_openai, routes_ops
from strata.server.access import KeyGuard, key_problem, read_keys
from strata.server.admission import Admission
from strata.server.exchange import Endpoint, Exchange, Handler, Reply, Services
from strata.server.ports import ServedModel
from strata.server.problems import NoSuchRoute, WrongMethod, dialect_of, error_body, error_headers
from strata.telemetry.metrics import Metrics
from strata.telemetry.tracing import NoTracing, Tracing

# path, method, handler, level of its log line
_ROUTES: tuple[tuple[str, str, Handler, int], ...] = (
    ("/v1/chat/completions", "POST", routes_openai.chat_completions, logging.INFO),
    ("/v1/completions", "POST", routes_openai.completions, logging.INFO),
    ("/v1/models", "GET", routes_openai.list_models, logging.INFO),
    ("/v1/models/{id:path}", "GET", routes_openai.get_model, logging.INFO),
    ("/v1/messages", "POST", routes_anthropic.messages, logging.INFO),
    ("/v1/messages/count_tokens", "POST", routes_anthropic.count_tokens, logging.INFO),
    ("/tokenize", "POST", routes_ops.tokenize, logging.INFO),
    ("/detokenize", "POST", routes_ops.detokenize, logging.INFO),
    ("/apply-template", "POST", routes_ops.apply_template, logging.INFO),
    ("/props", "GET", routes_ops.props, logging.INFO),
    ("/health", "GET", routes_ops.health, logging.DEBUG),
    ("/ready", "GET", routes_ops.ready, logging.DEBUG),
    ("/metrics", "GET", routes_ops.metrics, logging.DEBUG),
)


@dataclass(frozen=True, slots=True)
class App:
    """The application, and the parts that its shutdown needs."""

    asgi: ASGIApp
    services: Services


def build_app(
    model: ServedModel, config: ServerConfig, *, metrics: Metrics | None = None, tracing: Tracing | None = None
) -> App:
    """Return the application that serves `model`. Raises: ConfigError for API keys that cannot be used."""
    services = Services(
        model=model,
        config=config,
        admission=Admission(model.engine.limits.max_seqs, config.max_waiting, config.deadline_s),
        metrics=metrics or Metrics(),
        tracing=tracing or NoTracing(),
    )
    services.metrics.sample_from(lambda: routes_ops.sample_metrics(services))
    routes = [
        Route(path, Endpoint(handler, services, path, log_level=level), methods=[method])
        for path, method, handler, level in _ROUTES
    ]
    handlers = {HTTPException: _no_route}
    return App(
        Starlette(routes=routes, middleware=_middleware(config, services), exception_handlers=handlers), services
    )


def _middleware(config: ServerConfig, services: Services) -> list[Middleware]:
    """Return the layers, outermost first: a browser's preflight request carries no key."""
    layers: list[Middleware] = []
    if config.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(config.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "request-id", "retry-after"],
            )
        )
    keys = read_keys(config)
    if keys:
        layers.append(
            Middleware(KeyGuard, keys=keys, refuse=Endpoint(_refuse_key, services, "refused", keeps_body=False))
        )
    return layers


async def _refuse_key(exchange: Exchange) -> Reply:
    raise key_problem()


def _no_route(request: HttpRequest, failure: Exception) -> Response:
    """Answer what the router refused, in the caller's dialect."""
    if not isinstance(failure, HTTPException):
        raise failure
    method, path = request.method, request.url.path
    allow = (failure.headers or {}).get("Allow", "")
    error: StrataError = (
        WrongMethod(f"{path} does not take {method}; accepted: {allow}", allow)
        if failure.status_code == WrongMethod.http_status
        else NoSuchRoute(f"there is nothing under {path}")
    )
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    body = error_body(error, dialect_of(request.scope), "")
    return Response(body, error.http_status, headers, media_type="application/json")
