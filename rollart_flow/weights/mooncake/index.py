"""The index of a run's versions in a Mooncake store, which cannot list its keys.

    <run>/index/00000041        one state of the index, never changed

Each change is a new key under the next number, and the highest number is the current state. Readers
find it by querying ranges of numbers: first every 64th number, which is never removed, then the
numbers after the last hit. If two writers use one number, the store keeps the first; the other
notices and retries. The invariant: an index names a version only after all of its keys were put,
and keys that no index names are listed in `leaving`, so that they are collected.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import count

from rollart_flow.errors import WeightsError, WeightStoreAwayError
from rollart_flow.weights.mooncake.client import MooncakeClient

_ANCHOR = 64
"""Interval of the numbers whose states are never removed."""
_PROBED = 256
"""Number of anchors queried at once."""
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Index:
    """One state of the index. A name stands for the keys of one attempt to publish."""

    published: dict[int, str] = field(default_factory=dict)
    """Name of each version."""
    leaving: tuple[str, ...] = ()
    """Names that are being published or are to be collected."""
    number: int = -1

    def without(self, names: Collection[str]) -> "Index":
        """Return the index without the given names in `leaving`."""
        return replace(self, leaving=tuple(name for name in self.leaving if name not in names))

    def begun(self, version: int) -> str | None:
        """Return the name of a version that is published or being published."""
        attempts = (*self.leaving, self.published.get(version, ""))
        return next((a for a in reversed(attempts) if a.startswith(f"v{version:06d}-")), None)

    def with_published(self, version: int, name: str) -> "Index":
        """Return the index with a version added; a damaged earlier attempt is to be collected."""
        if name not in self.leaving:
            raise WeightStoreAwayError(
                "its keys were lost or collected meanwhile; publish it again"
            )
        damaged = [self.published[version]] if version in self.published else []
        leaving = (*self.without([name]).leaving, *damaged)
        return replace(self, published={**self.published, version: name}, leaving=leaving)

    def encode(self) -> bytes:
        """Encode the state for storage."""
        return json.dumps({"published": self.published, "leaving": self.leaving}).encode()


class IndexLog:
    """The ordered states of one run's index."""

    def __init__(self, client: MooncakeClient, run: str) -> None:
        self._client = client
        self._run = run

    def newest(self) -> Index:
        """Return the current state; empty if no version was ever published.

        Raises:
            WeightStoreAwayError: the master does not answer.
        """
        last = 0
        for start in count(0, _ANCHOR * _PROBED):
            found = self._existing(range(start, start + _ANCHOR * _PROBED, _ANCHOR))
            if not found:
                break
            last = found[-1]
        found = self._existing(range(last, last + 2 * _ANCHOR))
        return self._read(found[-1]) if found else Index()

    def change(self, make: Callable[[Index], Index]) -> Index:
        """Append the result of `make` on the current state, unless it is unchanged, and return the
        new state.

        Raises:
            WeightsError: the master does not answer, or other writers keep changing the index.
        """
        for _ in range(_TRIES):
            now = self.newest()
            new = replace(make(now), number=now.number + 1)
            if (new.published, new.leaving) == (now.published, now.leaving):
                return now
            if self._append(new):
                return new
        raise WeightsError(f"the index of {self._run} in Mooncake has several writers; keep one")

    def _append(self, index: Index) -> bool:
        """Put a state and return whether it was the first under its number.

        A number that cannot be written because its writer was killed is skipped.
        """
        for number in range(index.number, index.number + _ANCHOR // 2):
            self._client.put(self._key(number), index.encode())
            if self._existing(range(number, number + 1)):
                self._prune(number)
                return self._get(number) == index.encode()
        raise WeightStoreAwayError(f"the index of {self._run} in Mooncake cannot be written")

    def _prune(self, number: int) -> None:
        """Remove states that are no longer queried, at each anchor."""
        if number % _ANCHOR == 0:
            old = range(max(0, number - 4 * _ANCHOR), number - 2 * _ANCHOR)
            self._client.remove([self._key(each) for each in old if each % _ANCHOR])

    def _existing(self, numbers: range) -> list[int]:
        found = self._client.existing([self._key(number) for number in numbers])
        return [number for number, there in zip(numbers, found, strict=True) if there]

    def _read(self, number: int) -> Index:
        raw = json.loads(self._get(number))
        published = {int(version): name for version, name in raw["published"].items()}
        return Index(published, tuple(raw["leaving"]), number)

    def _get(self, number: int) -> bytes:
        """Return an existing state."""
        if not (stored := self._client.get(self._key(number))):
            raise WeightStoreAwayError(
                f"state {number} of the index of {self._run} cannot be read now"
            )
        return stored

    def _key(self, number: int) -> str:
        return f"{self._run}/index/{number:08d}"
