"""A client of one session at an HTTP server: cookies, bounded answers, and errors in one line."""

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollart_flow.envs.foreign.web import MAX_ANSWER_BYTES, bearer, beginning, tls
from rollart_flow.errors import EnvironmentFailedError, MissingExtraError
from rollart_flow.retries import RetryPolicy, retried_async
from rollart_flow.secret import Secret
from rollart_flow.text import one_line
from rollart_flow.types import Retried

if TYPE_CHECKING:
    import httpx2

_log = logging.getLogger(__name__)

_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
_REFUSED, _SERVER_ERROR = 400, 500
_UNREACHABLE = RetryPolicy(limit_s=5.0, backoff_s=0.2, backoff_cap_s=2.0)
"""A server that restarts is asked again for a short time."""


class _AwayError(EnvironmentFailedError):
    """The server cannot be reached now."""


class WebClient:
    """Posts JSON to a server, with the cookies that it set.

    Redirects are not followed, and no call is repeated, since it may have had its effect.

    Args:
        url: address of the server.
        token: sent as a bearer token.
        who: name of the server, for errors.
    """

    def __init__(self, url: str, token: Secret | None, who: str) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._who = who
        self._client: httpx2.AsyncClient | None = None

    async def open(self) -> None:
        """Check that the server answers any request."""
        await retried_async(self._who, self._reached, _AwayError, _note, _UNREACHABLE)

    def renew(self) -> None:
        """Forget the cookies, so that a session begins."""
        self._opened().cookies.clear()

    async def post(self, path: str, body: Mapping[str, Any], *, refusals: bool = False) -> str:
        """Return the text of the answer to a JSON object.

        Args:
            path: route of the server.
            body: JSON object.
            refusals: whether the text of an answer with a status from 400 to 499 is returned.

        Raises:
            EnvironmentFailedError: another status, an answer that is too long, or no connection.
        """
        import httpx2

        content = json.dumps(body).encode()
        headers = {**_HEADERS, **bearer(self._token)}
        try:
            async with self._opened().stream(
                "POST", self._url + path, content=content, headers=headers
            ) as response:
                data = await self._read(response)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            said = one_line(f"{type(error).__name__}: {error}".rstrip(": "))
            raise _AwayError(f"{self._who} cannot be reached: {said}") from error
        status = response.status_code
        if response.is_success or (refusals and _REFUSED <= status < _SERVER_ERROR):
            return data.decode(errors="replace")
        raise EnvironmentFailedError(
            f"{self._who}: {path} answered with status {status}: {beginning(data)}"
        )

    async def close(self) -> None:
        """Close all connections; the next call opens others."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _reached(self) -> None:
        import httpx2

        try:
            async with self._opened().stream("GET", self._url + "/", headers=bearer(self._token)):
                pass
        except httpx2.HTTPError as error:
            said = one_line(f"{type(error).__name__}: {error}".rstrip(": "))
            raise _AwayError(f"{self._who} cannot be reached: {said}") from error

    async def _read(self, response: "httpx2.Response") -> bytes:
        data = bytearray()
        async for part in response.aiter_raw():  # as it came: a few packed bytes may be many
            data += part
            if len(data) > MAX_ANSWER_BYTES:
                raise EnvironmentFailedError(
                    f"{self._who} answered with over {MAX_ANSWER_BYTES} bytes"
                )
        return bytes(data)

    def _opened(self) -> "httpx2.AsyncClient":
        if self._client is None:
            try:
                import httpx2
            except ImportError as error:
                raise MissingExtraError(
                    f"{self._who} needs httpx2; install rollart-flow[remote]"
                ) from error
            self._client = httpx2.AsyncClient(
                timeout=None,  # the call that waits has a limit
                follow_redirects=False,
                verify=tls(),
            )
        return self._client


def _note(retried: Retried) -> None:
    _log.info("%s after %d failures in %.1f s", retried.what, retried.failures, retried.seconds)
