"""Requests to the application itself, without sockets, so that they run under virtual time."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message, Scope

from rollart_flow.gateway.server.app import GatewayApp


@dataclass
class AsgiRequest:
    """One request: `left` says that its client hangs up, `sent` is what it gets, with the time."""

    path: str
    body: object
    key: str = ""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[tuple[float, Message]] = field(default_factory=list)

    async def run(self, app: GatewayApp) -> None:
        """Have the application answer it."""
        await app(self._scope(), self._receive, self._send)

    @property
    def status(self) -> int:
        return int(self.sent[0][1]["status"])

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for _, message in self.sent).decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def times(self) -> list[float]:
        """When each piece of the body came."""
        return [time for time, message in self.sent if message["type"] == "http.response.body"]

    def _scope(self) -> Scope:
        headers = {"host": "localhost", "authorization": f"Bearer {self.key}", **self.headers}
        return {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "server": ("127.0.0.1", 80),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }

    async def _receive(self) -> Message:
        if self.body is not None:
            body, self.body = self.body, None
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            return {"type": "http.request", "body": data, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append((asyncio.get_running_loop().time(), message))


def chat(key: str, *, stream: bool = False) -> AsgiRequest:
    """A request on the wire of chat completions."""
    messages = [{"role": "user", "content": "Hi."}]
    body = {"model": "m", "messages": messages, "stream": stream}
    return AsgiRequest("/v1/chat/completions", body, key)
