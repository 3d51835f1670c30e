"""A thread for calls of users' code in this process, where a debugger can stop in it.

Invariant: a caller that stops waiting for a call can go on, and the process can end, even if the
call never returns. The call itself goes on, since a thread cannot be killed; code that must be
killed runs in a process of its own (`isolation.process`).
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from rollart_flow.isolation.child import error_line
from rollart_flow.isolation.process import Answering, IsolatedError

T = TypeVar("T")


class CallThread:
    """Runs calls one after the other; the thread starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function in the thread and return its result or raise its error."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                value = function()
            except SystemExit as error:  # raised in a loop, it would end the loop
                ended = RuntimeError(f"it called sys.exit({error.code!r})")
                _tell(loop, result, result.set_exception, ended)
            except BaseException as error:  # noqa: BLE001  raised where the call was made
                _tell(loop, result, result.set_exception, error)
            else:
                _tell(loop, result, result.set_result, value)

        self._calls.put(run)
        return await result

    def end(self, last: Callable[[], None] | None = None) -> None:
        """End the thread after the call that is running, and a last one that nobody waits for."""
        if last is not None and self._thread is not None:
            self._calls.put(last)
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class HandlerThread:
    """A handler in a thread, called like one in a process (`isolation.process.Isolated`)."""

    def __init__(self, handler: Callable[[Mapping[str, object]], object], name: str) -> None:
        self._handler = handler
        self._thread = CallThread(name)

    async def call(self, request: Mapping[str, object]) -> object:
        """Return the handler's answer to a request.

        Raises:
            IsolatedError: the handler raised.
        """
        try:
            return await self._thread.call(partial(self._handler, request))
        except Exception as error:  # the user's code ends here
            raise IsolatedError(error_line(error)) from error

    async def kill(self) -> None:
        """End the thread after the call that is running, if that ever returns."""
        self._thread.end()


def asking(answering: Answering) -> Callable[[Any, bytes], tuple[object, bytes]]:
    """Return a function by which other threads ask the loop that runs now, and wait."""
    loop = asyncio.get_running_loop()

    async def answer(question: Any, data: bytes) -> tuple[object, bytes]:
        return await answering(question, data)

    def ask(question: Any, data: bytes = b"") -> tuple[object, bytes]:
        call = answer(question, data)
        try:
            return asyncio.run_coroutine_threadsafe(call, loop).result()
        except RuntimeError:
            call.close()  # it was not started if the loop has ended
            raise

    return ask


def _tell(
    loop: asyncio.AbstractEventLoop,
    result: asyncio.Future[Any],
    tell: Callable[[Any], None],
    value: object,
) -> None:
    """Set a result that a loop waits for, unless nobody waits any more."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: None if result.done() else tell(value))
