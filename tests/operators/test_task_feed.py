"""Tasks are drawn in a thread: in order, some ahead, and no wait for a source that hangs."""

import asyncio
import threading
from collections.abc import Iterator
from itertools import count, islice

import pytest

from rollart_flow.errors import RunFailedError
from rollart_flow.operators.task_feed import AHEAD, TaskFeed
from rollart_flow.types import Task


def tasks(drawn: list[int] | None = None) -> Iterator[Task]:
    for number in count():
        if drawn is not None:
            drawn.append(number)
        yield Task(f"t-{number}", "d")


async def taken(source: Iterator[Task], number: int, cursor: int = 0) -> list[tuple[Task, int]]:
    """The first tasks of a feed, however often it has none yet."""
    arrived = asyncio.Event()
    feed = TaskFeed(source, cursor, arrived.set)
    found: list[tuple[Task, int]] = []
    while len(found) < number:
        if (task := next(feed)) is not None:
            found.append(task)
        else:
            await arrived.wait()
            arrived.clear()
    feed.close()
    return found


async def test_tasks_come_in_order_from_a_cursor_on() -> None:
    found = await taken(tasks(), 2 * AHEAD, cursor=7)
    assert found == [(Task(f"t-{n}", "d"), n) for n in range(7, 7 + 2 * AHEAD)]


async def test_no_more_are_drawn_ahead_than_allowed() -> None:
    drawn: list[int] = []
    await taken(tasks(drawn), 1)
    assert len(drawn) <= AHEAD + 2


async def test_a_source_that_hangs_gives_no_task_and_holds_nobody() -> None:
    released = threading.Event()

    def hanging() -> Iterator[Task]:
        yield from islice(tasks(), 3)
        released.wait()
        yield Task("late", "d")

    arrived = asyncio.Event()
    feed = TaskFeed(hanging(), 0, arrived.set)
    found: list[str] = []
    while len(found) < 3:
        if (task := next(feed)) is not None:
            found.append(task[0].task_id)
        else:
            await arrived.wait()
            arrived.clear()
    assert next(feed) is None
    released.set()
    await arrived.wait()
    assert next(feed) == (Task("late", "d"), 3)
    feed.close()


async def test_the_end_and_errors_of_a_source_come_after_its_tasks() -> None:
    def broken(error: BaseException) -> Iterator[Task]:
        yield Task("only", "d")
        raise error

    with pytest.raises(RunFailedError, match="the tasks raised SystemExit: 3"):
        await taken(broken(SystemExit(3)), 2)
    with pytest.raises(RunFailedError, match="the tasks raised ValueError: no more"):
        await taken(broken(ValueError("no more")), 2)
    feed = TaskFeed(iter(()), 0, lambda: None)
    feed._thread.join()
    with pytest.raises(StopIteration):
        next(feed)
