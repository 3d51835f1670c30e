"""TaskSource: the tasks of a run, one after another, with their cursors."""

from collections.abc import Iterator

from rollart_flow.errors import RunFailedError
from rollart_flow.types import Task


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
