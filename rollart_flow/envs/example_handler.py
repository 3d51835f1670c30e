"""The child-process side of example episodes; the parent side is `envs.examples`.

Requests: {"open": {"domain": reference, "settings": reference, "seed": number, "after": number}},
{"begin": seed}, {"turn": null}. The answer to the last two is [observation, action], or null once
the episode is over. An observation is text, or messages in their JSON form with the files of their
images.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from random import Random
from typing import Any

from rollart_flow.control.rollout.env_checks import checked_reset, checked_step
from rollart_flow.envs.base import Domain, Environment
from rollart_flow.envs.child_handler import resolved_domain
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.types import Split, Task
from rollart_flow.types.branching import Branching, StepObservation, observation_json
from rollart_flow.types.messages import message_with_files


class ExampleHandler:
    """Plays one episode at a time with example actions.

    Args:
        domain: domain of the episodes; by default the one of the request "open".
    """

    _tasks: Iterator[Task]
    _environment: Environment
    _task: Task
    _random: Random
    _action: str
    _turns: int

    def __init__(self, domain: Domain | None = None) -> None:
        self._domain = domain

    def __call__(self, request: Mapping[str, Any]) -> object:
        calls: dict[str, Callable[[Any], object]] = {
            "open": self._open,
            "begin": self._begin,
            "turn": self._turn,
        }
        ((name, argument),) = request.items()
        return calls[name](argument)

    def _open(self, how: Mapping[str, Any]) -> None:
        if self._domain is None:
            self._domain = resolved_domain(how)
        self._environment = self._domain.make()
        self._tasks = islice(self._opened.tasks(Split.TRAIN, how["seed"]), how["after"], None)

    def _begin(self, seed: int) -> list[object]:
        task = next(self._tasks, None)
        if task is None:
            raise EnvironmentFailedError(f"domain {self._opened.name!r} has no more training tasks")
        payload: object = task.payload
        text = payload if isinstance(payload, str) else json.dumps(payload, sort_keys=True)
        self._task, self._random, self._turns = task, Random(seed), 0
        answer = self._environment.reset(self._random.getrandbits(31), text)
        return self._with_action(checked_reset(answer, self._name("reset")).observation)

    def _turn(self, _: None) -> list[object] | None:
        answer = checked_step(self._environment.step(self._action), self._name("step"))
        self._turns += 1
        if answer.terminated or answer.truncated or self._turns >= self._opened.max_turns:
            return None
        return self._with_action(answer.observation)

    def _with_action(self, observation: StepObservation) -> list[object]:
        if self._environment.converses or isinstance(observation, Branching):
            raise EnvironmentFailedError(
                f"domain {self._opened.name!r} converses or branches; a warm start needs actions "
                "of text in one chain"
            )
        action: object = self._opened.example_action(self._task, self._random)
        if not isinstance(action, str):
            kind = type(action).__name__
            raise EnvironmentFailedError(f"example_action returned {kind}; it must return a str")
        self._action = action
        return [observation_json(observation, message_with_files), action]

    @property
    def _opened(self) -> Domain:
        assert self._domain is not None, "the first request is open"
        return self._domain

    def _name(self, method: str) -> str:
        return f"{type(self._environment).__name__}.{method}"
