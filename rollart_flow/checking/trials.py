"""A trial: known actions played in a domain's environment, which is isolated as in a run.

The invariant: a trial ends within the time limits of its calls, its environment is closed, and
whatever the environment does is in its `Trial`; no error of the environment escapes.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, repeat

from rollart_flow.control.environment import AsyncEnvironment, may_converse, starts_slowly
from rollart_flow.control.rollout.env_checks import StepAnswer, checked_reset, checked_step
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError
from rollart_flow.text import one_line
from rollart_flow.types import Action, Task, Tool, ToolCall, solved_by
from rollart_flow.types.messages import text_of
from rollart_flow.types.verdict_checks import checked_report
from rollart_flow.types.verdicts import AttemptReport

SUBMIT = "submit"
"""Name of the tool with which an attempt is handed in."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The end of one play of known actions."""

    solved: bool
    reward: float
    seconds: float
    error: str | None = None
    """Why the environment gave no answer, in one line; the attempt of a run would have failed."""
    report: AttemptReport | None = None
    statement: str = ""
    """Text of the first observation."""

    def like(self, other: "Trial") -> bool:
        """Whether another play of the same actions ended in the same way, test by test."""
        return (
            self.solved == other.solved
            and abs(self.reward - other.reward) < 1e-9
            and (self.error is None) == (other.error is None)
            and _passed(self.report) == _passed(other.report)
        )


def _passed(report: AttemptReport | None) -> dict[tuple[str, str], bool | None]:
    verdicts = () if report is None else report.verdicts or ()
    return {(each.kind, each.key): each.passed for each in verdicts}


async def play(
    make: Callable[[], AsyncEnvironment],
    task: Task,
    seed: int,
    actions: Sequence[str | Action] | None,
    max_turns: int,
) -> Trial:
    """Play actions until they or the episode end.

    Args:
        make: makes the environment, whose calls have time limits of their own.
        task: the task.
        seed: seed of the reset.
        actions: the actions; None: nothing is done until the episode ends, beyond handing in at
            once where there is a tool to do so.
        max_turns: turns after which the episode ends.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    environment = make()
    played = _Played()
    error = None
    try:
        await _play(environment, task, seed, actions, max_turns, played)
    except (EnvironmentFailedError, EnvironmentTimeoutError, TypeError, ValueError) as failure:
        error = one_line(failure)
    finally:
        with suppress(EnvironmentFailedError, EnvironmentTimeoutError):
            await environment.close()
    solved = error is None and bool(solved_by(played.success, played.reward))
    seconds = loop.time() - began
    return Trial(solved, played.reward, seconds, error, played.report, played.statement)


class _Played:
    """Rewards, success, report and statement of a trial so far."""

    def __init__(self) -> None:
        self.reward = 0.0
        self.success: bool | None = None
        self.report: AttemptReport | None = None
        self.statement = ""

    def add(self, answer: StepAnswer) -> None:
        self.reward += answer.reward
        if (success := answer.info.get("success")) is not None:
            self.success = bool(success)
        if (report := checked_report(answer.info)) is not None:
            self.report = report if self.report is None else self.report.updated(report)


async def _play(
    environment: AsyncEnvironment,
    task: Task,
    seed: int,
    actions: Sequence[str | Action] | None,
    max_turns: int,
    played: _Played,
) -> None:
    if starts_slowly(environment):
        await environment.start()
    shown = checked_reset(await environment.reset(seed, task.payload)).observation
    played.statement = text_of(shown)
    tools = environment.tools if may_converse(environment) else None
    for action in islice(_actions(actions, tools), max_turns):
        answer = checked_step(await environment.step(_taken(action, tools)))
        played.add(answer)
        if answer.terminated or answer.truncated:
            return


def _actions(
    actions: Sequence[str | Action] | None, tools: Sequence[Tool] | None
) -> Iterator[str | Action]:
    if actions is not None:
        return iter(actions)
    if any(tool.name == SUBMIT for tool in tools or ()):
        return repeat(Action("", tool_calls=(ToolCall("call-0", SUBMIT, {}),)))
    return repeat("")


def _taken(action: str | Action, tools: Sequence[Tool] | None) -> str | Action:
    """Return an action as an environment with these tools, or one that takes text, takes it."""
    if tools is None:
        return action if isinstance(action, str) else action.text
    return Action(action) if isinstance(action, str) else action
