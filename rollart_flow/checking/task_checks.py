"""Checks of tasks before they are trained on: gold passes, doing nothing fails, cheats get nothing.

Each of them is played several times, and a repetition that ends otherwise marks the task as flaky.
The invariant: a task is admitted only if every trial of it ended as it should; the reason why it is
not is one line.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollart_flow.checking.trials import Trial, play
from rollart_flow.control.environment import AsyncEnvironment
from rollart_flow.control.ids import env_seed
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain
from rollart_flow.envs.process import WarmProcesses
from rollart_flow.errors import RewardFailedError
from rollart_flow.isolation.child import error_line
from rollart_flow.store.admissions import Key
from rollart_flow.text import counted, one_line
from rollart_flow.types import Action, Task
from rollart_flow.types.verdicts import TaskDigests

GOLD, NOOP, CHEAT = "gold", "noop", "cheat:"
"""Names of known solutions: the first two, and the beginning of those of cheats."""

Quality = Callable[[Task, str], Awaitable[float]]
"""Scores the statement of a task, which is the second argument, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Settings of a check of tasks."""

    repeat: int = 2
    """Number of times that each solution is played."""
    workers: int = 1
    """Number of trials at a time."""
    timeout_s: float = 60.0
    """Limit of each call of an environment [s]."""
    source: Path | None = None
    """Pipeline file, for domains that cannot be imported by name."""
    quality: Quality | None = None
    """Judge of the statements of tasks; None to ask none."""
    least_quality: float = 0.5
    """Least score with which a task is admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCheck:
    """The check of one task: a row of the table `admissions`."""

    task_id: str
    domain: str
    digests: TaskDigests
    gold: bool | None
    """Whether the known solution solved the task each time; None without one."""
    noop: bool
    """Whether doing nothing failed each time."""
    cheat: bool | None
    """Whether each known cheat got no reward each time; None without one."""
    flaky: bool
    seconds: float
    """Longest time of one trial."""
    reason: str | None = None
    """Why the task is not admitted; None if it is."""
    quality: float | None = None
    checked_at: datetime

    @property
    def admitted(self) -> bool:
        return self.reason is None

    def as_row(self) -> dict[str, Any]:
        """Return an uncommitted row of `admissions`."""
        names = ("task_id", "domain", "gold", "noop", "cheat", "flaky", "quality", "seconds",
                 "admitted", "reason", "checked_at")  # fmt: skip
        return {name: getattr(self, name) for name in names} | {
            "task_digest": self.digests.task,
            "image_digest": self.digests.image,
            "verifier_digest": self.digests.verifier,
        }


@dataclass(frozen=True, slots=True)
class CheckedTask:
    """A task to check, with its domain and digests."""

    domain: Domain
    task: Task
    digests: TaskDigests

    @property
    def key(self) -> Key:
        digests = self.digests
        return self.domain.name, digests.task, digests.image, digests.verifier


async def check_tasks(
    tasks: Iterable[CheckedTask], settings: CheckSettings
) -> AsyncGenerator[TaskCheck]:
    """Yield the check of each task as soon as it is done.

    Tasks are drawn as workers become free. Closing the iterator ends all trials.
    """
    processes = WarmProcesses(settings.workers)
    todo = iter(tasks)
    running: set[asyncio.Task[TaskCheck]] = set()
    try:
        while True:
            while len(running) < settings.workers and (each := next(todo, None)) is not None:
                checker = _Checker(each, settings, processes)
                running.add(asyncio.ensure_future(checker.check()))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for each_done in done:
                yield each_done.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await processes.close()


