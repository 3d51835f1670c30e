"""What a reward server refuses: foreign pages, strangers, and what is too long."""

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import httpx2
import pytest

from rollart_flow import request_heads
from rollart_flow.errors import ServerlessError, SettingsError
from rollart_flow.secret import Secret
from rollart_flow.serverless import CallPolicy, ServerlessReward, request_checks
from rollart_flow.serverless.contract import encode_call
from rollart_flow.serverless.server import serve_http
from rollart_flow.types import Trajectory
from tests.builders import TRAJECTORY
from tests.serverless.calls import QUICK
from tests.serverless.servers import serving

JSON = {"Content-Type": "application/json"}
TOKEN = Secret.from_env("REWARD_TOKEN")


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN.variable, "open-sesame")


async def one(trajectory: Trajectory) -> float:
    return 1.0


def call() -> bytes:
    return encode_call(TRAJECTORY, 60.0)[1]


def posted(headers: dict[str, str], body: bytes | None = None, **how: object) -> httpx2.Response:
    """The response to one request with these headers."""

    async def post() -> httpx2.Response:
        async with serving(one, **how) as url, httpx2.AsyncClient() as client:  # type: ignore[arg-type]
            return await client.post(url, content=call() if body is None else body, headers=headers)

    return asyncio.run(post())


def test_json_for_this_machine_is_answered() -> None:
    assert posted(JSON).json()["reward"] == 1.0


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_foreign_page_may_send_unasked_is_refused(kind: str) -> None:
    response = posted({"Content-Type": kind, "Origin": "https://evil.example"})
    assert (response.status_code, response.text) == (
        415,
        "the content type must be application/json",
    )


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example"])
def test_a_page_that_rebinds_its_name_is_refused(host: str) -> None:
    response = posted({**JSON, "Host": host})
    assert response.status_code == 421
    assert "--allow-host" in response.text


@pytest.mark.parametrize("host", ["localhost:1", "[::1]:80", "10.0.0.7", "Rewards.Example.com"])
def test_addresses_and_allowed_names_are_answered(host: str) -> None:
    response = posted({**JSON, "Host": host}, hosts=("rewards.example.com",))
    assert response.status_code == 200


@pytest.mark.parametrize("given", ["", "Bearer wrong", "Basic open-sesame", "Bearer ***"])
def test_without_the_token_nothing_is_scored(given: str) -> None:
    response = posted({**JSON, "Authorization": given}, token=TOKEN)
    assert response.status_code == 401
    assert "open-sesame" not in response.text


def scored(policy: CallPolicy) -> object:
    async def score() -> object:
        async with serving(one, token=TOKEN) as url:
            reward = ServerlessReward(url, policy)
            try:
                return await reward(TRAJECTORY)
            finally:
                await reward.close()

    return asyncio.run(score())


def test_a_client_sends_the_token_of_its_policy() -> None:
    assert scored(CallPolicy(deadline_s=20.0, hedge_after_s=None, token=TOKEN)) == 1.0
    with pytest.raises(ServerlessError, match="status 401: the bearer token is missing or wrong"):
        scored(QUICK)


def test_a_token_is_no_text() -> None:
    with pytest.raises(SettingsError, match="token should be an instance of Secret"):
        CallPolicy(token="open-sesame")  # type: ignore[arg-type]


@pytest.mark.parametrize("told", [True, False])
def test_a_long_body_is_refused_whether_or_not_it_says_so(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_checks, "LONGEST_BODY_BYTES", 100_000)
    headers = (
        {**JSON, "Content-Length": "100001"} if told else {**JSON, "Transfer-Encoding": "chunked"}
    )

    async def post() -> bytes:
        async with serving(one) as url:
            chunk = b"" if told else b"186a1\r\n" + b"x" * 100_001 + b"\r\n"
            return await raw(url, head(headers) + chunk, lambda _: asyncio.sleep(0))

    assert asyncio.run(post()).startswith(b"HTTP/1.1 413 ")


def head(headers: dict[str, str]) -> bytes:
    lines = ["POST / HTTP/1.1", "Host: localhost", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def raw(
    url: str, sent: bytes, then: Callable[[asyncio.StreamWriter], Awaitable[None]]
) -> bytes:
    """Everything that a server answers on one connection until it closes it."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(sent)
    await then(writer)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nHost: local"])
def test_a_connection_without_a_request_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_heads, "HEAD_S", 0.1)

    async def connect() -> bytes:
        async with serving(one) as url:
            return await raw(url, sent, lambda _: asyncio.sleep(0))

    assert asyncio.run(connect()) == b""


def test_a_body_that_stalls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_checks, "BODY_S", 0.1)

    async def stall() -> bytes:
        async with serving(one) as url:
            sent = head({**JSON, "Content-Length": "10"}) + b"{"
            return await raw(url, sent, lambda _: asyncio.sleep(0))

    assert asyncio.run(stall()).startswith(b"HTTP/1.1 408 ")


def test_other_machines_need_a_token() -> None:
    with pytest.raises(SettingsError, match=r"listening on 0\.0\.0\.0 admits other machines"):
        serve_http(one, host="0.0.0.0", on_listening=print)
