"""The `http://`, `https://` and `fc://` transport: a function behind a web address, called by POST.

`fc://` is `https://`, as function platforms serve it, and `http://` for an emulator on this
machine. A 2xx status carries an answer; 429 and 5xx are temporary errors; all others are refusals.
"""

from datetime import UTC, datetime
from urllib.parse import urlsplit

import httpx2

from rollart_flow.errors import EndpointTroubleError, ServerlessError, SettingsError
from rollart_flow.rewards.completions import retry_after_s
from rollart_flow.secret import Secret, masked
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports.base import Transport, limited
from rollart_flow.serverless.transports.registry import public_address

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS = {"Content-Type": "application/json"}
_SHOWN_CHARACTERS = 200
_TOO_MANY, _SERVER_ERROR = 429, 500


class HttpTransport(Transport):
    """A transport that keeps connections open between calls; each slot has two, one for a hedge."""

    def __init__(self, url: str, places: int, token: Secret | None = None) -> None:
        self._url = url
        self._token = token
        limits = httpx2.Limits(
            max_connections=2 * places, max_keepalive_connections=2 * places, keepalive_expiry=60
        )
        self._client = httpx2.AsyncClient(limits=limits, headers=_HEADERS)

    async def send(self, body: bytes, timeout_s: float) -> bytes:
        headers = {"Authorization": f"Bearer {self._token.reveal()}"} if self._token else None
        async with limited(timeout_s):
            try:
                response = await self._client.post(
                    self._url, content=body, headers=headers, timeout=timeout_s
                )
            except httpx2.RequestError as error:
                said = f"{type(error).__name__}: {error}".rstrip(": ")
                raise EndpointTroubleError(f"it cannot be reached: {said}") from error
        return _content(response)

    async def close(self) -> None:
        await self._client.aclose()


def open_transport(url: str, policy: CallPolicy) -> HttpTransport:
    if url.startswith("fc://"):
        local = urlsplit(url).hostname in _LOCAL_HOSTS
        url = ("http://" if local else "https://") + url.removeprefix("fc://")
    try:
        httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise SettingsError(f"{public_address(url)!r} is no web address: {error}") from error
    return HttpTransport(url, policy.max_concurrent, policy.token)


def _content(response: httpx2.Response) -> bytes:
    if response.is_success:
        return response.content
    status = response.status_code
    text = masked(response.text)[:_SHOWN_CHARACTERS]
    said = f"it answered with status {status}: {text}".rstrip(": ")
    if status == _TOO_MANY or status >= _SERVER_ERROR:
        told = response.headers.get("Retry-After", "")
        raise EndpointTroubleError(said, retry_after_s(told, datetime.now(UTC)) or 0.0)
    raise ServerlessError(said)
