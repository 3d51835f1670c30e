"""ReplayableQueue: a stream of messages that one reader reads with a cursor.

The invariant: an item is kept until a read acknowledges it. Even if requests and replies are lost,
repeated or reordered, each item reaches the reader at least once and, in the replies to one cursor,
in order. Items are idempotent, so that duplicates have no effect.
"""

from collections import deque
from typing import Generic, TypeVar

from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.errors import RunFailedError

T = TypeVar("T")


class ReplayableQueue(Generic[T]):
    """Queue of items numbered from `start + 1`; a read acknowledges all items up to its cursor.

    Args:
        name: name of the queue in waits and errors.
        start: cursor before the first item. A queue that replaces an earlier one starts above all
            cursors of that one, so that an old cursor reads everything.
        limit: largest number of unacknowledged items, beyond which the reader counts as gone.
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
        """Number of unacknowledged items."""
        return len(self._items)

    def publish(self, item: T) -> None:
        """Append an item and wake the reader.

        Raises:
            RunFailedError: `limit` items are unacknowledged.
        """
        if len(self._items) >= self._limit:
            raise RunFailedError(
                f"{self._name}: {self._limit} messages are unacknowledged; "
                "the reader of the queue has ended or hangs"
            )
        self._items.append(item)
        self._last += 1
        self._published.notify()

    async def read(self, after: int) -> tuple[int, tuple[T, ...]]:
        """Wait for items past the cursor and return (new cursor, items).

        The items are empty only once the queue is closed. A cursor above the newest item belongs
        to another queue and reads everything.
        """
        if after > self._last:
            after = self._last - len(self._items)
        self._acknowledge(after)
        while not self._items_after(after) and not self._closed:
            with waiting(f"{self._name}.read({after})"):
                await self._published.wait()
        return self._last, self._items_after(after)

    def close(self) -> None:
        """Close the queue: reads return the remaining items without waiting."""
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
