"""Example episodes of a domain: its real environment, played with well-formed but random actions.

All code of the domain (its tasks, its environment and its example actions) runs in a process that
is killed at its time limit or, for executors that isolate no code of users, in a thread that is
abandoned. Invariant: no call lasts longer than its limit, and none raises anything but
EnvironmentFailedError and EnvironmentTimeoutError; the next episode starts anew after either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.rollout.guarded_env import START_S
from rollart_flow.control.rollout.observation_checks import SHOWN, checked_observation
from rollart_flow.envs.base import Domain
from rollart_flow.envs.example_handler import ExampleHandler
from rollart_flow.envs.process import environ_of, opening
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError, SettingsError
from rollart_flow.isolation.process import Isolated, IsolatedError
from rollart_flow.isolation.thread import HandlerThread
from rollart_flow.timeouts import timeout
from rollart_flow.types import Observation

Turn = tuple[Observation, str]
"""An observation, and the example action that follows."""
_HANDLER = "rollart_flow.envs.example_handler:ExampleHandler"


@dataclass(frozen=True, slots=True)
class ExampleSettings:
    """Settings under which the code of domains runs."""

    limit_s: float = 60.0
    """Limit of a reset and of a step [s]."""
    source: Path | None = None
    """Pipeline file with the classes of the domains, where they cannot be imported by name."""
    isolated: bool = True
    """Whether the code runs in a process, rather than in a thread."""


def check_examples(domains: Sequence[Domain]) -> None:
    """Refuse domains whose format cannot be taught.

    Raises:
        SettingsError: a domain has no example actions, or its environment converses.
    """
    for domain in domains:
        if domain.environment.converses:
            raise SettingsError(
                f"domain {domain.name!r} converses, and a format warm start teaches actions of "
                "text; set warm_start to 0, and begin with a pretrained policy"
            )
        if type(domain).example_action is Domain.example_action:
            raise SettingsError(
                f"domain {domain.name!r} has no example_action, so its format cannot be taught; "
                "define it or set warm_start to 0"
            )


class _Handler(Protocol):
    async def call(self, request: Mapping[str, object]) -> object: ...

    async def kill(self) -> None: ...


class ExampleEpisodes:
    """The example episodes of one domain, one at a time.

    Args:
        domain: a domain with `example_action`.
        seed: seed of its tasks.
        settings: how its code runs.
    """

    def __init__(self, domain: Domain, seed: int, settings: ExampleSettings) -> None:
        self._domain = domain
        self._seed = seed
        self._settings = settings
        self._name = domain.environment.__name__
        self._handler: _Handler | None = None
        self._begun = 0

    async def begin(self, seed: int) -> Turn:
        """Start an episode of the next task, after `open`; return the first (observation, action).

        Raises:
            EnvironmentFailedError: the environment raised, or its process ended.
            EnvironmentTimeoutError: a call took too long.
        """
        self._begun += 1
        found = await self._call("reset", {"begin": seed}, self._settings.limit_s)
        if found is None:
            raise EnvironmentFailedError(f"{self._name}.reset: no observation")
        return found

    async def turn(self) -> Turn | None:
        """Apply the last action; return the next (observation, action), or None at the end.

        Raises:
            EnvironmentFailedError: see `begin`.
            EnvironmentTimeoutError: see `begin`.
        """
        return await self._call("step", {"turn": None}, self._settings.limit_s)

    async def open(self) -> None:
        """Start the process and make the environment in it, unless that is done already.

        Raises:
            EnvironmentFailedError: the environment cannot be made.
            EnvironmentTimeoutError: that took too long.
        """
        if self._handler is not None:
            return
        how: dict[str, object] = {"seed": self._seed, "after": self._begun}
        if self._settings.isolated:
            how |= opening(self._domain, self._settings.source)
            try:
                self._handler = await Isolated.start(_HANDLER, environ_of(self._domain))
            except IsolatedError as error:
                raise EnvironmentFailedError(f"{self._name}: {error}") from error
        else:
            self._handler = HandlerThread(ExampleHandler(self._domain), self._name)
        await self._call("make", {"open": how}, max(START_S, self._settings.limit_s))

    async def close(self) -> None:
        """End the process."""
        handler, self._handler = self._handler, None
        if handler is not None:
            await handler.kill()

    async def _call(self, what: str, request: Mapping[str, object], limit_s: float) -> Turn | None:
        call = f"{self._name}.{what}"
        try:
            async with timeout(limit_s):
                with waiting(f"{call} of an example"):
                    assert self._handler is not None
                    return _turn_of(await self._handler.call(request), call)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise EnvironmentTimeoutError(f"{call}: no answer within {limit_s:g} s") from error
            if isinstance(error, IsolatedError):
                raise EnvironmentFailedError(f"{call}: {error}") from error
            raise


def _turn_of(answer: object, call: str) -> Turn | None:
    """Return the checked answer of a process, which runs code of users."""
    match answer:
        case None:
            return None
        case [observation, str(action)]:
            return checked_observation(observation, call, SHOWN), action
    raise EnvironmentFailedError(f"{call}: the process answered with {type(answer).__name__}")
