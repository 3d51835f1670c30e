"""Work of an actor that goes on between its calls, whose failure must not pass unnoticed."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rollart_flow.resources.reasons import reason


def begin(
    work: Coroutine[Any, Any, None], failing: str, fail: Callable[[str], None]
) -> asyncio.Task[None]:
    """Start work in the running loop, and report its failure.

    Args:
        work: the work.
        failing: beginning of the message, such as "engine workers cannot be watched".
        fail: called with the message if the work raises.
    """

    def ended(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None:
            fail(f"{failing}: {reason(error)}")

    task = asyncio.create_task(work)
    task.add_done_callback(ended)
    return task