class _Checker:
    """Checks one task."""

    def __init__(
        self,
        checked: CheckedTask,
        settings: CheckSettings,
        processes: WarmProcesses,
    ) -> None:
        self._checked = checked
        self._settings = settings
        self._processes = processes

    async def check(self) -> TaskCheck:
        """Play all known solutions, and doing nothing, and judge what came of it."""
        domain, task = self._checked.domain, self._checked.task
        try:
            solutions = dict(await asyncio.to_thread(domain.solutions, task))
        except (Exception, SystemExit) as error:  # noqa: BLE001  users write domains
            return self._row({}, problem=f"its solutions are not known: {error_line(error)}")
        actions = {NOOP: None, **solutions}
        found = {name: await self._played(known) for name, known in actions.items()}
        quality, problem = await self._judged(found[NOOP][0].statement)
        return self._row(found, problem=problem, quality=quality)

    async def _played(self, actions: Sequence[str | Action] | None) -> list[Trial]:
        """Play one solution as often as wanted, one after the other."""
        task, domain = self._checked.task, self._checked.domain
        seed = env_seed(0, task.task_id, 0)
        return [
            await play(self._make, task, seed, actions, domain.max_turns)
            for _ in range(self._settings.repeat)
        ]

    def _make(self) -> AsyncEnvironment:
        return open_environment(
            self._checked.domain,
            timeout_s=self._settings.timeout_s,
            source=self._settings.source,
            processes=self._processes,
        )

    async def _judged(self, statement: str) -> tuple[float | None, str | None]:
        """Return (score of the statement, why the task is not admitted for that)."""
        quality, least = self._settings.quality, self._settings.least_quality
        if quality is None:
            return None, None
        try:
            score = await quality(self._checked.task, statement)
        except RewardFailedError as error:
            return None, f"its statement could not be judged: {one_line(error)}"
        return score, None if score >= least else f"its statement has quality {score:g}"

    def _row(
        self,
        found: dict[str, list[Trial]],
        *,
        problem: str | None = None,
        quality: float | None = None,
    ) -> TaskCheck:
        gold, noop = found.get(GOLD), found.get(NOOP, [])
        least = max((trial.reward for trial in noop), default=0.0)
        cheats = {name: trials for name, trials in found.items() if name.startswith(CHEAT)}
        paid = {name: _paid(trials, least) for name, trials in cheats.items()}
        flaky = [name for name, trials in found.items() if not all(map(trials[0].like, trials))]
        failed = gold is not None and not all(trial.solved for trial in gold)
        idle = bool(noop) and not any(trial.solved or trial.error for trial in noop)
        problems = [
            *((_gold_failed(gold),) if gold and failed else ()),
            *(() if idle or not found else (_noop_passed(noop),)),
            *(
                f"{name} got reward {reward:g}"
                for name, reward in paid.items()
                if reward is not None
            ),
            *(f"repetitions of {name} differ" for name in flaky),
            *((problem,) if problem else ()),
        ]
        return TaskCheck(
            task_id=self._checked.task.task_id,
            domain=self._checked.domain.name,
            digests=self._checked.digests,
            gold=None if gold is None else not failed,
            noop=idle,
            cheat=all(reward is None for reward in paid.values()) if paid else None,
            flaky=bool(flaky),
            seconds=max((each.seconds for trials in found.values() for each in trials), default=0),
            quality=quality,
            reason=one_line("; ".join(problems)) if problems else None,
            checked_at=datetime.now(UTC),
        )


def _paid(trials: Sequence[Trial], least: float) -> float | None:
    """Return the reward that a cheat should not have got, or None."""
    paid = [
        trial.reward
        for trial in trials
        if trial.error is None and (trial.solved or trial.reward > max(0.0, least))
    ]
    return max(paid, default=None)


def _gold_failed(trials: Sequence[Trial]) -> str:
    error = next((trial.error for trial in trials if trial.error), None)
    times = sum(not trial.solved for trial in trials)
    return f"gold failed {times} of {counted(len(trials), 'time')}" + (
        f": {error}" if error else ""
    )


def _noop_passed(trials: Sequence[Trial]) -> str:
    error = next((trial.error for trial in trials if trial.error), None)
    return f"doing nothing fails with {error}" if error else "doing nothing solves it"
