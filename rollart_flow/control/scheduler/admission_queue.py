"""Input of the scheduler: the tasks of a run, and the requests of sources for attempts.

The invariant: a source that repeats a request with the same index gets the same attempt, so that
a restarted source neither loses nor duplicates an attempt.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator

from rollart_flow.control.loop.bounded_dict import BoundedDict
from rollart_flow.errors import RunFailedError
from rollart_flow.types import Assignment, Task


class TaskSource:
    """Tasks of a run, each with its cursor.

    Args:
        tasks: (task, cursor) pairs with growing cursors, from where an earlier scheduler stopped.
    """

    def __init__(self, tasks: Iterator[tuple[Task, int]]) -> None:
        self._tasks = tasks
        self._cursor: int | None = None
        self.exhausted = False

    def take(self) -> tuple[Task, int] | None:
        """Return the next task and its cursor, or None if there are no more.

        Raises:
            RunFailedError: the source raised or its cursors do not grow.
        """
        try:
            task, cursor = next(self._tasks)
        except StopIteration:
            self.exhausted = True
            return None
        except RunFailedError:
            raise
        except Exception as error:  # task sources are user code: any error ends the run
            raise RunFailedError(f"the tasks raised {type(error).__name__}: {error}") from error
        if self._cursor is not None and cursor <= self._cursor:
            raise RunFailedError(
                f"the tasks' cursor went from {self._cursor} to {cursor}, but must grow"
            )
        self._cursor = cursor
        return task, cursor


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
