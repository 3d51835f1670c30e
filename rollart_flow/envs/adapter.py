"""The asynchronous adapter of an environment: the event loop if it is inline or lives at a server,
else a process, or a thread where no code of users is isolated.

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
from rollart_flow.envs.base import Domain, Environment, close_with_boxes
from rollart_flow.envs.loop import LoopEnvironment
from rollart_flow.envs.process import ProcessEnvironment, WarmProcesses
from rollart_flow.envs.thread import ThreadEnvironment
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.isolation.child import error_line
from rollart_flow.isolation.thread import asking
from rollart_flow.sandbox.box_calls import BoxCalls, CalledBoxes
from rollart_flow.sandbox.boxes import Boxes
from rollart_flow.text import NewTexts, trace
from rollart_flow.types import Action, Tool

_log = logging.getLogger(__name__)
_new = NewTexts()

_Answer = TypeVar("_Answer")


class InlineEnvironment:
    """Implements `control.environment.AsyncEnvironment`. Reset and step return without awaiting."""

    def __init__(self, domain: Domain, boxes: Boxes | None = None) -> None:
        self._domain = domain
        self._boxes = boxes
        self._name = domain.environment.__name__
        self._environment: Environment | None = None
        self.tools: Sequence[Tool] | None = None

    async def reset(self, seed: int, task: str) -> ResetAnswer:
        """Start an episode; the first one makes the environment."""
        if self._environment is None:
            self._environment = self._guarded(self._domain.make)
            if self._boxes is not None:
                self._environment.boxes = self._boxes
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
                self._guarded(lambda: close_with_boxes(environment))
        except EnvironmentFailedError as error:
            _log.warning("%s", error)

    def _guarded(self, call: Callable[[], _Answer]) -> _Answer:
        try:
            return call()
        except EnvironmentFailedError:
            raise
        except (Exception, SystemExit) as error:  # the user's code ends here
            said = f"{self._name}: {error_line(error)}"
            if _new(said):
                _log.warning("%s\n%s", said, trace(error))
            raise EnvironmentFailedError(said) from error


def open_environment(
    domain: Domain,
    *,
    timeout_s: float = 60.0,
    source: Path | None = None,
    processes: WarmProcesses | None = None,
    isolated: bool = True,
    boxes: BoxCalls | None = None,
) -> AsyncEnvironment:
    """Return an asynchronous environment of a domain; nothing starts before its reset.

    Args:
        domain: its `environment` class says whether it is inline.
        timeout_s: time limit of each reset and step of one that is not inline.
        source: pipeline file with the domain's class, where it cannot be imported by name.
        processes: idle processes to reuse for one that is not inline.
        isolated: whether one that is not inline gets a process; otherwise it gets a thread, unless
            it is a program of another interpreter.
        boxes: answers calls of boxes, for one that is not inline, and is released with its `close`;
            None: it makes its own.
    """
    if domain.environment.inline:
        return InlineEnvironment(domain)
    if (remote := domain.make_async()) is not None:
        if boxes is not None:
            boxes.release()
        return LoopEnvironment(remote, domain, timeout_s)
    if not isolated and domain.program() is None:
        called = None if boxes is None else CalledBoxes(asking(boxes))
        inline = InlineEnvironment(domain, called)
        return ThreadEnvironment(inline, domain.environment.__name__, timeout_s, boxes)
    return ProcessEnvironment(domain, timeout_s, source, processes, boxes)
