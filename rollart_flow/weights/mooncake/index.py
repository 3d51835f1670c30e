"""Which versions a run has in a Mooncake store, which cannot list its keys.

    <run>/index/00000041        one state of the index, never changed

Each change is a new key under the next number, and the one with the highest number holds.
Readers find it by asking for whole ranges of numbers at once: first for every 64th, which are never
removed, then for those after the last. Of two writers of one number the store keeps the first; the
other one sees it and tries again. The invariant: an index names a version only after all of it was
put, and whatever is put without being named by one is `leaving`, so that it is collected.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import count

from rollart_flow.errors import WeightsError
from rollart_flow.weights.mooncake.client import MooncakeClient

_ANCHOR = 64
"""Every so many numbers one is never removed."""
_PROBED = 256
"""Anchors that are asked for at once."""
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Index:
    """One state. Names stand for the keys of one attempt to publish."""

    published: dict[int, str] = field(default_factory=dict)
    """Name by version."""
    leaving: tuple[str, ...] = ()
    """Names of what is being published, or to be collected."""
    number: int = -1

    def without(self, names: Collection[str]) -> "Index":
        """Not to be collected any more."""
        return replace(self, leaving=tuple(name for name in self.leaving if name not in names))

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps({"published": self.published, "leaving": self.leaving}).encode()


class IndexLog:
    """The states of one run's index, in order."""

    def __init__(self, client: MooncakeClient, run: str) -> None:
        self._client = client
        self._run = run

    def newest(self) -> Index:
        """The state that holds; an empty one where nothing was ever published.

        Raises:
            WeightsError: the master does not answer.
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
        """Append what `make` makes of the state that holds, unless that is the same.

        Raises:
            WeightsError: the master does not answer, or others change it all the time.
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
        """Put a state; whether it is the one of its number. A number that cannot be written to,
        since its writer was killed, is passed over."""
        for number in range(index.number, index.number + _ANCHOR // 2):
            self._client.put(self._key(number), index.encode())
            if self._existing(range(number, number + 1)):
                self._prune(number)
                return self._get(number) == index.encode()
        raise WeightsError(f"the index of {self._run} in Mooncake cannot be written")

    def _prune(self, number: int) -> None:
        """Remove states that nobody asks for any more, at each anchor."""
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
        """A state that is there."""
        if not (stored := self._client.get(self._key(number))):
            raise WeightsError(f"state {number} of the index of {self._run} cannot be read now")
        return stored

    def _key(self, number: int) -> str:
        return f"{self._run}/index/{number:08d}"
