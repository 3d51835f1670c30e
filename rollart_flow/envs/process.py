"""An environment in a process of its own, as the asynchronous port; it may hang or crash.

The process finds the domain's class by module and name, or loads the file that it is in
(`isolation.references`), and makes the environment there; the domain's settings go with it,
and nothing but JSON comes back.

Invariant: after a timeout, a cancellation or any error the process is gone, and the next reset
starts another; no other environment notices.
"""

import asyncio
import dataclasses
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rollart_flow.control.rollout.env_checks import (
    ResetAnswer,
    StepAnswer,
    checked_reset,
    checked_step,
)
from rollart_flow.control.rollout.guarded_env import START_S
from rollart_flow.control.rollout.observation_checks import checked_tools
from rollart_flow.envs.base import Domain
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError
from rollart_flow.isolation.process import Isolated, IsolatedError
from rollart_flow.isolation.references import reference
from rollart_flow.sandbox.box_calls import BoxCalls
from rollart_flow.secret import variables_in
from rollart_flow.timeouts import timeout
from rollart_flow.types import Action, Image, Tool
from rollart_flow.types.branching import messages_in

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")
_Seen = TypeVar("_Seen", ResetAnswer, StepAnswer)

_Kind = tuple[type[Domain], frozenset[str], str, str | None]
"""Class of a domain, the environment variables that its processes get, handler and interpreter."""

_HANDLER = "rollart_flow.envs.child_handler:EnvironmentHandler"


class WarmProcesses:
    """Idle processes, kept for the next environment of the same domain class.

    Each rollout process has one pool, since starting Python and importing an environment's
    libraries costs tens of milliseconds to seconds. Each process serves one environment at a time.
    """

    def __init__(self, keep: int) -> None:
        """Create an empty pool that keeps at most `keep` idle processes per kind of domain."""
        self._keep = keep
        self.starting = asyncio.Semaphore(os.cpu_count() or 1)
        """Turns to start: many starts at once would take each other's time."""
        self._idle: defaultdict[_Kind, list[Isolated]] = defaultdict(list)

    async def take(self, domain: Domain) -> Isolated:
        """Return an idle process that is alive, or a new one."""
        kind = _kind(domain)
        idle = self._idle[kind]
        while idle:
            process = idle.pop()
            if process.alive:
                return process
            await process.kill()
        _, environ, handler, python = kind
        return await Isolated.start(handler, environ, python)

    async def give(self, domain: Domain, process: Isolated) -> None:
        """Return a process that no longer holds an environment to the pool."""
        idle = self._idle[_kind(domain)]
        if process.alive and len(idle) < self._keep:
            idle.append(process)
        else:
            await process.kill()

    async def close(self) -> None:
        """End all idle processes."""
        while self._idle:
            _, processes = self._idle.popitem()
            for process in processes:
                await process.kill()


def _kind(domain: Domain) -> "_Kind":
    program = domain.program()
    if program is None:
        return type(domain), environ_of(domain), _HANDLER, None
    return type(domain), environ_of(domain), program.handler, program.python


def environ_of(domain: Domain) -> frozenset[str]:
    """Return the environment variables that a domain's processes get besides the usual ones."""
    return frozenset(domain.environ) | variables_in(domain)


