"""Known solutions in real processes: which tasks are admitted, and why the others are not."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice

import pytest

from rollart_flow.checking.sources import once
from rollart_flow.checking.task_checks import (
    CheckedTask,
    CheckSettings,
    Quality,
    TaskCheck,
    check_tasks,
)
from rollart_flow.checking.trials import play
from rollart_flow.control.environment import AsyncEnvironment
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.arithmetic import Arithmetic
from rollart_flow.errors import RewardFailedError
from rollart_flow.types import Split, Task
from tests.checking.doors import KINDS, Doors


def checked(*names: str, quality: Quality | None = None) -> dict[str, TaskCheck]:
    domain = Doors(only=names)
    found = islice(domain.tasks(Split.TRAIN, 0), len(names or KINDS))
    tasks = [CheckedTask(domain, task, domain.digests(task)) for task in found]

    async def check_all() -> list[TaskCheck]:
        settings = CheckSettings(workers=2, quality=quality)
        return [check async for check in check_tasks(tasks, settings)]

    return {check.task_id: check for check in asyncio.run(check_all())}


def test_only_a_task_whose_solutions_all_end_as_they_should_is_admitted() -> None:
    found = checked()
    assert {name: (each.gold, each.noop, each.cheat, each.admitted) for name, each in found.items()}
    assert {name for name, each in found.items() if each.admitted} == {"also", "good"}
    said = {name: each.reason for name, each in found.items()}
    assert said["leak"] == "cheat:crowbar got reward 1"
    assert said["open"] == "doing nothing solves it"
    assert said["wrong"] == "gold failed 2 of 2 times"
    stuck = said["stuck"] or ""
    assert "gold failed 2 of 2 times: Door.step: RuntimeError: the door is stuck" in stuck
    assert (found["leak"].gold, found["leak"].noop, found["leak"].cheat) == (True, True, False)
    assert all(each.seconds > 0 for each in found.values())
    assert datetime.now(UTC) > found["good"].checked_at
    row = found["good"].as_row()
    assert (row["task_digest"], row["verifier_digest"]) == ("good", "door/1")


def test_repetitions_that_end_otherwise_are_flaky() -> None:
    (check,) = checked("flaky").values()
    assert check.flaky
    assert not check.admitted
    assert "repetitions of gold differ" in (check.reason or "")


def test_a_judge_of_statements_refuses_what_it_does_not_understand() -> None:
    shown = []

    async def quality(task: Task, statement: str) -> float:
        shown.append(statement)
        if task.task_id == "also":
            raise RewardFailedError("the judge is away")
        return 0.25 if task.task_id == "leak" else 0.75

    found = checked("good", "also", "leak", quality=quality)
    assert set(shown) == {"a good door", "a leak door"}
    assert (found["good"].quality, found["good"].reason) == (0.75, None)
    assert found["also"].reason == "its statement could not be judged: the judge is away"
    assert "its statement has quality 0.25" in (found["leak"].reason or "")


def test_a_domain_without_solutions_is_checked_by_doing_nothing() -> None:
    domain = Arithmetic(digits=2)
    task = next(iter(domain.tasks(Split.TRAIN, 0)))

    async def check() -> TaskCheck:
        tasks = [CheckedTask(domain, task, domain.digests(task))]
        (found,) = [each async for each in check_tasks(tasks, CheckSettings())]
        return found

    found = asyncio.run(check())
    assert (found.gold, found.noop, found.cheat, found.admitted) == (None, True, None, True)


def test_a_trial_ends_with_the_time_limit_of_its_calls() -> None:
    domain = Doors()

    def make() -> AsyncEnvironment:
        return open_environment(domain, timeout_s=30.0)

    good = Task("good", "doors", '{"kind": "good"}')
    trial = asyncio.run(play(make, good, 0, ["key", "more"], max_turns=2))
    assert (trial.solved, trial.reward, trial.error) == (True, 1.0, None)
    assert trial.report is not None
    assert trial.report.diff == "+key"
    broken = asyncio.run(play(make, Task("x", "doors", "no JSON"), 0, None, max_turns=2))
    assert not broken.solved
    assert "JSONDecodeError" in (broken.error or "")


@pytest.mark.parametrize("given", [[], ["a"], ["a", "b", "a", "b", "a", "b", "a", "b", "a"]])
def test_an_endless_source_gives_each_task_once(given: list[str]) -> None:
    def endless(names: Iterable[str]) -> Iterable[Task]:
        while names:
            yield from (Task(name, "d") for name in names)

    assert [each.task_id for each in once(endless(given))] == sorted(set(given))
