"""The connection of one OpenEnv session: requests, answers, errors, and a server that is full."""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rollart_flow.envs.foreign.web import (
    MAX_ANSWER_BYTES,
    bearer,
    beginning,
    json_object,
    tls,
)
from rollart_flow.errors import EnvironmentFailedError, MissingExtraError
from rollart_flow.retries import RetryPolicy, retried_async
from rollart_flow.secret import Secret
from rollart_flow.text import one_line
from rollart_flow.types import Retried

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_log = logging.getLogger(__name__)

_FULL = "CAPACITY_REACHED"
_INVALID = "VALIDATION_ERROR"
_CLOSE_S = 2.0
"""Longest wait for the other side of a connection to close it [s]."""
_UNREACHABLE = RetryPolicy(limit_s=5.0, backoff_s=0.2, backoff_cap_s=2.0)
"""A server that restarts is asked again for a short time."""


class RefusedActionError(EnvironmentFailedError):
    """The server refuses an action as invalid; the session goes on."""

    kind = ""
    """Type of the first validation error, as pydantic names it."""


class _FullError(EnvironmentFailedError):
    """The server has as many sessions as it takes."""


class _UnreachableError(EnvironmentFailedError):
    """No connection can be made now."""


class OpenEnvAnswer(NamedTuple):
    """The answer to a reset or a step."""

    observation: Mapping[str, Any]
    reward: float
    done: bool
    metadata: Mapping[str, Any]


class OpenEnvPlace(Protocol):
    """The settings of a domain that a connection reads."""

    @property
    def url(self) -> str: ...

    @property
    def token(self) -> Secret | None: ...

    @property
    def wait_s(self) -> float: ...


class OpenEnvSocket:
    """A connection that is opened once for each session."""

    def __init__(self, settings: OpenEnvPlace) -> None:
        self._settings = settings
        self._who = f"OpenEnv at {settings.url}"
        self._connection: ClientConnection | None = None

    async def open(self) -> None:
        """Connect unless that is done; a server that is full is asked again for `wait_s`."""
        if self._connection is not None:
            return
        policy = RetryPolicy(limit_s=self._settings.wait_s, backoff_s=0.5, backoff_cap_s=10.0)
        await retried_async(self._who, self._opened, _FullError, _note, policy)

    async def ask(self, kind: str, data: Mapping[str, Any]) -> OpenEnvAnswer:
        """Return the answer to a request of a kind.

        Raises:
            RefusedActionError: the server refuses the action as invalid.
            EnvironmentFailedError: another error; the connection is closed.
        """
        try:
            found = await self._exchange({"type": kind, "data": dict(data)}, "observation")
            return _answer(found, self._who)
        except RefusedActionError:
            raise
        except BaseException:
            self._drop()
            raise

    async def close(self) -> None:
        """End the session and close the connection. May be called twice."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        from websockets.exceptions import WebSocketException

        try:
            await connection.send('{"type": "close"}')
            await connection.close()
        except (OSError, WebSocketException) as error:
            _log.info("%s was not told of the end: %s", self._who, one_line(error))
        finally:
            connection.transport.abort()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.transport.abort()

    async def _opened(self) -> None:
        """Connect, and ask for the state: a server that is full accepts, and refuses then."""
        await retried_async(self._who, self._connect, _UnreachableError, _note, _UNREACHABLE)
        try:
            await self._exchange({"type": "state"}, "state")
        except BaseException:
            self._drop()
            raise

    async def _connect(self) -> None:
        try:
            from websockets.asyncio.client import connect
            from websockets.exceptions import InvalidHandshake, WebSocketException
        except ImportError as error:
            raise MissingExtraError(
                "OpenEnv needs websockets; install rollart-flow[remote]"
            ) from error

        class Direct(connect):
            """A connection to the address that the pipeline names, and to no other."""

            def process_redirect(self, exc: Exception) -> Exception | str:
                return exc

        secure = self._settings.url.startswith("wss://")
        try:
            self._connection = await Direct(
                self._settings.url,
                additional_headers=bearer(self._settings.token),
                compression=None,
                open_timeout=None,  # the call that waits has a limit
                close_timeout=_CLOSE_S,
                max_size=MAX_ANSWER_BYTES,
                ssl=tls() if secure else None,
            )
        except InvalidHandshake as error:
            said = one_line(error)
            raise EnvironmentFailedError(f"{self._who} refuses the connection: {said}") from error
        except (OSError, EOFError, WebSocketException) as error:
            said = one_line(error)
            raise _UnreachableError(f"{self._who} cannot be reached: {said}") from error

    async def _exchange(self, request: Mapping[str, Any], expected: str) -> Mapping[str, Any]:
        from websockets.exceptions import ConnectionClosed

        if self._connection is None:
            raise EnvironmentFailedError("step before reset; call reset first")
        try:
            with suppress(ConnectionClosed):  # what the server said before it closed tells why
                await self._connection.send(json.dumps(request))
            text = await self._connection.recv()
        except ConnectionClosed as error:
            raise EnvironmentFailedError(
                f"{self._who} closed the connection: {one_line(error)}"
            ) from error
        answer = json_object(text, self._who)
        data = answer.get("data")
        if answer.get("type") == "error" and isinstance(data, Mapping):
            raise self._error(data)
        if answer.get("type") != expected or not isinstance(data, Mapping):
            raise EnvironmentFailedError(
                f"{self._who} answered {beginning(text)} where {expected!r} with data belongs"
            )
        return data

    def _error(self, data: Mapping[str, Any]) -> EnvironmentFailedError:
        code, said = data.get("code"), one_line(data.get("message", ""))
        if code == _INVALID:
            kind, told = _first_difference(data.get("errors"))
            refused = RefusedActionError(f"{said}: {told}" if told else said)
            refused.kind = kind
            return refused
        line = f"{self._who} answered {code}: {said}"
        return _FullError(line) if code == _FULL else EnvironmentFailedError(line)


def _answer(data: Mapping[str, Any], who: str) -> OpenEnvAnswer:
    observation, done = data.get("observation"), data.get("done")
    reward = data.get("reward")
    if not isinstance(observation, Mapping) or not isinstance(done, bool):
        raise EnvironmentFailedError(
            f"{who} answered without an observation that is an object, or without done"
        )
    if reward is not None and not isinstance(reward, bool | int | float):
        raise EnvironmentFailedError(f"{who} gave {type(reward).__name__} as reward")
    metadata = data.get("metadata", observation.get("metadata"))
    if not isinstance(metadata, Mapping):
        metadata = {}
    return OpenEnvAnswer(observation, float(reward or 0.0), done, metadata)


def _first_difference(errors: Any) -> tuple[str, str]:
    """Return type and text of the first validation error in pydantic's form, or empty texts."""
    if not isinstance(errors, list) or not errors or not isinstance(errors[0], Mapping):
        return "", ""
    first = errors[0]
    place = first.get("loc")
    where = ".".join(map(str, place)) if isinstance(place, list) else ""
    return str(first.get("type", "")), one_line(f"{where}: {first.get('msg', '')}".strip(": "))


def _note(retried: Retried) -> None:
    _log.info("%s after %d failures in %.1f s", retried.what, retried.failures, retried.seconds)
