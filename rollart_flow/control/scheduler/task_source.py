"""The source of tasks as the scheduler reads it: one task after the other, with its cursor."""

from collections.abc import Iterator

from rollart_flow.errors import RunFailedError
from rollart_flow.types import Task


class TaskSource:
    """The tasks of a run, each with the cursor that it has in its source.

    Args:
        tasks: (task, cursor) pairs with growing cursors, from where an earlier scheduler stopped.
    """

    def __init__(self, tasks: Iterator[tuple[Task, int]]) -> None:
        self._tasks = tasks
        self._cursor: int | None = None
        self.exhausted = False

    def take(self) -> tuple[Task, int] | None:
        """The next task and its cursor, or None where there are no more.

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
        except Exception as error:  # users write task sources; whatever they raise ends the run
            raise RunFailedError(f"the tasks raised {type(error).__name__}: {error}") from error
        if self._cursor is not None and cursor <= self._cursor:
            raise RunFailedError(
                f"the tasks' cursor went from {self._cursor} to {cursor}, but must grow"
            )
        self._cursor = cursor
        return task, cursor
