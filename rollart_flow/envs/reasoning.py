"""All generators of reasoning-gym as one domain: a question, an answer, a score from 0 to 1.

    ReasoningGym(("chain_sum", "gcd"), levels=(0, 1, 2))
    tasks(ReasoningGym("all"), curriculum=Curriculum())

A task names its generator, its number, which is the seed, and its level, so that it can be run
again. The levels are those of reasoning-gym's own curricula: all attributes of a generator at that
level, or at its highest one. Where a generator refuses a level of its own curriculum, the next
lower one is taken, or its defaults. Which tasks of all levels are trained on,
`tasks(curriculum=...)` decides by how often each is solved.

Invariant: an answer that could run code is not scored. Several scorers of reasoning-gym evaluate
the answer, and what a model wrote does not run here.

Source: https://github.com/open-thought/reasoning-gym
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, ClassVar

from rollart_flow.envs.base import Environment, Info
from rollart_flow.envs.numbered import HELD_OUT_FROM, NumberedDomain
from rollart_flow.envs.optional import optional_module
from rollart_flow.envs.plain_answers import AnswerKind, answer_kind
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Task

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_LONGEST = 16_000
_ABSTRACT = {"composite"}
"""Generators that only mix others."""
_EVALUATED = {
    "countdown",
    "intermediate_integration",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
}
"""Generators whose scorer rewrites the answer before it evaluates it, so that only what is a plain
expression as it stands may reach it."""
_EXAMPLES = ("example_answer", "example_correct_answer", "possible_answer")
"""Fields in which generators with several right answers keep one."""


def stated_answer(text: str) -> str:
    """Return the last `<answer>` in a text, or else the last `\\boxed{}`, or else all of it."""
    found = _TAGGED.findall(text) or _BOXED.findall(text)
    return (found[-1] if found else text).strip()


class ReasoningQuestion:
    """A generated question with its scorer.

    Raises:
        MissingExtraError: reasoning-gym is not installed.
        EnvironmentFailedError: it has no such generator, or cannot make the question.
    """

    def __init__(self, dataset: str, number: int, level: int | None) -> None:
        factory = optional_module("reasoning_gym.factory", extra="reasoning")
        optional_module("reasoning_gym", extra="reasoning")
        if dataset not in factory.DATASETS:
            raise EnvironmentFailedError(f"reasoning-gym has no generator {dataset!r}")
        self.dataset = dataset
        self._factory = factory
        settings = {"seed": number, "size": 1}
        try:
            self._generator: Any = self._at(level, settings)
            self._entry: dict[str, Any] = self._generator[0]
        except Exception as error:  # a generator may raise anything
            raise EnvironmentFailedError(
                f"reasoning-gym: {dataset}, number {number}, level {level}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _at(self, level: int | None, settings: dict[str, int]) -> Any:
        """Return a generator at a level, or at the next lower one that its own checks accept."""
        known = self._factory.has_curriculum(self.dataset)
        for each in range(level, -1, -1) if level is not None and known else ():
            curriculum = self._factory.create_curriculum(self.dataset)
            curriculum.set_global_level(each)
            with suppress(AssertionError, ValueError):
                made = curriculum.generate_configuration(settings)
                return self._factory.DATASETS[self.dataset][0](config=made)
        return self._factory.create_dataset(self.dataset, **settings)

    @property
    def text(self) -> str:
        question = str(self._entry["question"])
        return question if len(question) <= _LONGEST else f"{question[: _LONGEST - 1]}…"

    @property
    def answer(self) -> str | None:
        """A right answer; None if the generator tells none."""
        metadata = self._entry.get("metadata") or {}
        found = (self._entry.get("answer"), *(metadata.get(name) for name in _EXAMPLES))
        told = next((each for each in found if each is not None), None)
        return told if told is None or isinstance(told, str) else json.dumps(told)

    def score(self, answer: str) -> float:
        """Return the score of an answer, from 0 to 1; 0 for what a scorer cannot read."""
        kind = answer_kind(answer)
        if kind is AnswerKind.CODE or (kind is not AnswerKind.PLAIN and self.dataset in _EVALUATED):
            return 0.0
        try:
            score = float(self._generator.score_answer(answer, self._entry))
        except Exception:  # noqa: BLE001  scorers raise for answers of another form
            return 0.0
        return min(1.0, max(0.0, score))


class ReasoningEnvironment(Environment):
    """One question, one answer. `info["success"]`: whether its score is at least `solved_from`."""

    version = "reasoning-gym/1"

    def __init__(self, settings: "ReasoningGym") -> None:
        optional_module("reasoning_gym", extra="reasoning")  # seconds, before the first reset
        self._settings = settings
        self._question: ReasoningQuestion | None = None

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        """Ask `{"dataset": "gcd", "number": 7, "level": null}`; its number is the seed."""
        payload = json.loads(task)
        self._question = ReasoningQuestion(payload["dataset"], payload["number"], payload["level"])
        return self._settings.instructions + self._question.text, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Score the answer that a text states."""
        if self._question is None:
            raise EnvironmentFailedError("reasoning-gym: step before reset; call reset first")
        score = self._question.score(stated_answer(action))
        return "", score, True, False, {"success": score >= self._settings.solved_from}


