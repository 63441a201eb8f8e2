"""What operators and tools ask for: health, metrics, properties, and text without generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from strata import __version__
from strata.server.exchange import BytesReply, Exchange, JsonReply, Reply, Services
from strata.server.problems import BadField
from strata.server.prompts import ChatPrompt, check_messages, encode_text, render_chat
from strata.server.routes_openai import template_variables
from strata.server.schemas import decode
from strata.server.schemas_openai import DetokenizeRequest, TemplateRequest, TokenizeRequest
from strata.telemetry.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from strata.engine.loop import EngineSnapshot


async def health(exchange: Exchange) -> Reply:
    """GET /health: is the engine alive? 503 when it has stopped, or a step has had no heartbeat for too long."""
    services = exchange.services
    snapshot = services.model.engine.snapshot()
    status = _health_word(services, snapshot)
    body = {
        "status": status,
        "model": services.model.id,
        "phase": snapshot.backend.phase,
        "heartbeat_age_s": snapshot.backend.heartbeat_age_s,
        "layer": snapshot.backend.layer,
        "steps": snapshot.backend.steps,
        "failed_steps": snapshot.backend.failed_steps,
        "sequences_running": snapshot.n_running,
        "sequences_waiting": snapshot.n_waiting,
    }
    return JsonReply(body, status=200 if status in {"ok", "draining"} else 503)


async def ready(exchange: Exchange) -> Reply:
    """GET /ready: are new requests taken?"""
    services = exchange.services
    word = _health_word(services, services.model.engine.snapshot())
    return JsonReply({"ready": word == "ok", "status": word}, status=200 if word == "ok" else 503)


def _health_word(services: Services, snapshot: EngineSnapshot) -> str:
    backend = snapshot.backend
    if snapshot.stopped or backend.phase == "dead":
        return "stopped"
    if backend.phase == "step" and backend.heartbeat_age_s > services.config.health_stall_s:
        return "stalled"
    return "draining" if snapshot.draining or services.admission.is_draining else "ok"


async def metrics(exchange: Exchange) -> Reply:
    """GET /metrics: Prometheus' text format."""
    return BytesReply(exchange.services.metrics.render(), content_type=CONTENT_TYPE)


def sample_metrics(services: Services) -> dict[str, float]:
    """Return the values of the sampled metrics."""
    snapshot = services.model.engine.snapshot()
    return {
        "strata_sequences_waiting": snapshot.n_waiting,
        "strata_sequences_running": snapshot.n_running,
        "strata_kv_blocks": snapshot.n_kv_blocks,
        "strata_kv_blocks_held": snapshot.n_kv_blocks_held,
        "strata_kv_blocks_cached": snapshot.n_kv_blocks_cached,
        "strata_preemptions_total": snapshot.n_preempted,
        "strata_ready": _health_word(services, snapshot) == "ok",
        "strata_engine_heartbeat_age_seconds": snapshot.backend.heartbeat_age_s,
    }


async def props(exchange: Exchange) -> Reply:
    """GET /props: the served model and its defaults, in llama-server's shape."""
    model = exchange.services.model
    limits = model.engine.limits
    params = msgspec.to_builtins(model.defaults) | {"max_tokens": -1 if model.max_tokens is None else model.max_tokens}
    bos_id, template = model.tokenizer.bos_id, model.chat_template
    body: dict[str, Any] = {
        "default_generation_settings": {"n_ctx": model.n_ctx, "params": params},
        "total_slots": limits.max_seqs,
        "model_alias": model.id,
        "chat_template": None if template is None else template.source_of(),
        "bos_token": None if bos_id is None else model.tokenizer.token_text(bos_id),
        "eos_token": next((model.tokenizer.token_text(token) for token in sorted(model.tokenizer.eog_ids)), None),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"strata {__version__}",
        "limits": msgspec.to_builtins(limits),
        **model.meta,
    }
    return JsonReply(body)


async def tokenize(exchange: Exchange) -> Reply:
    """POST /tokenize"""
    fields, _ = decode(exchange.body, TokenizeRequest)
    model = exchange.services.model
    tokens = await encode_text(
        model, fields.content, add_special=fields.add_special, parse_special=fields.parse_special
    )
    if not fields.with_pieces:
        return JsonReply({"tokens": tokens})
    return JsonReply(
        {"tokens": [{"id": token, "piece": _piece(model.tokenizer.token_bytes(token))} for token in tokens]}
    )


def _piece(raw: bytes) -> str | list[int]:
    """Return a token's text, or its bytes where they are only a part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(exchange: Exchange) -> Reply:
    """POST /detokenize"""
    fields, _ = decode(exchange.body, DetokenizeRequest)
    tokenizer = exchange.services.model.tokenizer
    for i, token in enumerate(fields.tokens):
        if not 0 <= token < tokenizer.n_vocab:
            raise BadField(f"tokens[{i}]", f"tokens[{i}] is {token}; accepted: 0 to {tokenizer.n_vocab - 1}")
    return JsonReply({"content": tokenizer.decode(fields.tokens, special=True)})


async def apply_template(exchange: Exchange) -> Reply:
    """POST /apply-template: the prompt that a chat request with these messages would have."""
    fields, raw = decode(exchange.body, TemplateRequest)
    check_messages(fields.messages)
    chat = ChatPrompt(
        messages=raw["messages"],
        tools=fields.tools,
        add_generation_prompt=fields.add_generation_prompt is not False,
        variables=template_variables(fields.chat_template_kwargs, fields.reasoning_effort),
    )
    return JsonReply({"prompt": await render_chat(exchange.services.model, chat)})
