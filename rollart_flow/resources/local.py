"""Actors in this process, behind the same handles as actors of Ray (`resources.handles`).

An object whose class has async methods lives on one event loop, which it shares with the other such
objects; an object with plain methods lives in a thread of its own. The invariant: an object is
created and called in its own thread only, so that libraries with settings by thread see one thread.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from rollart_flow.blocked import blocking

R = TypeVar("R")

_CLOSE_S = 2.0
"""Limit of the end of an object or a loop, whose code of users may hang [s]."""


def has_async_methods(kind: Callable[..., object]) -> bool:
    """Whether the calls of an actor of this class share an event loop."""
    return bool(inspect.getmembers(kind, inspect.iscoroutinefunction))


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="actors", daemon=True)
        self._thread.start()

    @property
    def here(self) -> bool:
        """Whether the caller runs in this loop."""
        return threading.current_thread() is self._thread

    def start(self, work: Coroutine[Any, Any, R]) -> asyncio.Future[R] | Future[R]:
        """Start a coroutine in the loop; the result can be awaited in the loop only."""
        if self.here:
            return _kept(asyncio.ensure_future(work))
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wrap(self, future: Future[R]) -> asyncio.Future[R] | Future[R]:
        """Return a future of another thread in the form in which the caller can wait for it."""
        return _kept(asyncio.wrap_future(future, loop=self._loop)) if self.here else future

    def close(self) -> None:
        """Cancel all tasks of the loop, then end the loop and the thread.

        A loop that does not answer is left in its thread, and ends as soon as it does, or with the
        process.
        """
        with blocking("end of the event loop"), suppress(RuntimeError):  # it has ended before
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(2 * _CLOSE_S)
        if self._thread.is_alive():
            _abandon(self._loop)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:  # calls may come until the loop is closed
            self._loop.run_until_complete(_cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(_cancel_all())
            self._loop.close()


_running: set[asyncio.Future[Any]] = set()


def _kept(future: asyncio.Future[R]) -> asyncio.Future[R]:
    """Keep a future until it is done; an error that no caller waits for is not reported."""
    _running.add(future)
    future.add_done_callback(_drop)
    return future


def _drop(future: asyncio.Future[Any]) -> None:
    _running.discard(future)
    if not future.cancelled():
        future.exception()


async def _cancel_all() -> None:
    """Cancel all tasks of the loop, and those that they start while they end, each once.

    The tasks that go on are abandoned when none has ended for `_CLOSE_S`: where thousands end, or
    one writes what it holds, all of them together take longer.
    """
    this = asyncio.current_task()
    cancelled: set[asyncio.Task[Any]] = set()
    while tasks := asyncio.all_tasks() - {this}:
        for task in tasks - cancelled:
            task.cancel()
        cancelled = tasks
        ended, _ = await asyncio.wait(tasks, timeout=_CLOSE_S)
        if not ended:
            _abandon(asyncio.get_running_loop())
            return


def _abandon(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop not report pending tasks when it is gone: they are users' code that goes on
    although it was cancelled, and cannot be ended within this process."""
    loop.set_exception_handler(_report_unless_pending)


def _report_unless_pending(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    task = context.get("task")
    if not isinstance(task, asyncio.Task) or task.done():
        loop.default_exception_handler(context)


class LocalMethod:
    """One method of an actor in this process, with the interface of Ray's own methods."""

    __slots__ = ("_start",)

    def __init__(self, start: Callable[..., Any]) -> None:
        self._start = start

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start a call; the result is a future."""
        return self._start(*args, **kwargs)


class LocalActor:
    """An object of this process with the interface of Ray's own handle.

    Args:
        loop: the loop of the objects with async methods.
        make: class of the object, with the arguments of its constructor.
    """

    def __init__(self, loop: LoopThread, make: partial[Any]) -> None:
        self._loop = loop
        self._thread: ThreadPoolExecutor | None = None
        if not has_async_methods(make.func):
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=make.func.__name__)
        self._made: Future[object] = Future()
        self._do(partial(self._make, make))

    def _make(self, make: partial[Any]) -> None:
        try:
            self._made.set_result(make())
        except Exception as error:  # noqa: BLE001  raised in every caller instead
            self._made.set_exception(error)

    def _do(self, work: Callable[[], R]) -> asyncio.Future[R] | Future[R]:
        """Run a plain function in the object's own thread."""
        if self._thread is not None:
            return self._loop.wrap(self._thread.submit(work))
        return self._loop.start(_call(work))

    def __getattr__(self, name: str) -> LocalMethod:
        return LocalMethod(partial(self._start, name))

    def _start(self, name: str, *args: Any, **kwargs: Any) -> Any:
        def call() -> Any:
            return getattr(self._made.result(), name)(*args, **kwargs)

        return self._do(call) if self._thread is not None else self._loop.start(_call(call))

    def end(self) -> None:
        """Let the object release what it holds, if it has a method `end`, and end its thread."""
        with suppress(TimeoutError):
            if self._made.exception(_CLOSE_S) is None and hasattr(self._made.result(), "end"):
                wait(self._start("end"), "end of an actor", _CLOSE_S)
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


async def _call(call: Callable[[], R | Awaitable[R]]) -> Any:
    result = call()
    return await result if inspect.isawaitable(result) else result


def wait(answer: Any, name: str, limit_s: float | None = None) -> Any:
    """Wait for the result of a call, or of each call of a list, of Ray or of this process.

    Args:
        answer: the call, or a list of calls.
        name: name of the wait, for `store.waits`.
        limit_s: longest time to wait for a call [s]; None waits for ever.

    Raises:
        TimeoutError: there is no result in time.
    """
    with blocking(name):
        if isinstance(answer, list) and _local(answer):
            return [each.result(limit_s) for each in answer]
        return answer.result(limit_s) if isinstance(answer, Future) else _ray_get(answer, limit_s)


def early(answer: Any) -> Any:
    """Return the result of a call, of Ray or of this process; None if there is none, or not yet."""
    if isinstance(answer, Future):
        answered = answer.done() and not answer.cancelled() and answer.exception() is None
        return answer.result() if answered else None
    import ray

    ready, _ = ray.wait([answer], timeout=0)
    with suppress(ray.exceptions.RayError):
        return ray.get(answer) if ready else None
    return None


def _local(answers: list[Any]) -> bool:
    return all(isinstance(each, Future) for each in answers)


def _ray_get(answer: Any, limit_s: float | None) -> Any:
    import ray

    return ray.get(answer, timeout=limit_s)
