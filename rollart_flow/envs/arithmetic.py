"""Arithmetic with small numbers: one turn, one answer that can be verified.

The observation is the problem, such as "3+4=", and nothing else; the action is the number. All
problems of the settings are split once, by a hash of the problem, into those that are trained on
and those that never are, so that learning can be told from memorizing.

Invariant: whether a problem is held out depends on the settings alone, never on a run's seed, so
that all runs, forks and evaluations agree on it.
"""

import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import product
from random import Random
from typing import ClassVar

from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Split, Task

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": operator.mod,
    "<": lambda left, right: int(left < right),
}
"""A comparison is answered with 1 (true) or 0 (false)."""

_PROBLEM = re.compile(r"(\d+)([+*%<-])(\d+)=")
_NUMBER = re.compile(r"-?\d+")


def solve(problem: str) -> int:
    """The answer of a problem such as "3+4="; EnvironmentFailedError if it is none."""
    match = _PROBLEM.fullmatch(problem)
    if match is None:
        raise EnvironmentFailedError(
            f"arithmetic: {problem!r} is no problem; write one such as '3+4='"
        )
    left, sign, right = match.groups()
    if sign == "%" and int(right) == 0:
        raise EnvironmentFailedError(f"arithmetic: {problem!r} divides by 0")
    return OPERATIONS[sign](int(left), int(right))


def parse_answer(text: str) -> int | None:
    """The last whole number in a text; None where there is none."""
    numbers = _NUMBER.findall(text)
    return int(numbers[-1]) if numbers else None


class ArithmeticEnvironment(Environment):
    """One problem, one answer. `info["success"]`: whether it is right."""

    inline = True
    version = "arithmetic/1"

    def __init__(self, settings: "Arithmetic") -> None:
        self._settings = settings
        self._answer: int | None = None

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        """Pose the task's problem: `{"problem": "3+4="}`. Nothing is random, so no seed is used."""
        problem: str = json.loads(task)["problem"]
        self._answer = solve(problem)
        return self._settings.instructions + problem, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._answer is None:
            raise EnvironmentFailedError("arithmetic: step before reset; call reset first")
        given = parse_answer(action)
        success = given == self._answer
        if given is None:
            reward = -self._settings.format_penalty
        else:
            near = self._settings.near_reward / (1 + abs(given - self._answer))
            reward = 1.0 if success else near
        return "", reward, True, False, {"success": success}


@cache
def _problems(
    ops: tuple[str, ...], lefts: range, rights: Sequence[int], fraction: float
) -> tuple[tuple[str, ...], ...]:
    """(trained, held out), each in a fixed order."""
    split: tuple[list[str], list[str]] = ([], [])
    for sign, left, right in product(ops, lefts, rights):
        problem = f"{left}{sign}{right}="
        share = int.from_bytes(blake2b(problem.encode(), digest_size=8).digest()) / 2**64
        split[share < fraction].append(problem)
    return tuple(split[0]), tuple(split[1])


@dataclass(frozen=True)
class Arithmetic(Domain):
    """Add, subtract, multiply, compare or take remainders of numbers of up to `digits` digits.

    Raises SettingsError if a setting is out of range; the message says which values there are.
    """

    name: ClassVar[str] = "arithmetic"
    environment: ClassVar[type[Environment]] = ArithmeticEnvironment

    digits: int = 1
    """Most digits of each operand: 1 (100 problems an operation) or 2 (10,000)."""
    ops: tuple[str, ...] = ("+",)
    """Operations, of "+", "-", "*", "%" and "<"."""
    right: tuple[int, ...] = ()
    """Right operands; if empty, any number of up to `digits` digits."""
    held_out_fraction: float = 0.1
    """Share of the problems that training never sees, chosen by hash, so approximate."""
    format_penalty: float = 0.0
    """Amount that the reward loses if the answer holds no number."""
    near_reward: float = 0.0
    """Reward of a wrong answer that is off by d: near_reward / (1 + d). 0: only right counts."""
    instructions: str = ""
    """Put before the problem; a pretrained policy needs to be told what to do."""

    def __post_init__(self) -> None:
        unknown = [sign for sign in self.ops if sign not in OPERATIONS]
        if unknown or not self.ops or len(set(self.ops)) < len(self.ops):
            raise SettingsError(
                f"Arithmetic: ops is {self.ops!r}; take each of {', '.join(OPERATIONS)} at most "
                "once, and at least one"
            )
        if self.digits not in (1, 2):
            raise SettingsError(f"Arithmetic: digits is {self.digits}; it must be 1 or 2")
        object.__setattr__(self, "right", tuple(self.right))
        if any(not isinstance(n, int) or n < 0 for n in self.right):
            raise SettingsError(
                f"Arithmetic: right is {self.right!r}; it must hold whole numbers from 0"
            )
        if "%" in self.ops and 0 in self._rights:
            raise SettingsError(
                'Arithmetic: nothing is divided by 0; with the operation "%" set right, '
                "such as right=(2, 5)"
            )
        if not 0.0 <= self.held_out_fraction < 1.0:
            raise SettingsError(
                f"Arithmetic: held_out_fraction is {self.held_out_fraction}; "
                "it must be at least 0 and under 1"
            )
        if not self._problems[0]:
            raise SettingsError(
                f"Arithmetic: held_out_fraction {self.held_out_fraction} leaves no problem to "
                "train on; lower it"
            )
        if not 0.0 <= self.near_reward < 1.0 or self.format_penalty < 0.0:
            raise SettingsError(
                "Arithmetic: near_reward must be at least 0 and under 1, and format_penalty at "
                "least 0, or else a wrong answer could pay as much as a right one"
            )

    def make(self) -> ArithmeticEnvironment:
        return ArithmeticEnvironment(self)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """The problems that are trained on: all of them once for evaluation, else endlessly.

        Training goes through all of them in a fresh order again and again, so that none is
        neglected.
        """
        trained, _ = self._problems
        return self._shuffled(trained, seed) if split is Split.TRAIN else self._as_tasks(trained)

    def held_out(self, seed: int) -> Iterator[Task]:
        """The problems that are never trained on, each once."""
        return self._as_tasks(self._problems[1])

    def example_action(self, task: Task, random: Random) -> str:
        """The right answer of another problem: shaped like an answer, and a guess."""
        problem: str = json.loads(task.payload)["problem"]
        sign = problem.strip("0123456789=")
        left = random.randrange(10**self.digits)
        return str(OPERATIONS[sign](left, random.choice(self._rights)))

    @property
    def _rights(self) -> Sequence[int]:
        return self.right or range(10**self.digits)

    @property
    def _problems(self) -> tuple[tuple[str, ...], ...]:
        return _problems(self.ops, range(10**self.digits), self._rights, self.held_out_fraction)

    def _shuffled(self, problems: tuple[str, ...], seed: int) -> Iterator[Task]:
        random = Random(f"{self.name}/{seed}")
        while True:
            yield from self._as_tasks(random.sample(problems, len(problems)))

    def _as_tasks(self, problems: tuple[str, ...] | list[str]) -> Iterator[Task]:
        for problem in problems:
            task_id = f"{self.name}/{problem.removesuffix('=')}"
            yield Task(task_id, self.name, json.dumps({"problem": problem}))
