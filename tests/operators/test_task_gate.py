"""Tasks that no check has admitted are passed over, with an event, and keep their numbers."""

from collections.abc import Iterator, Mapping
from itertools import count, islice
from typing import Any

import pytest

from rollart_flow.errors import RunFailedError
from rollart_flow.operators.task_feed import TaskFeed
from rollart_flow.operators.task_gate import TaskGate
from rollart_flow.types import Event, EventKind, Split, Task
from rollart_flow.types.verdicts import Admitted
from tests.checking.doors import Doors


def row(name: str, *, admitted: bool = True) -> dict[str, Any]:
    return {
        "domain": "doors",
        "task_digest": name,
        "image_digest": "",
        "verifier_digest": "door/1",
        "admitted": admitted,
        "reason": None if admitted else f"{name} is broken",
    }


def passed(
    domain: Doors, admitted: Admitted | None, *rows: Mapping[str, Any], number: int = 4
) -> tuple[list[tuple[str, int]], list[Event]]:
    """(ids and numbers of the first tasks that pass, events)."""
    events: list[Event] = []
    gate = TaskGate([domain], admitted, lambda: rows, events.append)
    tasks: Iterator[tuple[Task, int]] = zip(domain.tasks(Split.TRAIN, 0), count(), strict=False)
    return [(task.task_id, place) for task, place in islice(gate.admitted(tasks), number)], events


ALL = Doors(only=("a", "b", "c"))


def test_a_domain_that_needs_admission_gives_admitted_tasks_only() -> None:
    found, events = passed(ALL, None, row("a"), row("b", admitted=False))
    assert found == [("a", 0), ("a", 3), ("a", 6), ("a", 9)]
    (event,) = events
    assert (event.kind, event.subject, event.domain) == (EventKind.REFUSE, "tasks", "doors")
    assert event.detail == {"tasks": 2, "before": 3, "first": "b", "why": "b is broken"}


def test_a_task_that_was_not_checked_passes_if_only_known_ones_are_refused() -> None:
    rows = (row("a"), row("b", admitted=False))
    assert passed(ALL, "known", *rows)[0] == [("a", 0), ("c", 2), ("a", 3), ("c", 5)]
    careless = Doors(only=("a", "b", "c"), needs_admission=False)
    assert passed(careless, None, *rows)[0] == [("a", 0), ("c", 2), ("a", 3), ("c", 5)]
    assert passed(careless, None) == ([("a", 0), ("b", 1), ("c", 2), ("a", 3)], [])


def test_any_task_passes_if_nothing_is_asked_for() -> None:
    found, events = passed(ALL, "any", row("a", admitted=False))
    assert found == [("a", 0), ("b", 1), ("c", 2), ("a", 3)]
    assert not events


def test_a_stream_without_an_admitted_task_ends_the_run_in_one_line() -> None:
    with pytest.raises(RunFailedError, match=r"none of 10000 tasks .* such as a: `rollart tasks"):
        passed(ALL, "required", row("z"))


async def test_the_feed_keeps_the_numbers_of_the_stream() -> None:
    gate = TaskGate([ALL], None, lambda: [row("b")], lambda _: None)
    feed = TaskFeed(ALL.tasks(Split.TRAIN, 0), 2, lambda: None, gate)
    with feed._changed:
        feed._changed.wait_for(lambda: len(feed._ready) > 1)
    assert [next(feed), next(feed)] == [
        (Task("b", "doors", '{"kind": "b"}'), 4), (Task("b", "doors", '{"kind": "b"}'), 7),
    ]  # fmt: skip
    feed.close()
