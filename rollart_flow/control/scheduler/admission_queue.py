"""Where sources ask for attempts: the index-th question of a source has one answer, for good.

The invariant: asked again with the same index a source gets the same attempt, so that a source
that is restarted neither loses nor doubles one.
"""

import asyncio
from collections import OrderedDict

from rollart_flow.control.loop.bounded_dict import BoundedDict
from rollart_flow.errors import RunFailedError
from rollart_flow.types import Assignment

_Key = tuple[str, int]


class AdmissionQueue:
    """Open questions in the order in which they were asked, and recent answers.

    Args:
        history: answers that are remembered.
    """

    def __init__(self, history: int) -> None:
        self._answers: BoundedDict[_Key, Assignment] = BoundedDict(history)
        self._asks: OrderedDict[_Key, asyncio.Future[Assignment | None]] = OrderedDict()
        self._forgotten: dict[str, int] = {}

    @property
    def next_source(self) -> str | None:
        """Who waits the longest; None where nobody waits."""
        return next(iter(self._asks))[0] if self._asks else None

    def answered(self, source: str, index: int) -> Assignment | None:
        """What this question was answered.

        Raises:
            RunFailedError: it was answered too long ago to be remembered.
        """
        if index <= self._forgotten.get(source, -1):
            raise RunFailedError(
                f"source {source!r} asks again for attempt {index}, which it got too long ago; "
                "start it under a new name"
            )
        return self._answers.get((source, index))

    def ask(self, source: str, index: int) -> asyncio.Future[Assignment | None]:
        """Queue a question; its future is shared by all that ask the same."""
        key = (source, index)
        if key not in self._asks:
            self._asks[key] = asyncio.get_running_loop().create_future()
        return self._asks[key]

    def answer(self, assignment: Assignment) -> None:
        """Answer the oldest question."""
        key, future = self._asks.popitem(last=False)
        if (forgotten := self._answers.add(key, assignment)) is not None:
            (source, index), _ = forgotten
            self._forgotten[source] = max(index, self._forgotten.get(source, -1))
        future.set_result(assignment)

    def dismiss(self) -> None:
        """Answer all open questions with None: there is nothing more."""
        while self._asks:
            self._asks.popitem()[1].set_result(None)