class ProcessEnvironment:
    """Implements `control.environment.AsyncEnvironment` over an isolated process."""

    def __init__(
        self,
        domain: Domain,
        timeout_s: float,
        source: Path | None = None,
        processes: WarmProcesses | None = None,
        boxes: BoxCalls | None = None,
    ) -> None:
        """Start nothing yet: the first reset does.

        Args:
            domain: a frozen dataclass; its fields must pickle.
            timeout_s: of each reset, step and close.
            source: pipeline file that the domain's class is in, where this process cannot tell.
            processes: where the process comes from and goes to; None: it ends with `close`.
            boxes: answers calls of boxes, and is released with `close`; None: the process makes its
                own.
        """
        self._domain = domain
        self._timeout_s = timeout_s
        self._source = source
        self._processes = processes if processes is not None else WarmProcesses(keep=0)
        self._boxes = boxes
        self._process: Isolated | None = None
        self.tools: Sequence[Tool] | None = None
        self._images: dict[str, Image] = {}
        """Images of the episode, which later messages may name."""
        self._calling = False
        self._name = domain.environment.__name__

    async def start(self) -> None:
        """Start a process and make the environment in it, unless that is done already.

        There are at most as many starts at a time as there are cores, each for `START_S` at most.
        """
        if self._process is not None:
            return
        program = self._domain.program()
        how = opening(self._domain, self._source) if program is None else program.settings
        how = {**how, "boxes": self._boxes is not None}
        async with self._processes.starting:
            await self._take()
            limit_s = max(START_S, self._timeout_s)
            await self._call("make", {"open": how}, _unchecked, limit_s)

    async def reset(self, seed: int, task: str) -> ResetAnswer:
        """Start an episode; the first one starts the process."""
        await self.start()
        self._images.clear()
        answer, self.tools = await self._call("reset", {"reset": [seed, task]}, _reset_answer)
        return self._remember(answer)

    async def step(self, action: str | Action) -> StepAnswer:
        """Apply one action."""
        form = action if isinstance(action, str) else action.as_message().as_json()
        known = partial(checked_step, known=self._images)
        return self._remember(await self._call("step", {"step": form}, known))

    def _remember(self, answer: _Seen) -> _Seen:
        """Return an answer, whose images later messages may name."""
        for message in messages_in(answer.observation):
            self._images |= {image.image_id: image for image in message.images}
        return answer

    async def close(self) -> None:
        """Close the environment and return its process to the pool.

        An error here is logged and ends the process, since the episode has its outcome already. A
        call that is still in progress fails, and its process is killed. Boxes that the environment
        did not close end.
        """
        try:
            await self._close()
        finally:
            if self._boxes is not None:
                self._boxes.release()

    async def _close(self) -> None:
        process = self._process
        if process is None:
            return
        if self._calling:
            self._process = None
            await process.kill()
            return
        try:
            await self._call("close", {"close": None}, _unchecked)
        except (EnvironmentFailedError, EnvironmentTimeoutError) as error:
            _log.warning("%s", error)
            return
        self._process = None
        await self._processes.give(self._domain, process)

    async def _take(self) -> None:
        try:
            self._process = await self._processes.take(self._domain)
        except IsolatedError as error:
            raise EnvironmentFailedError(f"{self._name}: {error}") from error

    async def _call(
        self,
        what: str,
        request: Mapping[str, object],
        check: Callable[[object, str], _Answer],
        limit_s: float | None = None,
    ) -> _Answer:
        process = self._process
        if process is None:
            raise EnvironmentFailedError(f"{self._name}: {what} before reset; call reset first")
        self._calling = True
        limit_s = self._timeout_s if limit_s is None else limit_s
        try:
            async with timeout(limit_s):
                return check(await process.call(request, self._boxes), f"{self._name}.{what}")
        except BaseException as error:
            self._process = None
            await process.kill()
            if isinstance(error, TimeoutError):
                raise EnvironmentTimeoutError(
                    f"{self._name}.{what}: no answer within {limit_s:g} s; killed"
                ) from error
            if isinstance(error, IsolatedError):
                call = f"{self._name}.{what}"
                named = str(error).startswith(call)  # an error of this library names it itself
                raise EnvironmentFailedError(f"{'' if named else f'{call}: '}{error}") from error
            raise
        finally:
            self._calling = False


def _unchecked(answer: object, _: str) -> object:
    return answer


def _reset_answer(answer: Any, call: str) -> tuple[ResetAnswer, Sequence[Tool] | None]:
    observation, info, tools = answer
    known = None if tools is None else checked_tools(tools, call)
    return checked_reset((observation, info), call), known


def opening(domain: Any, source: Path | None) -> dict[str, object]:
    """Return the description of a domain for `envs.child_handler.resolved_domain`.

    Raises:
        EnvironmentFailedError: the domain is no dataclass.
    """
    if not dataclasses.is_dataclass(domain):
        raise EnvironmentFailedError(
            f"{type(domain).__name__} is no dataclass; a domain that runs in a process must be one"
        )
    fields = [field.name for field in dataclasses.fields(domain) if field.init]
    settings = {name: getattr(domain, name) for name in fields}
    return {"domain": reference(type(domain), source), "settings": reference(settings, source)}
