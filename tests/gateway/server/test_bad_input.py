"""Bad input on each wire: the error is in the wire's own form, and the session goes on."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from rollart_flow.gateway.server.gateway_server import GatewayServer
from tests.gateway.core.rig import Rig, ScriptedEngine

LONGEST = 4000
"""Longest body of the server, in bytes."""
OPENAI = {"message", "type", "param", "code"}


@dataclass(frozen=True)
class WireUnderTest:
    """A wire: its path, a good body, fields that are refused, and the form of its errors."""

    path: str
    body: dict[str, Any]
    refused: dict[str, Any]
    named: str
    """What the error of these fields names."""
    error: set[str]
    codes: dict[int, str]
    """What `coded` of the error has, by the status."""
    coded: str
    around: dict[str, Any] = field(default_factory=dict)
    """What stands beside `error`."""


HELLO = [{"role": "user", "content": "Hi."}]
_CODES = {401: "invalid_api_key", 409: "session_ended", 413: "request_too_large"}
WIRES = {
    "chat": WireUnderTest(
        "/v1/chat/completions", {"messages": HELLO},
        {"n": 2}, "n should", OPENAI, _CODES, "code",
    ),
    "responses": WireUnderTest(
        "/v1/responses", {"input": "Hi."}, {"previous_response_id": "resp_1"},
        "previous_response_id", OPENAI, _CODES, "code",
    ),
    "messages": WireUnderTest(
        "/v1/messages", {"max_tokens": 9, "messages": HELLO}, {"container": "c"}, "container",
        {"type", "message"},
        {401: "authentication_error", 400: "invalid_request_error", 413: "request_too_large"},
        "type", {"type": "error", "request_id": None},
    ),
    "google": WireUnderTest(
        "/v1beta/models/m:generateContent", {"contents": [{"parts": [{"text": "Hi."}]}]},
        {"generationConfig": {"candidateCount": 2}}, "candidateCount",
        {"code", "message", "status"},
        {401: "UNAUTHENTICATED", 400: "INVALID_ARGUMENT"}, "status",
    ),
}  # fmt: skip


@dataclass
class Bench:
    """A server with a session, and a client on one wire."""

    wire: WireUnderTest
    rig: Rig
    server: GatewayServer
    client: httpx.AsyncClient
    key: str

    async def post(self, content: bytes, key: str | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.key if key is None else key}"}
        return await self.client.post(self.wire.path, content=content, headers=headers)

    async def refused(self, status: int, content: bytes, key: str | None = None) -> str:
        """Send what is refused, check the form of the error, and return its message."""
        response = await self.post(content, key)
        assert response.status_code == status, response.text
        found = response.json()
        error = found.pop("error")
        assert found == self.wire.around
        assert {*error} == self.wire.error
        if status in self.wire.codes:
            assert error[self.wire.coded] == self.wire.codes[status]
        assert "\n" not in error["message"]
        await self.answered()
        return str(error["message"])

    async def answered(self, **fields: Any) -> None:
        response = await self.post(json.dumps({**self.wire.body, **fields}).encode())
        assert response.status_code == 200, response.text

    async def half_closed(self) -> None:
        """Send a request, and end the client's side of the connection."""
        body, where = json.dumps({**self.wire.body, "stream": True}).encode(), self.server.url
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(str(where)).port)
        head = f"POST {self.wire.path} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {self.key}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        writer.write_eof()
        await reader.read()
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("name", WIRES)
def test_bad_input_is_an_error_of_its_wire_and_the_session_goes_on(name: str) -> None:
    asyncio.run(_bad_input(WIRES[name]))


async def _bad_input(wire: WireUnderTest) -> None:
    rig, good = Rig(ScriptedEngine("ok")), json.dumps(wire.body).encode()
    async with (
        GatewayServer(port=0, unix=False, longest_body_bytes=LONGEST) as server,
        httpx.AsyncClient(base_url=str(server.url), verify=False) as client,
    ):
        bench = Bench(wire, rig, server, client, server.open(rig.session))
        assert "no session" in await bench.refused(401, good, key="stranger")
        assert "no JSON" in await bench.refused(400, good[:-3])
        assert "should be an object" in await bench.refused(400, b"[1]")
        assert str(LONGEST) in await bench.refused(413, b" " * (LONGEST + 1))
        fields = {**wire.body, **wire.refused}
        assert wire.named in await bench.refused(400, json.dumps(fields).encode())
        await bench.answered(tomorrow={"a": 1})
        assert rig.exchanges[-1].dropped == ("tomorrow",)
        await bench.half_closed()
        await bench.answered()
        await rig.session.seal()
        sealed = await bench.post(good)
    assert sealed.status_code == 409
    assert {*sealed.json()["error"]} == wire.error
    calls = rig.exchanges
    assert len(calls) == 7 + 1, "one after each error, and the half-closed one"
    assert not [each for each in calls if each.refusal or each.error]
    rows = await rig.trajectories()
    sampled = sum(version >= 0 for row in rows for version in row.token_versions)
    assert sampled == sum(each.end - each.answer_start for each in calls) > 0
