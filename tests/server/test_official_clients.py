"""The official client libraries against a real socket."""

import anthropic
import openai
import pytest
import trio
from fake_engine import HANG, busy, end, fake_app, say

from strata.config import ServerConfig
from strata.testing.clients import socket_server
from strata.types import FinishReason

# The client libraries leave async generators to the garbage collector, which trio reports.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator .* was garbage collected:ResourceWarning")

MESSAGES = [{"role": "user", "content": "hi"}]


def openai_client(server, **kwargs):
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0, **kwargs)


def anthropic_client(server):
    return anthropic.AsyncAnthropic(base_url=server.url, api_key="key", max_retries=0)


async def read_all(stream_manager):
    async with stream_manager as stream:
        async for _ in stream:
            pass


async def test_openai_chat():
    app, _ = fake_app([*say("grüße 👋🏽", n_logprobs=1), end(n_generated=9)], config=ServerConfig(api_keys=("key",)))
    async with socket_server(app) as server, openai_client(server) as client:
        whole = await client.chat.completions.create(model="fake", messages=MESSAGES, logprobs=True, top_logprobs=1)
        assert whole.choices[0].message.content == "grüße 👋🏽"
        assert whole.choices[0].logprobs.content[0].token == "g"
        assert whole.usage.completion_tokens == 9
        stream = await client.chat.completions.create(
            model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, n=2
        )
        texts, usage = {0: "", 1: ""}, None
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
            usage = chunk.usage
        assert texts == {0: "grüße 👋🏽", 1: "grüße 👋🏽"}
        assert usage.completion_tokens == 18


async def test_openai_completions_and_models():
    app, _ = fake_app([*say("x", n_logprobs=1), end(FinishReason.LENGTH)])
    async with socket_server(app) as server, openai_client(server) as client:
        completion = await client.completions.create(model="fake", prompt=["a", "b"], logprobs=1, max_tokens=1)
        assert [choice.text for choice in completion.choices] == ["x", "x"]
        assert completion.choices[1].finish_reason == "length"
        assert completion.choices[0].logprobs.tokens == ["x"]
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).created == 1_700_000_000


async def test_openai_errors():
    app, engine = fake_app([*say("a"), busy()], config=ServerConfig(api_keys=("key",)))
    async with socket_server(app) as server, openai_client(server) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="fake", messages=MESSAGES, temperature=1000)
        assert refused.value.code == "bad_sampling"
        stream = await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="the queue is full"):
            async for _ in stream:
                pass
        engine.refuse_with = busy()
        with pytest.raises(openai.RateLimitError) as late:
            await client.chat.completions.create(model="fake", messages=MESSAGES)
        assert late.value.response.headers["retry-after"] == "3"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="other").models.list()
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


async def test_openai_client_leaves_a_stream():
    app, engine = fake_app([*say("a"), HANG])
    async with socket_server(app) as server, openai_client(server) as client:
        stream = await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
        await anext(aiter(stream))
        running = engine.open_streams[0]
        await stream.close()
        with trio.fail_after(5):
            await running.aborted.wait()
    assert engine.aborts == [(engine.requests[0].request_id, "disconnect")]


async def test_anthropic_messages():
    app, engine = fake_app([*say("grüße"), end(stopped_by="X", n_generated=6)], config=ServerConfig(api_keys=("key",)))
    async with socket_server(app) as server, anthropic_client(server) as client:
        ask = {"model": "claude", "max_tokens": 9, "messages": MESSAGES, "system": "s", "stop_sequences": ["X"]}
        message = await client.messages.create(**ask)
        assert message.content[0].text == "grüße"
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "X")
        async with client.messages.stream(**ask) as stream:
            pieces = [piece async for piece in stream.text_stream]
            final = await stream.get_final_message()
        assert pieces == list("grüße")
        assert final.content[0].text == "grüße"
        assert (final.stop_reason, final.usage.output_tokens) == ("stop_sequence", 6)
        counted = await client.messages.count_tokens(model="claude", messages=MESSAGES, system="s")
        assert counted.input_tokens == len(engine.requests[0].prompt)
        assert [model.id async for model in client.models.list()] == ["fake"]


async def test_anthropic_errors():
    app, engine = fake_app([*say("a"), busy()])
    ask = {"model": "claude", "max_tokens": 9, "messages": MESSAGES}
    async with socket_server(app) as server, anthropic_client(server) as client:
        with pytest.raises(anthropic.BadRequestError, match="temperature is 1000"):
            await client.messages.create(**ask, extra_body={"temperature": 1000})
        with pytest.raises(anthropic.APIStatusError, match="the queue is full"):
            await read_all(client.messages.stream(**ask))
        engine.refuse_with = busy()
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**ask)
