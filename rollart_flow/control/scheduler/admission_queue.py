"""Input of the scheduler: the tasks of a run, and the requests of sources for attempts.

The invariant: a source that repeats a request with the same index gets the same attempts, as long
as any of them may be unknown to its stream, so that a restarted source neither loses nor duplicates
an attempt.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rollart_flow.errors import BlockOverError, RunFailedError
from rollart_flow.types import Assignment, Task


class TaskSource:
    """Tasks of a run, each with its cursor.

    Args:
        tasks: (task, cursor) pairs with growing cursors, from where an earlier scheduler stopped;
            None stands for a task that is not there yet.
    """

    def __init__(self, tasks: Iterator[tuple[Task, int] | None]) -> None:
        self._tasks = tasks
        self._cursor: int | None = None
        self.exhausted = False

    def take(self) -> tuple[Task, int] | None:
        """Return the next task and its cursor, or None if there is none now (or ever: `exhausted`).

        Raises:
            RunFailedError: the source raised or its cursors do not grow.
        """
        try:
            taken = next(self._tasks)
        except StopIteration:
            self.exhausted = True
            return None
        except RunFailedError:
            raise
        except Exception as error:  # task sources are user code: any error ends the run
            raise RunFailedError(f"the tasks raised {type(error).__name__}: {error}") from error
        if taken is None:
            return None
        task, cursor = taken
        if self._cursor is not None and cursor <= self._cursor:
            raise RunFailedError(
                f"the tasks' cursor went from {self._cursor} to {cursor}, but must grow"
            )
        self._cursor = cursor
        return task, cursor


_Key = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionRequest:
    """The request of a source for its next attempts."""

    source: str
    index: int
    most: int
    """Maximum number of attempts."""
    answer: asyncio.Future[tuple[Assignment, ...]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class AdmissionQueue:
    """Open requests in order of arrival, and recent answers.

    Args:
        history: number of attempts whose answers are remembered.
    """

    def __init__(self, history: int) -> None:
        self._history = history
        self._remembered = 0
        self._answers: OrderedDict[_Key, tuple[Assignment, ...]] = OrderedDict()
        self._asks: OrderedDict[_Key, AdmissionRequest] = OrderedDict()
        self._forgotten: dict[str, int] = {}
        self._sources: set[str] = set()

    @property
    def oldest(self) -> AdmissionRequest | None:
        """The longest-waiting request, or None if the queue is empty."""
        return next(iter(self._asks.values()), None)

    def answered(self, source: str, index: int) -> tuple[Assignment, ...] | None:
        """Return the earlier answer to a request, or None if there is none.

        Raises:
            BlockOverError: all attempts of the block have started or ended.
        """
        found = self._answers.get((source, index))
        if index <= self._forgotten.get(source, -1) or found == ():
            raise BlockOverError(f"block {index} of source {source!r} is over")
        return found

    def knows(self, source: str) -> bool:
        """Whether a source has asked before, or reported its attempts."""
        return source in self._sources

    def know(self, source: str, blocks: Iterable[tuple[Assignment, ...]] = ()) -> None:
        """Remember a source, and what has not ended of the blocks that it has reported."""
        self._sources.add(source)
        for index, block in enumerate(blocks):
            forgotten = index <= self._forgotten.get(source, -1)
            if not forgotten and (source, index) not in self._answers:
                self._remember((source, index), block)

    def ask(self, source: str, index: int, most: int) -> asyncio.Future[tuple[Assignment, ...]]:
        """Queue a request; identical requests share one future."""
        key = (source, index)
        self.know(source)
        if key not in self._asks:
            self._asks[key] = AdmissionRequest(source, index, most)
        return self._asks[key].answer

    def answer(self, assignments: tuple[Assignment, ...]) -> None:
        """Answer the oldest request."""
        key, request = self._asks.popitem(last=False)
        self._remember(key, assignments)
        request.answer.set_result(assignments)

    def _remember(self, key: _Key, assignments: tuple[Assignment, ...]) -> None:
        self._answers[key] = assignments
        self._remembered += len(assignments)
        while self._remembered > self._history and len(self._answers) > 1:
            (source, index), forgotten = self._answers.popitem(last=False)
            self._remembered -= len(forgotten)
            self._forgotten[source] = max(index, self._forgotten.get(source, -1))

    def dismiss(self) -> None:
        """Answer all open requests with no attempt, since none is assigned any more."""
        while self._asks:
            self._asks.popitem()[1].answer.set_result(())
