"""Text completion for judges, and its implementation over an OpenAI-compatible URL.

Invariant: the API key is read from the environment for each request and is used in its header
alone; no setting, error or representation in this module holds it.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus
from random import uniform
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from rollart_flow.errors import MissingExtraError, RewardFailedError, SettingsError

if TYPE_CHECKING:
    import ssl

_PATH = "/chat/completions"
_LONGEST_WAIT_S = 60.0
_SHOWN_CHARACTERS = 200
_SECRET = re.compile("key|token|secret|sig|pass", re.IGNORECASE)
_TOO_MANY, _SERVER_ERROR = HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.INTERNAL_SERVER_ERROR
_ABOUT_THE_KEY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Completes(Protocol):
    """A client that completes prompts, deterministically as far as it can."""

    @property
    def model(self) -> str:
        """Name of the model; different weights must have different names."""

    async def complete(self, prompt: str) -> str:
        """Return the completion of one prompt; RewardFailedError if the request failed."""


@dataclass(frozen=True, slots=True)
class ChatCompletions:
    """A client of an OpenAI-compatible chat completions URL, at temperature 0.

    A request that fails with status 429 or 5xx, or in transport, is retried after `backoff_s`,
    which doubles with each attempt (with a jitter of a quarter), or after the time in Retry-After.
    The reward's timeout limits all attempts together. Raises SettingsError if a setting is out of
    range.
    """

    url: str
    """URL of the API, such as https://api.openai.com/v1, with or without /chat/completions."""
    model: str
    key_variable: str = ""
    """Name of the environment variable with the API key; empty to send no key."""
    max_tokens: int = 512
    """Largest number of tokens of an answer."""
    timeout_s: float = 60.0
    """Time limit of one request [s]."""
    attempts: int = 4
    """Largest number of requests, the first included."""
    backoff_s: float = 1.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError("judge: the url must be http(s)://host..., without anything secret")
        if parts.username or parts.password:
            raise SettingsError(
                "judge: the url holds a user or password; put the key into an environment variable "
                "and name it with key_variable"
            )
        if secret := next((n for n, _ in parse_qsl(parts.query) if _SECRET.search(n)), None):
            raise SettingsError(
                f"judge: the url holds {secret!r}, which looks secret; put it into an environment "
                "variable and name it with key_variable"
            )
        if not self.model:
            raise SettingsError("judge: model is empty; name the model that the url serves")
        for name in ("max_tokens", "timeout_s", "attempts", "backoff_s"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"judge: {name} is {getattr(self, name)}; it must be above 0")

    async def complete(self, prompt: str) -> str:
        """Return the model's answer to one user message.

        Raises:
            MissingExtraError: httpx2 is not installed.
            RewardFailedError: the key is missing, the request was refused, or the response is not
                in the format of OpenAI's API.
        """
        httpx2 = _httpx2()
        headers = {} if not self.key_variable else {"Authorization": f"Bearer {self._key()}"}
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }
        # without TLS nothing is verified, and no certificates need to be read
        verify = _certificates() if self._endpoint.startswith("https:") else False
        async with httpx2.AsyncClient(timeout=self.timeout_s, verify=verify) as client:
            for attempt in range(self.attempts):
                last = attempt == self.attempts - 1
                try:
                    response = await client.post(self._endpoint, json=body, headers=headers)
                except httpx2.TransportError as error:
                    if last:
                        raise self._failed(f"{type(error).__name__} {error}".strip()) from None
                    response = None
                if response is not None:
                    status = response.status_code
                    if last or not (status == _TOO_MANY or status >= _SERVER_ERROR):
                        return self._answer(response)
                told = {} if response is None else response.headers
                await asyncio.sleep(wait_s(attempt, self.backoff_s, told, datetime.now(UTC)))
        raise AssertionError("the last attempt returned or raised")

    @property
    def _endpoint(self) -> str:
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/")
        path = path if path.endswith(_PATH) else path + _PATH
        return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))

    def _key(self) -> str:
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise RewardFailedError(
                f"judge: the environment variable {self.key_variable} is not set; "
                "put the API key into it"
            )
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise RewardFailedError(
                f"judge: the environment variable {self.key_variable} holds no API key: "
                "a key is printable ASCII without blanks"
            )
        return key

    def _answer(self, response: Any) -> str:
        status = response.status_code
        if status != HTTPStatus.OK:
            shown = "" if status in _ABOUT_THE_KEY else self._shown(response.text)
            raise self._failed(f"status {status} {shown}".strip())
        try:
            answer = response.json()["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            answer = None
        if not isinstance(answer, str):
            raise self._failed(f"no chat completion but {self._shown(response.text)}")
        return answer

    def _shown(self, text: str) -> str:
        """Return the beginning of a server's response, with the key masked if it is there."""
        key = os.environ.get(self.key_variable, "").strip() if self.key_variable else ""
        return repr((text.replace(key, "***") if key else text)[:_SHOWN_CHARACTERS])

    def _failed(self, what: str) -> RewardFailedError:
        url = urlsplit(self.url)
        where = f"{self.model} at {url.scheme}://{url.netloc}"
        return RewardFailedError(f"judge: {where} answered: {what}")


def retry_after_s(header: str, now: datetime) -> float | None:
    """Seconds of a Retry-After header, a number or a date (RFC 9110, 10.2.3); None of another."""
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        return max((parsedate_to_datetime(header) - now).total_seconds(), 0.0)
    except (ValueError, TypeError):  # no date, or one without a time zone
        return None


def wait_s(attempt: int, backoff_s: float, headers: Mapping[str, str], now: datetime) -> float:
    """Return the seconds to wait after the failed attempt, from 0.

    Without a Retry-After the wait is random, and its limit doubles from `backoff_s`.
    """
    told = retry_after_s(headers.get("Retry-After", ""), now)
    if told is not None:
        return min(told, _LONGEST_WAIT_S)
    longest = min(backoff_s * 2**attempt, _LONGEST_WAIT_S)
    return uniform(0.75 * longest, longest)


def _httpx2() -> Any:
    try:
        import httpx2
    except ImportError as error:
        raise MissingExtraError(
            "a judge behind a url needs httpx2; pip install 'rollart-flow[serverless]'"
        ) from error
    return httpx2


@cache
def _certificates() -> "ssl.SSLContext":
    """Load the TLS certificates, once: this takes longer than a request to a nearby server."""
    context: ssl.SSLContext = _httpx2().create_ssl_context()
    return context
