"""Tasks are admitted by how often they were solved lately: pools, shares, and what is recorded."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.control.ids import group_cursor
from rollart_flow.control.recovery import recover
from rollart_flow.control.schedule.staleness import StalenessPolicy
from rollart_flow.control.scheduler.curriculum import (
    CandidatePool,
    Curriculum,
    Successes,
    by_difficulty,
)
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.errors import SettingsError
from rollart_flow.types import EventKind, Outcome, Sample, solved_by
from rollart_flow.types import Task as Work
from tests.builders import batch_of, committed, sample
from tests.dst.log import EventLog

NAMES = ("new", "hard", "medium", "easy")


def tasks(start: int = 0) -> Iterator[tuple[Work, int]]:
    """One of each pool in turn, with their cursors."""
    return ((Work(NAMES[cursor % 4], "a"), cursor) for cursor in count(start))


def attempt(task_id: str, number: int, solved: bool | None) -> Sample:
    return replace(sample(task_id, number), task_id=task_id, solved=solved)


def recorded(window: int = 16) -> Successes:
    """Every pool has a task of its name."""
    solved = {"hard": (False,) * 4, "medium": (True, False), "easy": (True,) * 4}
    return Successes(
        window,
        [attempt(name, n, one) for name, ones in solved.items() for n, one in enumerate(ones)],
    )


def admitted(curriculum: Curriculum, seed: int = 0, start: int = 0, number: int = 400) -> list[int]:
    """Cursors of the tasks that are admitted."""
    found = by_difficulty(tasks(start), curriculum, recorded(), seed)
    return [each[1] for each in islice(found, number) if each is not None]


def test_pools_are_made_by_how_often_a_task_was_solved() -> None:
    curriculum, known = Curriculum(), recorded()
    assert {name: curriculum.pool(known.rate(name)) for name in NAMES} == {
        "new": CandidatePool.NEW, "hard": CandidatePool.HARD, "medium": CandidatePool.MEDIUM,
        "easy": CandidatePool.EASY,
    }  # fmt: skip
    assert curriculum.pool(0.2) is curriculum.pool(0.8) is CandidatePool.MEDIUM


def test_of_each_pool_its_share_is_admitted() -> None:
    cursors = admitted(Curriculum(hard=0.5, easy=0.25), number=2750)
    found = Counter(NAMES[cursor % 4] for cursor in cursors)
    passes = (cursors[-1] + 1) / 4
    shares = {name: found[name] / passes for name in NAMES}
    assert shares == pytest.approx({"new": 1, "hard": 0.5, "medium": 1, "easy": 0.25}, abs=0.04)


def test_without_shares_taken_away_every_task_is_admitted() -> None:
    assert admitted(Curriculum(hard=1, easy=1), number=40) == list(range(40))


def test_something_is_admitted_however_few_shares_allow() -> None:
    curriculum = Curriculum(hard=0, easy=0, draws=5)
    only_easy = ((Work("easy", "a"), cursor) for cursor in count())
    found = by_difficulty(only_easy, curriculum, recorded(), seed=0)
    assert [each[1] for each in islice(found, 3) if each is not None] == [4, 9, 14]


@given(seed=st.integers(0, 100), cut=st.integers(0, 60))
@settings(max_examples=20, deadline=None)
def test_a_resumed_run_admits_what_this_one_would_have(seed: int, cut: int) -> None:
    """The last cursor that was admitted and the record are all that it needs."""
    curriculum = Curriculum(hard=0.1, easy=0.05, draws=6)
    straight = admitted(curriculum, seed, number=100)
    resumed = admitted(curriculum, seed, start=straight[cut] + 1, number=99 - cut)
    assert resumed == straight[cut + 1 :]


def test_seeds_choose_differently() -> None:
    assert admitted(Curriculum(), seed=0) != admitted(Curriculum(), seed=1)


def test_only_the_newest_attempts_count_and_each_once() -> None:
    known = Successes(4)
    assert known.rate("t") is None
    for number in range(4):
        for _ in range(3):
            known.note(attempt("t", number, number == 0))
    assert known.rate("t") == 0.25
    known.note(attempt("t", 4, True))
    assert known.rate("t") == 0.25, "the first one is forgotten"


def test_what_failed_or_was_never_scored_says_nothing_about_a_task() -> None:
    known = Successes(4)
    known.note(attempt("t", 0, None))
    known.note(replace(attempt("t", 1, False), outcome=Outcome.FAILED))
    assert known.rate("t") is None
    known.note(replace(attempt("t", 2, True), outcome=Outcome.TRUNCATED))
    assert known.rate("t") == 1.0


def test_an_attempt_is_solved_as_the_environment_says_or_else_by_its_reward() -> None:
    assert solved_by(True, 0.0) is True
    assert solved_by(False, 1.0) is False
    assert (solved_by(None, 1.0), solved_by(None, 0.9), solved_by(None, None)) == (
        True, False, None,
    )  # fmt: skip


async def test_a_scheduler_admits_the_next_task_by_what_was_committed_until_then() -> None:
    """Two tasks in turn; the first is always solved, so that it comes up less and less."""
    log, known = EventLog(), Successes(16)
    curriculum = Curriculum(easy=0.1)
    both = ((Work("solved" if cursor % 2 == 0 else "even", "a"), cursor) for cursor in count())
    scheduler = RolloutScheduler(
        by_difficulty(both, curriculum, known, seed=0),
        RolloutSettings(2, 2),
        StalenessPolicy(0),
        log,
    )
    samples = []
    for index in range(0, 120, 2):
        for number in range(2):
            (assignment,) = await scheduler.admit("source", index + number)
            group_id = assignment.group_id
            change = committed(assignment)
            assert change.committed is not None
            solved = assignment.task.task_id == "solved" or number == 0
            ended = replace(change.committed, task_id=assignment.task.task_id, solved=solved)
            samples.append(ended)
            known.note(ended)
            scheduler.apply(replace(change, committed=ended))
        scheduler.batch_taken(batch_of(index, group_id))
    found = Counter(event.detail["task_id"] for event in log.of(EventKind.ADMIT))
    assert found.total() == 60
    assert 1 <= found["solved"] <= 12
    cursors = [group_cursor(event.subject) for event in log.of(EventKind.ADMIT)]
    assert cursors == sorted(set(cursors))
    # What a new process finds in the tables gives the same rates and goes on behind the last one.
    tables = recover(log.events, samples, {})
    again = Successes(16, tables.scored)
    assert [again.rate(name) for name in ("solved", "even")] == [1.0, 0.5]
    assert tables.next_cursor == cursors[-1] + 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("hard_below", -0.1),
        ("easy_above", 1.5),
        ("hard", True),
        ("easy", "0.5"),
        ("hard", float("nan")),
        ("window", 0),
        ("draws", 2.5),
        ("hard_below", 0.9),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(setting: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{setting}=.*expected") as caught:
        Curriculum(**{setting: value})
    assert "\n" not in str(caught.value)
