"""Tasks, tools and rewards of verifiers, in a process of the virtual environment that has it.

verifiers runs its own agents against an endpoint. Here the policy of the run acts in their place,
token ids included, as their harness "null" does: it sees the task's prompt, calls the tools of its
toolsets, and its last answer is finalized and scored by the task. What needs more of verifiers than
that is refused in one line: a runtime (a box of theirs), judges and simulated users, which call
models, and environments of several agents.

Source: https://github.com/PrimeIntellect-ai/verifiers (verifiers 0.4, v1/task.py and v1/rollout.py)
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from rollart_flow.envs.base import Environment, EnvironmentProgram
from rollart_flow.envs.blocking import BlockingEnvironment
from rollart_flow.envs.foreign.base import ForeignDomain
from rollart_flow.envs.foreign.venv import check_python, handler, installed, interpreter
from rollart_flow.errors import SettingsError
from rollart_flow.types import Split, Task

_PACKAGE = "verifiers"


class VerifiersEnvironment(BlockingEnvironment):
    """A task of verifiers that blocks."""

    version = "verifiers/1"


@dataclass(frozen=True)
class Verifiers(ForeignDomain):
    """Tasks of a taskset of verifiers, by the id of its package or the folder that it is in.

    The tasks are those that the taskset loads, by their place: `count` of them, of which the first
    `held_out` are never trained on. A row of `rows`, if there are any, is {"index": place} instead.
    Raises SettingsError if a setting is wrong.
    """

    environment: ClassVar[type[Environment]] = VerifiersEnvironment

    taskset: str
    """Id of an installed taskset, such as "gsm8k", or the path of its folder or file."""
    name: str = field(default="verifiers", kw_only=True)  # type: ignore[misc]  # see its base
    python: str = ""
    """Interpreter of the virtual environment with verifiers, wherever episodes run."""
    count: int = 0
    """Number of tasks that the taskset loads; it is needed, since only their process can load
    them."""
    held_out_count: int = 0
    """Number of tasks, the first ones, that training never uses."""
    environ: tuple[str, ...] = ()
    """Environment variables that the process gets besides the usual ones."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the taskset, its configuration; JSON values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_python(self.python, _PACKAGE, "Verifiers")
        if not self.rows and not 0 <= self.held_out_count < self.count:
            raise SettingsError(
                f"Verifiers: count is {self.count} and held_out_count {self.held_out_count}; set "
                "count to the number of tasks that are used, and hold out fewer"
            )
        try:
            json.dumps(dict(self.config))
        except TypeError as error:
            raise SettingsError(f"Verifiers: config has no JSON form: {error}") from error

    @property
    def version(self) -> str:
        name = Path(self.taskset).stem
        return f"verifiers/{installed(self.python, _PACKAGE)}/{name}"

    def make(self) -> Environment:
        return VerifiersEnvironment(self)

    def program(self) -> EnvironmentProgram:
        settings = {
            "taskset": self.taskset,
            "config": dict(self.config),
            "success": self.success,
            "max_turns": self.max_turns,
        }
        return EnvironmentProgram(
            interpreter(self.python), handler("verifiers_child.py", "VerifiersHandler"), settings
        )

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """The tasks that are trained on: in a fresh order again and again; once for evaluation."""
        if self.rows:
            return super().tasks(split, seed)
        places = range(self.held_out_count, self.count)
        if split is Split.EVALUATION:
            return map(self._placed, places)
        random = Random(f"{self.name}/{seed}")
        rounds = (random.sample(places, len(places)) for _ in count())
        return map(self._placed, chain.from_iterable(rounds))

    def held_out(self, seed: int) -> Iterator[Task]:
        """The tasks that are held out, each once."""
        first = map(self._placed, islice(count(), self.held_out_count))
        return chain(first, super().held_out(seed))

    def _placed(self, place: int) -> Task:
        return self._task({"index": place}, f"{place}")
