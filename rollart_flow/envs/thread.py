"""An environment in a thread of this process, for executors that isolate no code of users.

A debugger can stop in it. After a timeout the environment is abandoned in its thread, which closes
it once the call returns.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rollart_flow.control.environment import AsyncEnvironment, may_converse
from rollart_flow.envs.base import Info
from rollart_flow.errors import EnvironmentTimeoutError
from rollart_flow.isolation.thread import CallThread
from rollart_flow.sandbox.box_calls import BoxCalls
from rollart_flow.timeouts import timeout
from rollart_flow.types import Action, Observation, Tool
from rollart_flow.types.branching import StepObservation

T = TypeVar("T")


class ThreadEnvironment:
    """Implements `control.environment.AsyncEnvironment`.

    Args:
        inline: environment whose methods return without awaiting.
        name: name of the environment in errors.
        timeout_s: limit of each call [s].
        boxes: answers calls of boxes, and is released with `close`; None: the environment makes its
            own.
    """

    def __init__(
        self,
        inline: AsyncEnvironment,
        name: str,
        timeout_s: float,
        boxes: BoxCalls | None = None,
    ) -> None:
        self._inline = inline
        self._name = name
        self._timeout_s = timeout_s
        self._boxes = boxes
        self._thread = CallThread(name)
        self._abandoned = False

    @property
    def tools(self) -> Sequence[Tool] | None:
        return self._inline.tools if may_converse(self._inline) else None

    async def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        """Start an episode."""
        return await self._call("reset", self._inline.reset(seed, task))

    async def step(self, action: str | Action) -> tuple[StepObservation, float, bool, bool, Info]:
        """Apply one action."""
        return await self._call("step", self._inline.step(action))

    async def close(self) -> None:
        """Release the environment's resources and end its thread."""
        try:
            if not self._abandoned:
                await self._call("close", self._inline.close())
                self._thread.end()
        finally:
            self._abandoned = True
            if self._boxes is not None:
                self._boxes.release()

    def _close_late(self) -> None:
        """Close an environment whose call was given up and has returned after all."""
        with suppress(StopIteration):
            self._inline.close().send(None)

    async def _call(self, what: str, method: Coroutine[Any, Any, T]) -> T:
        def run() -> T:
            try:
                method.send(None)
            except StopIteration as returned:
                result: T = returned.value
                return result
            raise TypeError(f"{self._name}.{what} awaits; it must return at once")

        try:
            async with timeout(self._timeout_s):
                return await self._thread.call(run)
        except (TimeoutError, asyncio.CancelledError) as error:
            self._abandoned = True
            self._thread.end(self._close_late)
            if isinstance(error, TimeoutError):
                raise EnvironmentTimeoutError(
                    f"{self._name}.{what}: no answer within {self._timeout_s:g} s; abandoned"
                ) from error
            raise
