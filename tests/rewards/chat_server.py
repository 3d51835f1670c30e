"""An OpenAI-compatible chat completions server on a loopback socket, which answers by script."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollart_flow.errors import RewardFailedError
from rollart_flow.rewards import ChatCompletions, Judge
from tests.builders import answered


@dataclass(frozen=True)
class Reply:
    """One answer."""

    status: int
    body: str
    headers: tuple[str, ...] = ()
    hang_up: bool = False
    """Close the connection instead."""


def said(text: str) -> Reply:
    """A chat completion of this text."""
    return Reply(200, json.dumps({"choices": [{"message": {"content": text}}]}))


def refused(status: int, body: str = "no", *headers: str) -> Reply:
    """An error."""
    return Reply(status, body, headers)


@dataclass
class ChatServer:
    """What was asked, and where."""

    replies: list[Reply]
    url: str = ""
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        """The user's message of each request."""
        return [body["messages"][0]["content"] for body in self.bodies]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        request, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        self.bodies.append(json.loads(await reader.readexactly(int(headers["content-length"]))))
        self.paths.append(request.split()[1])
        self.keys.append(headers.get("authorization"))
        reply = self.replies.pop(0)
        if not reply.hang_up:
            body = reply.body.encode()
            lines = [f"HTTP/1.1 {reply.status} X", f"Content-Length: {len(body)}", *reply.headers]
            writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
            await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def chat_server(replies: Sequence[Reply]) -> AsyncIterator[ChatServer]:
    """A server on a free port; every reply of the script must have been asked for."""
    chat = ChatServer(list(replies))
    server = await asyncio.start_server(chat.serve, "127.0.0.1", 0)
    chat.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield chat
    assert not chat.replies


ANSWERED = answered("first", "the {task} is <answer>7</answer>", problem="3+4=")
"""The trajectory that judges are asked about."""


def judged(
    replies: Sequence[Reply],
    scenario: Callable[[ChatServer], Awaitable[None]],
) -> ChatServer:
    """Run a scenario beside a server with a script."""

    async def main() -> ChatServer:
        async with chat_server(replies) as server:
            await asyncio.wait_for(scenario(server), 30)
        return server

    return asyncio.run(main())


def one_error(*replies: Reply, **settings: Any) -> str:
    """What is wrong with a judgement after these replies."""
    errors = []

    async def scenario(server: ChatServer) -> None:
        through = ChatCompletions(server.url, "m", backoff_s=0.001, attempts=2, **settings)
        with pytest.raises(RewardFailedError) as raised:
            await Judge(through=through)(ANSWERED)
        errors.append(str(raised.value))

    judged(replies, scenario)
    return errors[0]
