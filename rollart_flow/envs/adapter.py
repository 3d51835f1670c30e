"""The asynchronous adapter of an environment: the event loop if it is inline, else a process, or a
thread where no code of users is isolated.

Invariant: an adapter raises only EnvironmentFailedError and EnvironmentTimeoutError, whatever the
environment raises.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rollart_flow.control.environment import AsyncEnvironment
from rollart_flow.control.rollout.env_checks import (
    ResetAnswer,
    StepAnswer,
    checked_reset,
    checked_step,
)
from rollart_flow.control.rollout.observation_checks import checked_tools
from rollart_flow.envs.base import Domain, Environment
from rollart_flow.envs.process import ProcessEnvironment, WarmProcesses
from rollart_flow.envs.thread import ThreadEnvironment
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.isolation.child import error_line
from rollart_flow.types import Action, Tool

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class InlineEnvironment:
    """Implements `control.environment.AsyncEnvironment`. Reset and step return without awaiting."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._name = domain.environment.__name__
        self._environment: Environment | None = None
        self.tools: Sequence[Tool] | None = None

    async def reset(self, seed: int, task: str) -> ResetAnswer:
        """Start an episode; the first one makes the environment."""
        if self._environment is None:
            self._environment = self._guarded(self._domain.make)
        environment = self._environment
        answer = self._guarded(lambda: environment.reset(seed, task))
        if environment.converses:
            self.tools = checked_tools(self._guarded(lambda: environment.tools), self._name)
        return checked_reset(answer, f"{self._name}.reset")

    async def step(self, action: str | Action) -> StepAnswer:
        environment = self._environment
        if environment is None:
            raise EnvironmentFailedError(f"{self._name}: step before reset; call reset first")
        return checked_step(self._guarded(lambda: environment.step(action)), f"{self._name}.step")

    async def close(self) -> None:
        """Release the environment's resources; the next reset makes another environment.

        An error here is only logged, since the episode has its outcome already.
        """
        environment, self._environment = self._environment, None
        try:
            if environment is not None:
                self._guarded(environment.close)
        except EnvironmentFailedError as error:
            _log.warning("%s", error)

    def _guarded(self, call: Callable[[], _Answer]) -> _Answer:
        try:
            return call()
        except EnvironmentFailedError:
            raise
        except (Exception, SystemExit) as error:  # the user's code ends here
            raise EnvironmentFailedError(f"{self._name}: {error_line(error)}") from error


def open_environment(
    domain: Domain,
    *,
    timeout_s: float = 60.0,
    source: Path | None = None,
    processes: WarmProcesses | None = None,
    isolated: bool = True,
) -> AsyncEnvironment:
    """Return an asynchronous environment of a domain; nothing starts before its reset.

    Args:
        domain: its `environment` class says whether it is inline.
        timeout_s: time limit of each reset and step of one that is not inline.
        source: pipeline file with the domain's class, where it cannot be imported by name.
        processes: idle processes to reuse for one that is not inline.
        isolated: whether one that is not inline gets a process; otherwise it gets a thread.
    """
    if domain.environment.inline:
        return InlineEnvironment(domain)
    if not isolated:
        return ThreadEnvironment(InlineEnvironment(domain), domain.environment.__name__, timeout_s)
    return ProcessEnvironment(domain, timeout_s, source, processes)
