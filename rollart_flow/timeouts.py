"""Limits in time, which hold in a task that was cancelled and cleans up, too.

The invariant: a limit that passes raises TimeoutError, unless the task was cancelled meanwhile.
`asyncio.timeout` does so since Python 3.11.4 (gh-102780). Before, it counts what was cancelled
before its block as well, and CancelledError passes in place of TimeoutError.
"""

import asyncio
import sys
from types import TracebackType

if sys.version_info >= (3, 11, 4):
    from asyncio import timeout, timeout_at
else:

    class _Timeout(asyncio.Timeout):  # type: ignore[misc]  # which is final, and mended here
        _cancelled_before = 0

        async def __aenter__(self) -> "_Timeout":
            await super().__aenter__()
            self._cancelled_before = _cancelling()
            return self

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None:
            await super().__aexit__(kind, error, trace)
            cancelled = kind is asyncio.CancelledError
            if cancelled and self.expired() and _cancelling() <= self._cancelled_before:
                raise TimeoutError

    def timeout(delay: float | None) -> asyncio.Timeout:
        return timeout_at(None if delay is None else asyncio.get_running_loop().time() + delay)

    def timeout_at(when: float | None) -> asyncio.Timeout:
        return _Timeout(when)

    def _cancelling() -> int:
        task = asyncio.current_task()
        return 0 if task is None else task.cancelling()


__all__ = ["timeout", "timeout_at"]
