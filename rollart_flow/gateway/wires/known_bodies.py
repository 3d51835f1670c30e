"""The bodies that a session has read: what a new one has in common with them.

A client sends its whole conversation with every call, so that all but the last elements of its
history are those of a body before.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rollart_flow.gateway.wires.conversation import ConversationBuilder, HistoryPlace

if TYPE_CHECKING:
    from hashlib import _Hash

KEPT_BODIES = 8
"""Most bodies that a session keeps: conversations that it interleaves, such as sub-agents."""
KEPT_BYTES = 32 << 20
"""Most bytes of the bodies that a session keeps."""
MARKS = 16
"""Last elements of a history before which a later body may change it without being read anew."""
_PLACES = 4
"""Most places of a body at which its history is looked for."""


@dataclass(frozen=True, slots=True)
class HistoryMark:
    """The end of an element of a history, from which a later body may go on."""

    count: int
    """Number of elements up to here."""
    place: HistoryPlace
    """State of the wire's reading up to here."""
    digest: "_Hash"
    """State of the digest of the body up to here."""


@dataclass(frozen=True, slots=True)
class KnownBody:
    """A body that was read."""

    wire: str
    path: str
    body: bytes
    start: int
    """Index of the first byte of the first element."""
    ends: Sequence[int]
    """Lengths from there to the end of each element."""
    history: ConversationBuilder
    marks: Sequence[HistoryMark]
    """Marks of the last elements."""

    def common(self, body: bytes, place: int) -> int:
        """Return how many first elements another body has at a place, byte by byte."""
        known, ends = memoryview(self.body)[self.start :], self.ends
        if body.startswith(known[: ends[-1]], place):
            return len(ends)
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high + 1) // 2
            begin = ends[low - 1] if low else 0
            if body.startswith(known[begin : ends[middle - 1]], place + begin):
                low = middle
            else:
                high = middle - 1
        return low


@dataclass(frozen=True, slots=True)
class KnownStart:
    """The known elements with which the history of a body begins."""

    known: KnownBody
    mark: HistoryMark
    place: int
    """Index in the body of the first byte of the first element."""

    @property
    def end(self) -> int:
        """Index in the body after the known elements."""
        return self.place + self.known.ends[self.mark.count - 1]


class KnownBodies:
    """The last bodies of one session; to be used by several threads at once."""

    def __init__(self) -> None:
        self._bodies: tuple[KnownBody, ...] = ()
        """The latest first; replaced as a whole."""

    def __len__(self) -> int:
        """Number of bodies."""
        return len(self._bodies)

    def add(self, new: KnownBody) -> None:
        """Keep a body in place of the one that it goes on from, and of the oldest ones."""
        room = KEPT_BYTES - len(new.body)
        if room < 0:
            return
        kept = [new]
        for each in self._bodies:
            if len(kept) < KEPT_BODIES and len(each.body) <= room and not _goes_on(new, each):
                kept.append(each)
                room -= len(each.body)
        self._bodies = tuple(kept)

    def found(self, wire: str, history: str, body: bytes) -> KnownStart | None:
        """Return the known elements with which a new body begins, the most there are.

        Args:
            wire: name of the wire.
            history: name of the field that has the history; empty if the wire names none.
            body: the body.
        """
        bodies = [each for each in self._bodies if each.wire == wire]
        for place in places(history, body) if bodies else ():
            found = [(each.common(body, place), each) for each in bodies]
            count, known = max(found, key=lambda each: each[0])
            mark = next((each for each in reversed(known.marks) if each.count <= count), None)
            if mark is not None:
                return KnownStart(known, mark, place)
        return None


def _goes_on(new: KnownBody, old: KnownBody) -> bool:
    """Return whether a body makes an older one useless: it has all but its last elements."""
    if old.wire != new.wire:
        return False
    common, count = new.common(old.body, old.start), len(old.ends)
    return common > count // 2 and common > count - MARKS


def places(name: str, body: bytes) -> Iterator[int]:
    """Yield the places at which the history of a body may begin: those of its first element."""
    if name:
        pattern, at = _pattern(name), 0
        for _ in range(_PLACES):
            found = pattern.search(body, at)
            if found is None:
                return
            at = found.end()
            yield at


@cache
def _pattern(name: str) -> "re.Pattern[bytes]":
    return re.compile(rb'"%s"[ \t\n\r]*:[ \t\n\r]*\[[ \t\n\r]*' % re.escape(name.encode()))
