"""The producer as a chain of executions, since Ray Data's driver remembers each block of one.

Only a new execution gives that memory back, and starting its processes takes seconds. So the next
one starts while one still has rows to admit, and takes over as soon as it is ready. How many
attempts run is the coordinator's to say, however many executions ask. Two run at most.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

ROWS = 4_000
"""Attempts of one execution."""


class RollingProducer:
    """Runs executions in threads that are joined.

    Args:
        execute: runs the n-th execution, of that many rows at most; yields how many came out.
        more: whether another one would be admitted anything.
        abandon: called where one failed: lets the other come to its end.
        in_flight: most rows that are inside at a time.
        rows: of one execution; more where that many are in flight.
    """

    def __init__(
        self,
        execute: Callable[[int, int], Iterator[int]],
        more: Callable[[], bool],
        abandon: Callable[[], None],
        *,
        in_flight: int,
        rows: int = ROWS,
    ) -> None:
        self._execute = execute
        self._more = more
        self._abandon = abandon
        self._rows = max(rows, 8 * in_flight)
        self._enough = self._rows * 3 // 4
        self._messages: SimpleQueue[tuple[int, int | Exception | None]] = SimpleQueue()

    def run(self) -> Iterator[int]:
        """Run executions until no more is admitted; yields what comes out of them.

        Raises:
            Exception: what an execution raised; the other one has ended by then.
        """
        with ThreadPoolExecutor(2, thread_name_prefix="producer") as threads:
            try:
                yield from self._chained(threads)
            except BaseException:
                self._abandon()
                raise

    def _chained(self, threads: ThreadPoolExecutor) -> Iterator[int]:
        newest, came_out, running = -1, 0, 0
        while True:
            if (running == 0 or came_out >= self._enough) and self._more():
                newest, came_out, running = newest + 1, 0, running + 1
                threads.submit(self._follow, newest)
            if running == 0:
                return
            number, message = self._messages.get()
            if isinstance(message, Exception):
                raise message
            if message is None:
                running -= 1
                continue
            came_out += message if number == newest else 0
            yield message

    def _follow(self, number: int) -> None:
        """Run one execution in this thread, and say how it ended."""
        error: Exception | None = None
        try:
            for rows in self._execute(number, self._rows):
                self._messages.put((number, rows))
        except Exception as raised:  # noqa: BLE001  crosses a thread: raised again in the other
            error = raised
        self._messages.put((number, error))
