"""BoundedDict: a mapping that discards its oldest entries to bound memory use."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """A mapping of the `limit` newest entries. Re-adding a key keeps its value and position."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[K, V] = OrderedDict()

    def add(self, key: K, value: V) -> tuple[K, V] | None:
        """Add an entry and return the entry that was discarded for it, if any."""
        self._entries.setdefault(key, value)
        if len(self._entries) <= self._limit:
            return None
        return self._entries.popitem(last=False)

    def get(self, key: K) -> V | None:
        """Return the value, or None if the key is unknown or discarded."""
        return self._entries.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
