"""An environment that lives at a server, as the asynchronous port; its calls await I/O in the loop.

Invariant: no call lasts longer than its time limit, and none raises anything but
EnvironmentFailedError and EnvironmentTimeoutError. A call that is late is cancelled, and closes its
connection then.
"""

import logging
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from rollart_flow.control.environment import AsyncEnvironment, may_converse, starts_slowly
from rollart_flow.control.rollout.env_checks import (
    ResetAnswer,
    StepAnswer,
    checked_reset,
    checked_step,
)
from rollart_flow.control.rollout.guarded_env import START_S
from rollart_flow.control.rollout.observation_checks import checked_tools
from rollart_flow.envs.base import Domain
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError, RollartError
from rollart_flow.isolation.child import error_line
from rollart_flow.secret import masked
from rollart_flow.text import one_line
from rollart_flow.timeouts import timeout
from rollart_flow.types import Action, Tool
from rollart_flow.types.branching import StepObservation, messages_in

_log = logging.getLogger(__name__)

T = TypeVar("T")


class LoopEnvironment:
    """Implements `control.environment.AsyncEnvironment` over what `Domain.make_async` returns.

    Args:
        remote: the environment.
        domain: its domain.
        timeout_s: limit of each reset, step and close [s].
    """

    def __init__(self, remote: AsyncEnvironment, domain: Domain, timeout_s: float) -> None:
        self._remote = remote
        self._name = type(domain).__name__
        self._shows_images = domain.shows_images
        self._timeout_s = timeout_s
        self.tools: Sequence[Tool] | None = None

    async def start(self) -> None:
        """Connect, if the environment has a `start`; at most `START_S`."""
        if starts_slowly(self._remote):
            await self._call("start", self._remote.start(), max(START_S, self._timeout_s))

    async def reset(self, seed: int, task: str) -> ResetAnswer:
        """Start an episode."""
        call = f"{self._name}.reset"
        answer = checked_reset(await self._call("reset", self._remote.reset(seed, task)), call)
        found = self._remote.tools if may_converse(self._remote) else None
        self.tools = None if found is None else checked_tools(found, call)
        self._check_images(answer.observation, call)
        return answer

    async def step(self, action: str | Action) -> StepAnswer:
        """Apply one action."""
        call = f"{self._name}.step"
        answer = checked_step(await self._call("step", self._remote.step(action)), call)
        self._check_images(answer.observation, call)
        return answer

    async def close(self) -> None:
        """Release the connection; an error is only logged, since the episode has its outcome."""
        try:
            await self._call("close", self._remote.close())
        except (EnvironmentFailedError, EnvironmentTimeoutError) as error:
            _log.warning("%s", error)

    def _check_images(self, observation: StepObservation, call: str) -> None:
        if self._shows_images:
            return
        if any(message.images for message in messages_in(observation)):
            raise EnvironmentFailedError(
                f"{call} showed an image; set shows_images = True in the domain, or show text"
            )

    async def _call(
        self, what: str, method: Coroutine[Any, Any, T], limit_s: float | None = None
    ) -> T:
        limit_s = self._timeout_s if limit_s is None else limit_s
        try:
            async with timeout(limit_s) as limit:
                return await method
        except EnvironmentTimeoutError:
            raise
        except RollartError as error:
            raise EnvironmentFailedError(_line(f"{self._name}.{what}: {error}")) from error
        except (Exception, SystemExit) as error:  # code of users, and of other libraries, ends here
            if isinstance(error, TimeoutError) and limit.expired():
                raise EnvironmentTimeoutError(
                    f"{self._name}.{what}: no answer within {limit_s:g} s; its connection is closed"
                ) from error
            raise EnvironmentFailedError(
                _line(f"{self._name}.{what}: {error_line(error)}")
            ) from error


def _line(text: str) -> str:
    """Return an error as a short line without secrets that this process has read."""
    return one_line(masked(text))
