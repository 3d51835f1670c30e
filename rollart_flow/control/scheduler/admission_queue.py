"""Admission queue: the requests of sources for attempts, and recent answers.

The invariant: a source that repeats a request with the same index gets the same attempt, so that
a restarted source neither loses nor duplicates an attempt.
"""

import asyncio
from collections import OrderedDict

from rollart_flow.control.loop.bounded_dict import BoundedDict
from rollart_flow.errors import RunFailedError
from rollart_flow.types import Assignment

_Key = tuple[str, int]


class AdmissionQueue:
    """Open requests in order of arrival, and recent answers.

    Args:
        history: number of remembered answers.
    """

    def __init__(self, history: int) -> None:
        self._answers: BoundedDict[_Key, Assignment] = BoundedDict(history)
        self._asks: OrderedDict[_Key, asyncio.Future[Assignment | None]] = OrderedDict()
        self._forgotten: dict[str, int] = {}

    @property
    def next_source(self) -> str | None:
        """The longest-waiting source, or None if the queue is empty."""
        return next(iter(self._asks))[0] if self._asks else None

    def answered(self, source: str, index: int) -> Assignment | None:
        """Return the earlier answer to a request, or None if there is none.

        Raises:
            RunFailedError: the request was answered too long ago to be remembered.
        """
        if index <= self._forgotten.get(source, -1):
            raise RunFailedError(
                f"source {source!r} asks again for attempt {index}, which it got too long ago; "
                "start it under a new name"
            )
        return self._answers.get((source, index))

    def ask(self, source: str, index: int) -> asyncio.Future[Assignment | None]:
        """Queue a request; identical requests share one future."""
        key = (source, index)
        if key not in self._asks:
            self._asks[key] = asyncio.get_running_loop().create_future()
        return self._asks[key]

    def answer(self, assignment: Assignment) -> None:
        """Answer the oldest request."""
        key, future = self._asks.popitem(last=False)
        if (forgotten := self._answers.add(key, assignment)) is not None:
            (source, index), _ = forgotten
            self._forgotten[source] = max(index, self._forgotten.get(source, -1))
        future.set_result(assignment)

    def dismiss(self) -> None:
        """Answer all open requests with None, since no more attempts are assigned."""
        while self._asks:
            self._asks.popitem()[1].set_result(None)
