r"""Problems of mathematics with a Python tool that runs in a box.

The policy may call `python(code)` several times, each time a new process in the attempt's box, and
ends with a text whose `\boxed{...}`, or else last number, is compared with the right answer as
`math_equal` does (ROLLART Table 1, GEM-math with tools).

Invariant: code runs in the box only. The answer is not in the box, and what the tool shows is
bounded.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rollart_flow.envs.base import Environment, Info
from rollart_flow.envs.math_problems import (
    GENERATED,
    REASONING,
    TABLES,
    MathProblem,
    generated_problem,
    table_problems,
)
from rollart_flow.envs.numbered import HELD_OUT_FROM, NumberedDomain
from rollart_flow.envs.tools import ToolEnvironment, tool
from rollart_flow.errors import EnvironmentFailedError, SandboxError, SettingsError
from rollart_flow.rewards.math.equal import are_equal
from rollart_flow.rewards.math.rule import final_answer
from rollart_flow.types import Action, Observation, Task
from rollart_flow.types.branching import StepObservation
from rollart_flow.types.messages import system, user
from rollart_flow.validation import check_count, check_number

if TYPE_CHECKING:
    from rollart_flow.sandbox.base import SandboxSpec
    from rollart_flow.sandbox.box import Box

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def stated_number(text: str) -> str:
    r"""Return what a text states as its answer: `\boxed{...}` and the like, or its last number."""
    stated = final_answer(text)
    numbers = _NUMBER.findall(text) if stated == text else None
    return numbers[-1].rstrip(",") if numbers else stated


class MathWithPythonEnvironment(ToolEnvironment):
    """One problem. `info["success"]`: whether the answer is right; `info["python_calls"]`."""

    version = "math-python/1"

    def __init__(self, settings: "MathWithPython") -> None:
        self._settings = settings
        self._box: Box | None = None
        self._spec: SandboxSpec | None = None
        self._problem: MathProblem | None = None
        self._calls = 0
        self._broken: SandboxError | None = None

    def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        """Pose `{"question": "...", "answer": "..."}`; nothing is random."""
        self.close()
        payload = json.loads(task)
        self._problem = MathProblem(payload["question"], payload["answer"])
        self._spec = self._settings.box(task)
        self._calls = 0
        told = [system(self._settings.instructions)] if self._settings.instructions else []
        return [*told, user(self._problem.question)], {}

    def step(self, action: Action) -> tuple[StepObservation, float, bool, bool, Info]:
        """Run the calls of an action, or check its answer.

        Raises:
            SandboxError: the box failed, which is no fault of the code in it.
        """
        answered = super().step(action)
        if self._broken is not None:
            raise self._broken
        return answered

    @tool
    def python(self, code: str) -> str:
        """Run a Python program and get what it prints.

        Args:
            code: the program; print what you want to see. Files stay, variables do not.
        """
        if self._calls >= self._settings.calls:
            return "No calls are left; answer now."
        self._calls += 1
        try:
            if self._box is None:
                self._box = self.boxes.open(self._spec)
            source = code.encode("utf-8", "replace")
            limit_s = self._settings.code_timeout_s
            done = self._box.exec(["python3", "-"], stdin=source, timeout_s=limit_s)
        except SandboxError as error:
            self._broken = error
            raise
        told = _bounded(done.stdout + done.stderr, self._settings.output_characters)
        if done.killed_by:
            return f"{told}\n(killed by the limit of {done.killed_by})".strip()
        return told or f"(exit code {done.exit_code}, nothing printed)"

    def answer(self, text: str) -> tuple[Observation, float, bool, bool, Info]:
        """Compare the stated answer; the episode ends with it."""
        if self._problem is None:
            raise EnvironmentFailedError("MathWithPython: step before reset; call reset first")
        right = are_equal(stated_number(text), self._problem.answer)
        paid = max(0.0, 1.0 - self._settings.call_cost * self._calls) if right else 0.0
        return "", paid, True, False, {"success": right, "python_calls": self._calls}

    def close(self) -> None:
        """End the box."""
        box, self._box, self._broken = self._box, None, None
        if box is not None:
            box.close()


def _bounded(text: str, most: int) -> str:
    """Return a text, or its beginning and end if it is long."""
    text = text.strip()
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n... {len(text) - most} characters ...\n{text[-(most // 2) :]}"


@dataclass(frozen=True)
class MathWithPython(NumberedDomain):
    r"""Solve problems of mathematics, with Python in a box.

    Raises SettingsError if a setting is out of range, or names no problems.
    """

    environment: ClassVar[type[Environment]] = MathWithPythonEnvironment

    problems: str = "story"
    """Source of the problems: "story" or "expression", made from a number; "reasoning_gym/NAME",
    such as "reasoning_gym/gsm_symbolic"; or the path of a .jsonl or .parquet file."""
    question: str = "question"
    """Column of a file that holds the questions."""
    answer: str = "answer"
    """Column of a file that holds the answers, as numbers or LaTeX. A tenth of the rows, chosen by
    their hash, is held out."""
    calls: int = 4
    """Calls of the tool in an attempt."""
    call_cost: float = 0.0
    """Part of the reward that each call costs."""
    code_timeout_s: float = 5.0
    """Limit of one call [s]; less than `step_timeout_s` of `rollout`."""
    output_characters: int = 2000
    """Characters of a call's output that are shown, its beginning and its end."""
    memory_mb: int = 512
    """Memory of the box [MiB]."""
    max_turns: int = 6
    """Turns after which an episode is truncated; more than `calls`, so that all can be made."""
    instructions: str = (
        "Solve the problem. You may run Python. End with the answer in \\boxed{...}."
    )
    """Message of the system; empty: none."""
    name: str = field(default="math_python", kw_only=True)  # type: ignore[misc]  # a setting
    """Name of the domain; set it where a pipeline has two of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.problems in GENERATED or self.problems.startswith(REASONING)
        if not known and Path(self.problems).suffix not in TABLES:
            raise SettingsError(
                f"MathWithPython: problems is {self.problems!r}; take one of "
                f"{', '.join(GENERATED)}, {REASONING}NAME, or a file {' or '.join(TABLES)}"
            )
        for setting, low in (("calls", 0), ("output_characters", 16), ("memory_mb", 64)):
            check_count(f"MathWithPython: {setting}", getattr(self, setting), low=low)
        check_count("MathWithPython: max_turns", self.max_turns, low=self.calls + 1)
        check_number("MathWithPython: call_cost", self.call_cost, low=0)
        check_number("MathWithPython: code_timeout_s", self.code_timeout_s, low=0, open_low=True)

    def make(self) -> MathWithPythonEnvironment:
        return MathWithPythonEnvironment(self)

    def box(self, task: str) -> "SandboxSpec":
        """Return an empty box with the setting's memory."""
        from rollart_flow.sandbox.base import SandboxLimits, SandboxSpec

        limits = SandboxLimits(memory_mb=self.memory_mb, disk_mb=64, processes=32)
        return SandboxSpec(limits=limits)

    def counts(self) -> tuple[int, int]:
        """Return the numbers of tasks, at most the rows of a file."""
        counts = super().counts()
        if not self._is_table:
            return counts
        trained, held_out = table_problems(self.problems, self.question, self.answer)
        return min(counts[0], len(trained)), min(counts[1], len(held_out))

    def task(self, number: int) -> Task:
        """Return the problem of a number, or of a row."""
        problem = self._problem(number)
        payload = {"question": problem.question, "answer": problem.answer}
        source = Path(self.problems).stem if self._is_table else self.problems
        return Task(f"{self.name}/{source}/{number}", self.name, json.dumps(payload))

    def solutions(self, task: Task) -> Mapping[str, Sequence[Action]]:
        """Return the answer, and an attempt that gives none."""
        answer = json.loads(task.payload)["answer"]
        return {"gold": [Action(f"\\boxed{{{answer}}}")], "noop": [Action("I do not know.")]}

    @property
    def _is_table(self) -> bool:
        return Path(self.problems).suffix in TABLES

    def _problem(self, number: int) -> MathProblem:
        if not self._is_table:
            return generated_problem(self.problems, number)
        trained, held_out = table_problems(self.problems, self.question, self.answer)
        held = number >= HELD_OUT_FROM
        return held_out[number - HELD_OUT_FROM] if held else trained[number]
