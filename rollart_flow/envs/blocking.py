"""An environment that lives elsewhere, as one that blocks: to try it without a run."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rollart_flow.control.environment import AsyncEnvironment, may_converse, starts_slowly
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.types import Action, Observation
from rollart_flow.types.branching import StepObservation

T = TypeVar("T")


class BlockingEnvironment(Environment):
    """Waits for an environment of another process or server; what `make` of its domain returns.

    One thread uses it, outside of any event loop. A run does not use it.

    Args:
        domain: a domain with `make_async` or `program`.
        timeout_s: limit of each call [s].
    """

    converses = True

    def __init__(self, domain: Domain, timeout_s: float = 60.0) -> None:
        self._opened: AsyncEnvironment = open_environment(domain, timeout_s=timeout_s)
        self._runner: asyncio.Runner | None = asyncio.Runner()

    def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        """Start an episode; the first one starts the process, or connects."""
        answer = self._wait(self._reset(seed, task))
        found = self._opened.tools if may_converse(self._opened) else None
        self.tools = () if found is None else tuple(found)
        self._takes_text = found is None
        return answer

    def step(self, action: str | Action) -> tuple[StepObservation, float, bool, bool, Info]:
        """Apply one action; its text is enough where the environment has no tools."""
        if self._takes_text and isinstance(action, Action):
            action = action.text
        elif not self._takes_text and isinstance(action, str):
            action = Action(action)
        return self._wait(self._opened.step(action))

    def close(self) -> None:
        """End the process, or the connection. May be called twice."""
        if self._runner is not None:
            self._wait(self._opened.close())
            self._runner.close()
            self._runner = None

    _takes_text = True

    async def _reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        if starts_slowly(self._opened):
            await self._opened.start()
        return await self._opened.reset(seed, task)

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        if self._runner is None:
            call.close()
            raise EnvironmentFailedError("the environment was closed; make another one")
        return self._runner.run(call)
