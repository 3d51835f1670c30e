"""Counts of what an image cache did in this process."""

import threading
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCounters:
    """Counts since the cache was opened."""

    hits: dict[str, int] = field(default_factory=dict)
    """Images that were acquired, by the place that had them: `memory`, `disk`, or what it was
    pulled from."""
    pulls: dict[str, int] = field(default_factory=dict)
    """Images that were pulled, by place."""
    pulled_bytes: int = 0
    """Compressed bytes that were received, also those of pulls that failed."""
    pull_s: float = 0.0
    """Time of all pulls, with their retries [s]."""
    evictions: int = 0
    """Images that were removed to make room."""
    retries: int = 0
    """Failed attempts after which the same place was asked again."""
    failures: int = 0
    """Places that were given up for one pull."""

    def row(self) -> dict[str, Any]:
        """Return the counts as JSON data."""
        return asdict(self)


class Counting:
    """Counts of several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hits: Counter[str] = Counter()
        self._pulls: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._pull_s = 0.0

    def hit(self, place: str) -> None:
        """Count an image that was acquired from a place."""
        with self._lock:
            self._hits[place] += 1

    def pulled(self, place: str) -> None:
        """Count an image that was pulled from a place."""
        with self._lock:
            self._pulls[place] += 1

    def add(self, name: str, count: int = 1) -> None:
        """Raise the count of this name in `CacheCounters`."""
        with self._lock:
            self._counts[name] += count

    def time(self, seconds: float) -> None:
        """Add the time of a pull [s]."""
        with self._lock:
            self._pull_s += seconds

    def read(self) -> CacheCounters:
        """Return the counts so far."""
        with self._lock:
            return CacheCounters(
                hits=dict(self._hits),
                pulls=dict(self._pulls),
                pull_s=self._pull_s,
                **self._counts,
            )
