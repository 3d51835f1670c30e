"""A stream of messages that one reader reads with a cursor.

The invariant: an item stays until a read acknowledges it, so that whatever happens to requests
and replies (lost, repeated, out of order) each item reaches the reader at least once and, in the
replies to one cursor, in order. Items are idempotent, so that once too often does no harm.
"""

from collections import deque
from typing import Generic, TypeVar

from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.errors import RunFailedError

T = TypeVar("T")


class ReplayableQueue(Generic[T]):
    """Numbered items from `start + 1` on. Reading after a cursor acknowledges all up to it.

    Args:
        name: what the waits are called.
        start: cursor before the first item. A feed that takes the place of an earlier one starts
            above all cursors of that one, so that an old cursor reads everything.
        limit: most items that may be unacknowledged, after which the reader counts as gone.
    """

    def __init__(self, name: str, *, start: int = 0, limit: int = 100_000) -> None:
        self._name = name
        self._limit = limit
        self._items: deque[T] = deque()
        self._last = start
        self._closed = False
        self._published = Signal()

    @property
    def cursor(self) -> int:
        """Number of the newest item."""
        return self._last

    def __len__(self) -> int:
        """Items that are not acknowledged."""
        return len(self._items)

    def publish(self, item: T) -> None:
        """Append an item and wake the reader.

        Raises:
            RunFailedError: nobody has read for `limit` items.
        """
        if len(self._items) >= self._limit:
            raise RunFailedError(
                f"{self._name}: {self._limit} messages wait and nobody reads them; "
                "its reader is gone or stuck"
            )
        self._items.append(item)
        self._last += 1
        self._published.notify()

    async def read(self, after: int) -> tuple[int, tuple[T, ...]]:
        """Wait for items past the cursor; (new cursor, items). Empty only once it is closed.

        A cursor that this feed has not reached yet is one of another feed and reads everything.
        """
        if after > self._last:
            after = self._last - len(self._items)
        self._acknowledge(after)
        while not self._items_after(after) and not self._closed:
            with waiting(f"{self._name}.read({after})"):
                await self._published.wait()
        return self._last, self._items_after(after)

    def close(self) -> None:
        """Wake readers for good: they get what there is, or nothing."""
        self._closed = True
        self._published.notify()

    def _acknowledge(self, after: int) -> None:
        while self._items and self._last - len(self._items) < after:
            self._items.popleft()

    def _items_after(self, after: int) -> tuple[T, ...]:
        first = self._last - len(self._items)
        skip = max(0, after - first)
        if skip == 0:
            return tuple(self._items)
        return tuple(list(self._items)[skip:])
