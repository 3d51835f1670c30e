"""The connection of a box's holder to the agent in the box.

Invariants: nothing from the box is unpickled or unmarshalled; an answer that does not parse ends
the box. A request whose caller was cancelled takes no later answer, and no descriptor leaks.
"""

from __future__ import annotations

import array
import asyncio
import itertools
import marshal
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollart_flow.errors import SandboxError

_LONGEST_ANSWER_BYTES = 4096
LONGEST_REQUEST_BYTES = 1 << 17
"""Longest request: a command with its variables [bytes]."""

_NUMBERS = {"ended": 2, "refused": 1, "opened": 0, "counted": 1}
"""Kinds of answers, and how many numbers each has."""
_KINDS = {"open": ("opened", "refused"), "count": ("counted",), "kill_all": ("counted",)}
"""Kinds of answers to each operation; `_ENDS` for all others."""
_ENDS = ("ended", "refused")
_LARGEST = 2**31
"""Bound of the numbers in an answer."""


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """The answer of an agent to one request."""

    kind: str
    """ended, refused, opened or counted (`agent`)."""
    numbers: tuple[int, ...]
    descriptor: int | None
    """Descriptor of an opened file, which the caller closes."""


class Connection:
    """Requests and answers over a socket; any number of requests may be under way.

    Args:
        ours: the holder's end of the socket pair.
    """

    def __init__(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self._socket = ours
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[asyncio.Future[AgentAnswer], tuple[str, ...]]] = {}
        self._ids = itertools.count(1)
        self._ended = False
        self.ended_at = 0.0
        """Time of the loop at which the agent was found gone."""
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(ours.fileno(), self._receive)

    @property
    def ended(self) -> bool:
        """Whether the agent is gone."""
        return self._ended

    def send(
        self, operation: str, arguments: Sequence[Any], descriptors: Sequence[int] = ()
    ) -> tuple[int, asyncio.Future[AgentAnswer]]:
        """Send a request; return its id and the future of its answer.

        Raises:
            SandboxError: the agent is gone, or does not read.
            ValueError: the request is longer than `LONGEST_REQUEST_BYTES`.
        """
        identity = next(self._ids)
        data = marshal.dumps((identity, operation, *arguments))
        if len(data) > LONGEST_REQUEST_BYTES:
            raise ValueError(f"a request of {len(data)} bytes is too long")
        if self._ended:
            raise SandboxError("the sandbox has ended")
        control = []
        if descriptors:
            packed = array.array("i", descriptors)
            control.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, packed))
        answer: asyncio.Future[AgentAnswer] = self._loop.create_future()
        self._waiting[identity] = answer, _KINDS.get(operation, _ENDS)
        try:
            self._socket.sendmsg([data], control)
        except OSError as error:
            del self._waiting[identity]
            raise SandboxError(f"the sandbox takes no request: {error}") from error
        return identity, answer

    def close(self) -> None:
        """End the connection, with which the box ends."""
        if not self._ended:
            self._end()

    def _receive(self) -> None:
        """Take the messages that have arrived."""
        while True:
            try:
                data, control, _, _ = self._socket.recvmsg(
                    _LONGEST_ANSWER_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                data, control = b"", []
            received = array.array("i")
            for _, _, packed in control:
                received.frombytes(packed)
            if not data or not self._take(data, received):
                self._end()
                return

    def _take(self, data: bytes, received: array.array[int]) -> bool:
        """Give an answer to its caller; False if it is none."""
        left = [*received]  # one at most, unless the box sends what it should not
        try:
            if data == b"ready":
                if not self.ready.done():
                    self.ready.set_result(None)
                return True
            identity, answer = _parsed(data, left[0] if left else None)
            waiting, kinds = self._waiting.get(identity, (None, ()))
            if waiting is not None and not waiting.done():
                if answer.kind not in kinds:
                    return False
                waiting.set_result(answer)
                del left[:1]
            self._waiting.pop(identity, None)
            return True
        except ValueError:
            return False
        finally:
            for descriptor in left:
                os.close(descriptor)

    def _end(self) -> None:
        self._ended = True
        self.ended_at = self._loop.time()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        error = SandboxError("the sandbox has ended")
        answers = (answer for answer, _ in self._waiting.values())
        futures: list[asyncio.Future[Any]] = [self.ready, *answers]
        for waiting in futures:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # it may have no caller any more
        self._waiting.clear()


def _parsed(data: bytes, descriptor: int | None) -> tuple[int, AgentAnswer]:
    """Return the id and the answer in a message; ValueError if it has none."""
    identity, kind, *texts = data.decode("ascii").split(" ")
    numbers = tuple(map(int, texts))
    if len(numbers) != _NUMBERS.get(kind) or (kind == "opened") != (descriptor is not None):
        raise ValueError(f"no answer is {kind}")
    if any(abs(number) >= _LARGEST for number in numbers):
        raise ValueError("a number is too large")
    return int(identity), AgentAnswer(kind, numbers, descriptor)
