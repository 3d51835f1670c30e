"""A server of our own that speaks the websocket protocol of OpenEnv, and every wrong answer to it.

It stands for the real one, which does not install beside this library; `test_real_openenv.py` runs
that one in a virtual environment of its own.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from queue import SimpleQueue
from threading import Thread
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

Answer = dict[str, Any] | str | bytes | None
"""An object, a text to send as it is, bytes, or None: the connection is closed."""


class CountingServer:
    """Episodes that count: the action {"n": 3} is right if the seed has the remainder 3 of 10.

    Args:
        answers: replaces the answer to a kind of request.
        capacity: sessions at a time; another one is refused as OpenEnv refuses it.
    """

    def __init__(
        self, answers: dict[str, Callable[[], Answer]] | None = None, capacity: int = 100
    ) -> None:
        self.answers = answers or {}
        self.capacity = capacity
        self.sessions = 0
        self.refused = asyncio.Event()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Headers] = []
        self.ended = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """The address, while the server runs."""
        async with serve(
            self._session, "127.0.0.1", 0, process_request=self._redirected, close_timeout=0.5
        ) as server:
            yield f"ws://127.0.0.1:{_port(server)}/ws"

    def _redirected(self, connection: ServerConnection, request: Request) -> Response | None:
        self.headers.append(request.headers)
        if "redirect" not in self.answers:
            return None
        headers = Headers({"Location": "ws://127.0.0.1:9/ws"})
        return Response(HTTPStatus.FOUND, "Found", headers, b"")

    async def _session(self, connection: ServerConnection) -> None:
        if self.sessions >= self.capacity:
            self.refused.set()
            message = f"Server at capacity: {self.sessions}/{self.capacity} sessions active."
            await connection.send(json.dumps(refusal("CAPACITY_REACHED", message)))
            return
        self.sessions += 1
        try:
            seed = 0
            async for text in connection:
                request = json.loads(text)
                self.requests.append(request)
                if request["type"] == "close":
                    break
                seed = request.get("data", {}).get("seed", seed)
                if not await self._answer(connection, request, seed):
                    break
        finally:
            self.sessions -= 1
            self.ended.set()

    async def _answer(self, connection: ServerConnection, request: Any, seed: int) -> bool:
        kind = request["type"]
        answer = self.answers[kind]() if kind in self.answers else _answer(kind, request, seed)
        if answer is None:
            return False
        if answer == "silence":
            await connection.wait_closed()
            return False
        await connection.send(json.dumps(answer) if isinstance(answer, dict) else answer)
        return True


@contextmanager
def counting_in_a_thread(answers: dict[str, Callable[[], Answer]]) -> Iterator[CountingServer]:
    """A server in a loop of its own, for a run that has this thread."""
    found: SimpleQueue[tuple[CountingServer, asyncio.AbstractEventLoop, asyncio.Event]]
    found = SimpleQueue()

    async def body() -> None:
        server, over = CountingServer(answers), asyncio.Event()
        async with server.served() as url:
            server.url = url
            found.put((server, asyncio.get_running_loop(), over))
            await over.wait()

    thread = Thread(target=lambda: asyncio.run(body()))
    thread.start()
    server, loop, over = found.get(timeout=30)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


def refusal(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


def shown(fields: dict[str, Any], reward: Any = None, done: Any = False) -> dict[str, Any]:
    return {
        "type": "observation",
        "data": {"observation": fields, "reward": reward, "done": done},
    }


TOOL = {"name": "add", "description": "Add.", "input_schema": {"type": "object", "properties": {}}}


def _answer(kind: str, request: dict[str, Any], seed: int) -> dict[str, Any]:
    data = request.get("data", {})
    if kind == "state":
        return {"type": "state", "data": {"step_count": 0}}
    if kind == "reset":
        return shown({"text": f"seed {seed}, {sorted(data)}", "metadata": {}})
    if data.get("type") == "list_tools":
        return shown({"tools": [TOOL]})
    if data.get("type") == "call_tool":
        return _called(data)
    if "n" not in data:
        errors = [{"type": "missing", "loc": ["n"], "msg": "Field required"}]
        return refusal("VALIDATION_ERROR", "Invalid message", errors=errors)
    right = int(data["n"]) == seed % 10
    return shown({"text": "over", "metadata": {"won": right}}, float(right), True)


def _called(data: dict[str, Any]) -> dict[str, Any]:
    if data["tool_name"] != "add":
        return shown({"tool_name": "x", "error": {"message": "Unknown tool"}}, 0.0)
    total = sum(data["arguments"]["numbers"])
    content = [{"type": "text", "text": str(total)}]
    return shown({"tool_name": "add", "result": {"content": content}}, 0.25, total > 9)


def _port(server: Server) -> int:
    port: int = next(iter(server.sockets)).getsockname()[1]
    return port
