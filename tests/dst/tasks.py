"""The asyncio tasks of one life of a simulated run, which ends if one of them raises."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Running tasks, and the first error of any of them."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}
        self.error: BaseException | None = None
        """Error of the first task that raised."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when there is an error."""

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine beside the others."""
        task = asyncio.create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self.error is None:
            self.error = error
            self.failed.set_result(None)