@lru_cache(maxsize=1)
def all_datasets() -> tuple[str, ...]:
    """Return the names of all generators of the installed reasoning-gym, sorted."""
    optional_module("reasoning_gym", extra="reasoning")
    known = optional_module("reasoning_gym.factory", extra="reasoning").DATASETS
    return tuple(sorted(set(known) - _ABSTRACT))


@dataclass(frozen=True)
class ReasoningGym(NumberedDomain):
    """Answer questions of reasoning-gym; needs the extra `reasoning`.

    Raises SettingsError if no generator is named, or a level is negative. A process with
    reasoning-gym takes about 200 MB; `rollout(max_concurrent=...)` limits how many there are.
    """

    environment: ClassVar[type[Environment]] = ReasoningEnvironment

    datasets: tuple[str, ...] | str = "all"
    """Names of generators, such as ("chain_sum", "gcd"), or "all"."""
    levels: tuple[int, ...] = ()
    """Levels of difficulty from 0 in reasoning-gym's curricula; tasks of all of them are mixed.
    Empty: the defaults of each generator."""
    solved_from: float = 1.0
    """Score from which a question counts as solved."""
    instructions: str = ""
    """Put before the question. An answer may be marked as `<answer>...</answer>` or
    `\\boxed{...}`."""
    name: str = field(default="reasoning_gym", kw_only=True)  # type: ignore[misc]  # a setting
    """Name of the domain; set it where a pipeline has two of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.datasets, str):
            object.__setattr__(self, "datasets", tuple(self.datasets))
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.datasets or (isinstance(self.datasets, str) and self.datasets != "all"):
            raise SettingsError(
                f'ReasoningGym: datasets is {self.datasets!r}; give names such as ("gcd",), or '
                '"all"'
            )
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in self.levels):
            raise SettingsError(
                f"ReasoningGym: levels is {self.levels!r}; it must hold whole numbers from 0"
            )

    def make(self) -> ReasoningEnvironment:
        return ReasoningEnvironment(self)

    def task(self, number: int) -> Task:
        """Return the question of a number: generators in turn, and then levels."""
        names = all_datasets() if isinstance(self.datasets, str) else self.datasets
        levels: Sequence[int | None] = self.levels or (None,)
        turn = number - HELD_OUT_FROM if number >= HELD_OUT_FROM else number
        dataset = names[turn % len(names)]
        level = levels[turn // len(names) % len(levels)]
        payload = {"dataset": dataset, "number": number, "level": level}
        at = "" if level is None else f"/level{level}"
        return Task(f"{self.name}/{dataset}{at}/{number}", self.name, json.dumps(payload))

    def solutions(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Return the answer that the generator tells; empty if it tells none."""
        payload = json.loads(task.payload)
        question = ReasoningQuestion(payload["dataset"], payload["number"], payload["level"])
        return {} if question.answer is None else {"gold": [question.answer], "noop": [""]}

    def example_action(self, task: Task, random: Random) -> str:
        """Return the answer of another question: shaped like an answer, and a guess."""
        payload = json.loads(task.payload)
        other = random.randrange(HELD_OUT_FROM)
        question = ReasoningQuestion(payload["dataset"], other, payload["level"])
        return question.answer or ""
