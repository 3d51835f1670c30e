"""A background event loop in a thread, for platforms that call a function from their own threads.

Invariant: the thread is joined when the interpreter exits, or earlier.
"""

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """An event loop whose thread starts at first use, and thus after a server has forked its
    workers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result. Any thread may call it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop()).result()

    def close(self) -> None:
        """Stop the loop and join its thread. May be called twice."""
        with self._lock:
            started, self._started = self._started, None
        if started is not None:
            loop, thread = started
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._started is None:
                loop = asyncio.new_event_loop()
                # A daemon, since the interpreter joins others before it calls `close`.
                thread = threading.Thread(target=loop.run_forever, name="rewards", daemon=True)
                thread.start()
                atexit.register(self.close)
                self._started = loop, thread
            return self._started[0]
