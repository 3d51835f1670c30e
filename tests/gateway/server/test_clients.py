"""Official clients on every wire: streams that wait, and errors in the form that each one knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.server import streaming
from rollart_flow.gateway.server.gateway_server import GatewayServer
from tests.gateway.sdks import anthropic, errors, genai, openai, types
from tests.gateway.server.scripted import Script, ScriptedSession, after, at_once

OVERFLOW = CallRefusedError(Refusal.OVERFLOW, "the prompt is too long", tokens=9000, limit=8000)
HELLO: Any = [{"role": "user", "content": "Hi."}]

Ask = Callable[[str, str], Awaitable[str]]
"""Streams an answer from an address with a key, and returns its text."""


@asynccontextmanager
async def openai_client(url: str, key: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        yield client


async def chat(url: str, key: str) -> str:
    async with openai_client(url, key) as client:
        stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def responses(url: str, key: str) -> str:
    async with openai_client(url, key) as client:
        stream = await client.responses.create(model="m", input="Hi.", stream=True)
        events: list[Any] = [event async for event in stream]
        if events[-1].type == "response.failed":
            return f"failed: {events[-1].response.error.code}"
        assert events[-1].type == "response.completed"
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(set(numbers)), "heartbeats have numbers, too"
        return str(events[-1].response.output_text)


async def messages(url: str, key: str) -> str:
    async with (
        anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream,
    ):
        return await stream.get_final_text()


async def google(url: str, key: str) -> str:
    async with httpx.AsyncClient(verify=False) as connections:
        options = types.HttpOptions(base_url=url, httpx_async_client=connections)
        models = genai.Client(api_key=key, http_options=options, vertexai=False).aio.models
        stream = await models.generate_content_stream(model="m", contents="Hi.")
        return "".join([chunk.text or "" async for chunk in stream])


ASKS = pytest.mark.parametrize("ask", [chat, responses, messages, google])


def served(test: Callable[[GatewayServer, str, str], Awaitable[None]], script: Script) -> None:
    """Run a test against a server with one session."""

    async def main() -> None:
        async with GatewayServer(port=0, unix=False) as server:
            await test(server, server.url or "", server.open(ScriptedSession(script)))

    asyncio.run(main())


def refusing(error: CallRefusedError, seconds: float = 0.0) -> Script:
    async def answer(call: ModelCall) -> ModelAnswer:
        await asyncio.sleep(seconds)
        raise error

    return answer


async def status_of(asking: Awaitable[str]) -> tuple[int, str]:
    """Status and text of the error that a client raises."""
    try:
        raise AssertionError(await asking)
    except errors.APIError as error:
        return error.code, str(error)
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        return error.status_code, str(error.body)


@ASKS
def test_a_stream_that_waits_is_whole(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "OPENING_S", 0.01)
    monkeypatch.setattr(streaming, "HEARTBEAT_S", 0.02)

    async def test(server: GatewayServer, url: str, key: str) -> None:
        assert await ask(url, key) == "Hello."
        assert server.counters.heartbeats >= 2
        assert server.counters.held_s > 0

    served(test, after(0.2))


@ASKS
def test_unknown_and_sealed_keys(ask: Ask) -> None:
    async def test(server: GatewayServer, url: str, key: str) -> None:
        assert (await status_of(ask(url, "stranger")))[0] == 401
        assert await ask(url, key) == "Hello."
        server.close(key)
        assert (await status_of(ask(url, key)))[0] == 409
        refused = server.counters.refused
        assert (refused[Refusal.KEY], refused[Refusal.SEALED]) == (1, 1)

    served(test, at_once)


@pytest.mark.parametrize(
    ("ask", "phrase"),
    [
        (chat, "context_length_exceeded"),
        (messages, "prompt is too long: 9000 tokens > 8000 maximum"),
        (google, "exceeds the maximum"),
    ],
)
def test_an_overflow_is_in_the_words_that_clients_look_for(ask: Ask, phrase: str) -> None:
    async def test(server: GatewayServer, url: str, key: str) -> None:
        status, text = await status_of(ask(url, key))
        assert status == 400
        assert phrase in text

    served(test, refusing(OVERFLOW))


def test_an_overflow_of_responses_is_the_event_that_codex_does_not_repeat() -> None:
    async def test(server: GatewayServer, url: str, key: str) -> None:
        assert await responses(url, key) == "failed: context_length_exceeded"

    served(test, refusing(OVERFLOW))


@ASKS
def test_an_engine_that_fails_is_an_error_that_clients_may_repeat(ask: Ask) -> None:
    error = CallRefusedError(Refusal.ENGINE, "no worker is left")

    async def test(server: GatewayServer, url: str, key: str) -> None:
        status, text = await status_of(ask(url, key))
        assert status == 503
        assert "no worker is left" in text

    served(test, refusing(error))
