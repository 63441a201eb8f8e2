"""The OpenAI dialect: answers, streams, and how fields reach the engine."""

import pytest
from fake_engine import BOS, EOS, end, fake_app, say

from strata.server.reply_openai import usage_body
from strata.testing.clients import memory_server
from strata.types import Delta, FinishReason, TokenInfo, Usage

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def post(app, path, body):
    async with memory_server(app) as server:
        return await server.connect().post_json(path, body)


async def stream(app, path, body):
    async with memory_server(app) as server:
        answer = await server.connect().request("POST", path, body | {"stream": True})
        assert answer.status == 200
        events = await answer.events()
    assert events[-1].data == "[DONE]"
    return [event.json() for event in events[:-1]]


async def test_chat_whole_answer():
    app, engine = fake_app([*say("héllo"), end(n_prompt=7, n_cached=2, n_generated=6)])
    status, body = await post(app, "/v1/chat/completions", CHAT | {"max_tokens": 9, "model": "whatever"})
    assert status == 200
    assert body["object"] == "chat.completion"
    assert body["model"] == "fake"
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "héllo", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert body["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 6,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert body["timings"]["predicted_per_second"] == 5.0
    (request,) = engine.requests
    assert request.max_tokens == 9
    assert bytes(request.prompt[1:]).decode() == "[user]hi\n[assistant]"
    assert request.prompt[0] == BOS


async def test_chat_stream_has_the_same_text_as_the_whole_answer():
    script = [*say("grüße 👋🏽"), end(FinishReason.LENGTH)]
    whole = (await post(fake_app(script)[0], "/v1/chat/completions", CHAT))[1]["choices"][0]
    chunks = await stream(fake_app(script)[0], "/v1/chat/completions", CHAT)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == whole["message"]["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks][-2:] == [None, "length"] == [None, whole["finish_reason"]]
    assert len({c["id"] for c in chunks}) == 1
    assert all("usage" not in c for c in chunks)


async def test_stream_usage_is_the_last_chunk_and_null_before():
    body = CHAT | {"stream_options": {"include_usage": True}}
    chunks = await stream(fake_app([*say("ab"), end()])[0], "/v1/chat/completions", body)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 8
    assert all(c["usage"] is None for c in chunks[:-1])


async def test_several_choices_have_consecutive_seeds_and_count_the_prompt_once():
    def script(request):
        return [*say(f"seed {request.sampling.seed}"), end(n_prompt=5, n_generated=2)]

    app, _ = fake_app(script)
    status, body = await post(app, "/v1/chat/completions", CHAT | {"n": 3, "seed": 41})
    assert status == 200
    assert [c["message"]["content"] for c in body["choices"]] == ["seed 41", "seed 42", "seed 43"]
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (5, 6)
    chunks = await stream(fake_app(script)[0], "/v1/chat/completions", CHAT | {"n": 2, "seed": 2**64 - 1})
    texts = ["", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == [f"seed {2**64 - 1}", "seed 0"]


async def test_chat_logprobs():
    app, engine = fake_app([*say("é", n_logprobs=2), end()])
    _, body = await post(app, "/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2})
    first, second = body["choices"][0]["logprobs"]["content"]
    assert (first["bytes"], second["bytes"]) == ([0xC3], [0xA9])
    assert [top["logprob"] for top in first["top_logprobs"]] == [0.0, -9999.0]
    assert engine.requests[0].sampling.n_logprobs == 2
    chunks = await stream(
        fake_app([*say("ab", n_logprobs=1), end()])[0], "/v1/chat/completions", CHAT | {"logprobs": True}
    )
    tokens = [t["token"] for c in chunks for t in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert tokens == ["a", "b"]


async def test_tokens_without_text_are_reported_when_logprobs_are_asked_for():
    held = Delta(tokens=(TokenInfo(0xC3, -1.0), TokenInfo(0xA9, -2.0)))
    app, _ = fake_app([held, Delta(text="é"), end()])
    chunks = await stream(app, "/v1/chat/completions", CHAT | {"logprobs": True})
    with_tokens = [c["choices"][0] for c in chunks if c["choices"][0]["logprobs"]]
    assert [len(c["logprobs"]["content"]) for c in with_tokens] == [2]
    app, _ = fake_app([held, Delta(text="é"), end()])
    assert len(await stream(app, "/v1/chat/completions", CHAT)) == 3  # role, text, end


async def test_completion_prompts_of_every_kind():
    def script(request):
        return [*say(f"<{bytes(t for t in request.prompt if t < 256).decode()}>"), end(n_prompt=len(request.prompt))]

    for prompt, texts, n_prompt in [
        ("ab", ["<ab>"], 3),
        (["ab", "c"], ["<ab>", "<c>"], 5),
        ([97, 98], ["<ab>"], 2),
        ([[97], [98, 99]], ["<a>", "<bc>"], 3),
    ]:
        status, body = await post(fake_app(script)[0], "/v1/completions", {"prompt": prompt})
        assert status == 200
        assert [c["text"] for c in body["choices"]] == texts
        assert body["usage"]["prompt_tokens"] == n_prompt
    _, body = await post(fake_app(script)[0], "/v1/completions", {"prompt": ["a", "b"], "n": 2})
    assert [c["text"] for c in body["choices"]] == ["<a>", "<a>", "<b>", "<b>"]
    assert body["usage"]["prompt_tokens"] == 4


async def test_completion_echo_and_legacy_logprobs():
    app, _ = fake_app([*say("xé", n_logprobs=1), end()])
    _, body = await post(app, "/v1/completions", {"prompt": [BOS, 97, 98], "echo": True})
    assert body["choices"][0]["text"] == "<s>abxé"
    app, _ = fake_app([*say("xéy", n_logprobs=1), end()])
    _, body = await post(app, "/v1/completions", {"prompt": "p", "logprobs": 1})
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 1, 1, 2]
    assert logprobs["token_logprobs"] == [0.0, -1.0, -1.0, -2.0]
    assert logprobs["top_logprobs"][0] == {"x": 0.0}
    chunks = await stream(fake_app([*say("ab"), end()])[0], "/v1/completions", {"prompt": "p:", "echo": True})
    assert [c["choices"][0]["text"] for c in chunks] == ["p:", "a", "b", ""]


async def test_sampling_fields_reach_the_engine_over_the_models_defaults():
    app, engine = fake_app([end()])
    fields = {
        "temperature": 0.1, "top_k": 7, "top_p": 0.5, "min_p": 0.2, "typical_p": 0.9, "top_n_sigma": 1.5,
        "xtc_probability": 0.3, "xtc_threshold": 0.2, "repeat_last_n": 9, "repeat_penalty": 1.1,
        "presence_penalty": 0.4, "frequency_penalty": 0.6, "dry_multiplier": 0.8, "dry_base": 2.0,
        "dry_allowed_length": 3, "dry_penalty_last_n": 11, "min_keep": 2, "seed": 5,
    }  # fmt: skip
    more = {"dry_sequence_breakers": ["."], "stop": ["a", "b"], "ignore_eos": True, "max_completion_tokens": 4}
    bias = {"logit_bias": {"65": -100, "66": 3.5}}
    status, _ = await post(app, "/v1/chat/completions", CHAT | fields | more | bias)
    assert status == 200
    (request,) = engine.requests
    assert {name: getattr(request.sampling, name) for name in fields} == fields
    assert request.sampling.dry_sequence_breakers == (".",)
    assert request.sampling.logit_bias == ((65, -100.0), (66, 3.5))
    assert (request.stop, request.ignore_eos, request.max_tokens) == (("a", "b"), True, 4)
    app, engine = fake_app([end()])
    pairs = [[65, False], ["BC", 1]]
    await post(app, "/v1/completions", {"prompt": "p", "logit_bias": pairs, "stop": "s", "n_predict": -1})
    assert engine.requests[0].sampling.logit_bias == ((65, float("-inf")), (66, 1.0), (67, 1.0))
    assert engine.requests[0].sampling.temperature == 0.8
    assert (engine.requests[0].stop, engine.requests[0].max_tokens) == (("s",), None)


async def test_a_request_without_a_seed_draws_one_and_minus_one_means_the_same():
    app, engine = fake_app([end()])
    for body in (CHAT, CHAT | {"seed": -1}, CHAT | {"seed": None}):
        await post(app, "/v1/chat/completions", body)
    assert len({request.sampling.seed for request in engine.requests}) == 3


async def test_template_tools_variables_and_text_parts():
    app, engine = fake_app([end()], template_kwargs={"reasoning_effort": "low"})
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "user", "content": parts}], "tools": [tool]}
    await post(app, "/v1/chat/completions", body)
    await post(app, "/v1/chat/completions", body | {"tool_choice": "none", "reasoning_effort": "high"})
    prompts = [bytes(t for t in request.prompt if t < 256).decode() for request in engine.requests]
    assert "[tools]1" in prompts[0]
    assert "[effort]low" in prompts[0]
    assert "[tools]" not in prompts[1]
    assert "[effort]high" in prompts[1]
    assert "a" in prompts[0]
    assert "b" in prompts[0]


async def test_control_tokens_in_a_message_stay_text():
    app, engine = fake_app([end()])
    await post(app, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a</s>b<s>"}]})
    assert EOS not in engine.requests[0].prompt
    assert engine.requests[0].prompt.count(BOS) == 1
    await post(app, "/v1/completions", {"prompt": "a</s>"})  # a plain prompt is taken literally
    assert engine.requests[1].prompt == (BOS, 97, EOS)


async def test_models():
    app, _ = fake_app([], meta={"size_bytes": 12})
    async with memory_server(app) as server:
        client = server.connect()
        _, models = await client.get_json("/v1/models")
        assert [m["id"] for m in models["data"]] == ["fake"]
        assert models["data"][0]["meta"]["size_bytes"] == 12
        assert await client.get_json("/v1/models/fake") == (200, models["data"][0])
        status, body = await client.get_json("/v1/models/other/name")
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert "other/name" in body["error"]["message"]


@pytest.mark.parametrize("n_choices", [1, 2])
def test_usage_counts_each_prompt_once(n_choices):
    usages = [Usage(n_prompt=p, n_generated=1) for p in (3, 5) for _ in range(n_choices)]
    assert usage_body(usages, n_choices)["prompt_tokens"] == 8
    assert usage_body(usages, n_choices)["completion_tokens"] == 2 * n_choices
