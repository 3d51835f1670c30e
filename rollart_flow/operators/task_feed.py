"""Tasks from users' code, drawn ahead in a thread, so that a source that hangs stops no event loop.

The order of the tasks is that of the source. A source that hangs delays new attempts only; its wait
is named (`operators.tasks`), and the run can be stopped.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import TYPE_CHECKING

from rollart_flow.errors import RollartError, RunFailedError
from rollart_flow.text import one_line
from rollart_flow.types import Task

if TYPE_CHECKING:
    from rollart_flow.operators.task_gate import TaskGate

AHEAD = 256
"""Maximum number of tasks that are drawn before they are needed."""


class TaskFeed(Iterator[tuple[Task, int] | None]):
    """Iterator over the tasks of a source that never waits: None stands for a task to come.

    Args:
        tasks: all tasks of the run, from users' code.
        cursor: number of the first task to yield.
        arrived: called in the running loop when a task, or the end, has come after a None.
        gate: passes over tasks that are not admitted, whose numbers are not used for others.
    """

    def __init__(
        self,
        tasks: Iterator[Task],
        cursor: int,
        arrived: Callable[[], None],
        gate: "TaskGate | None" = None,
    ) -> None:
        numbered = zip(islice(tasks, cursor, None), count(cursor), strict=False)
        self._tasks = numbered if gate is None else gate.admitted(numbered)
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()
        self._ready: deque[tuple[Task, int]] = deque()
        self._changed = threading.Condition()
        self._missed = False
        self._closed = False
        self._end: Exception | None = None
        self._thread = threading.Thread(target=self._draw, name="tasks", daemon=True)
        self._thread.start()

    def __next__(self) -> tuple[Task, int] | None:
        with self._changed:
            if self._ready:
                self._changed.notify()
                return self._ready.popleft()
            if self._end is not None:
                raise self._end
            self._missed = True
            return None

    def close(self) -> None:
        """Draw no more tasks; the thread ends once the source returns."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _draw(self) -> None:
        try:
            for each in self._tasks:
                if not self._add(each):
                    return
            self._finish(StopIteration())
        except RollartError as error:
            self._finish(error)
        except BaseException as error:  # noqa: BLE001  users write sources: any error ends the run
            said = f"the tasks raised {type(error).__name__}: {one_line(error)}"
            self._finish(RunFailedError(said))

    def _add(self, task: tuple[Task, int]) -> bool:
        """Add a task, and wait while enough are ready; return whether another one is wanted."""
        with self._changed:
            self._ready.append(task)
            self._tell()
            self._changed.wait_for(lambda: self._closed or len(self._ready) < AHEAD)
            return not self._closed

    def _finish(self, end: Exception) -> None:
        with self._changed:
            self._end = end
            self._tell()

    def _tell(self) -> None:
        if self._missed and not self._closed:
            self._missed = False
            self._loop.call_soon_threadsafe(self._arrived)
