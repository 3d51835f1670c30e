"""The producer as a chain of executions, which bounds the memory of Ray Data's driver.

The driver keeps a record of each block of an execution. Only a new execution frees that memory, and
its processes take seconds to start. The next execution therefore starts while the current one still
has blocks to admit, and takes over as soon as it is ready. The coordinator limits the number of
concurrent attempts, independently of the number of executions. At most two executions run at once.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

BLOCKS = 20_000
"""Default number of blocks in one execution, of which its records take about 20 MB."""


class RollingProducer:
    """Chain of overlapping executions, which run in threads that are joined.

    Args:
        execute: runs the n-th execution with a maximum number of blocks; yields the number of rows
            of each block that has finished.
        more: returns whether another execution would be admitted any blocks.
        abandon: called when an execution fails, to let the other one end.
        in_flight: maximum number of blocks in flight at a time.
        blocks: number of blocks of one execution; raised to a multiple of `in_flight` if necessary.
    """

    def __init__(
        self,
        execute: Callable[[int, int], Iterator[int]],
        more: Callable[[], bool],
        abandon: Callable[[], None],
        *,
        in_flight: int,
        blocks: int = BLOCKS,
    ) -> None:
        self._execute = execute
        self._more = more
        self._abandon = abandon
        self._blocks = max(blocks, 8 * in_flight)
        self._enough = self._blocks * 3 // 4
        self._messages: SimpleQueue[tuple[int, int | Exception | None]] = SimpleQueue()

    def run(self) -> Iterator[int]:
        """Run executions until no more blocks are admitted; yield their counts of finished rows.

        Raises:
            Exception: the error of a failed execution; the other execution has ended by then.
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
            came_out += number == newest
            yield message

    def _follow(self, number: int) -> None:
        """Run one execution in this thread, and send a message when it ends or fails."""
        error: Exception | None = None
        try:
            for rows in self._execute(number, self._blocks):
                self._messages.put((number, rows))
        except Exception as raised:  # noqa: BLE001  crosses a thread: raised again in the other
            error = raised
        self._messages.put((number, error))
