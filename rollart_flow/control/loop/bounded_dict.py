"""A mapping that forgets its oldest entries, so that memory does not grow with a run."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """The `limit` newest entries. Setting a key again keeps its first value and place."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[K, V] = OrderedDict()

    def add(self, key: K, value: V) -> tuple[K, V] | None:
        """Remember an entry; the one that was forgotten for it, if any."""
        self._entries.setdefault(key, value)
        if len(self._entries) <= self._limit:
            return None
        return self._entries.popitem(last=False)

    def get(self, key: K) -> V | None:
        """The value, or None where the key is unknown or forgotten."""
        return self._entries.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
