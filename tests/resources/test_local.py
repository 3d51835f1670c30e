"""Actors of this process: one thread for each object, the same handles as actors of Ray."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from rollart_flow.errors import StoreError
from rollart_flow.resources import Placement, Remote, TypedCluster, Worker, local, register
from rollart_flow.resources.local import LocalActor, LoopThread, early
from tests.logged import Logged


class Counter:
    """Shares the loop."""

    def __init__(self, first: int) -> None:
        if first < 0:
            raise StoreError("nothing to count")
        self.value = first
        self.thread = threading.current_thread()
        self.ended = False

    @register("rank_zero")
    async def add(self, number: int) -> int:
        """Add a number."""
        assert threading.current_thread() is self.thread
        await asyncio.sleep(0)
        self.value += number
        return self.value

    @register("rank_zero")
    async def refuse(self) -> None:
        """Raise an error."""
        raise StoreError("the disk is full")

    @register("rank_zero")
    async def relay(self, other: Remote["Counter"]) -> int:
        """Call another actor of the same loop."""
        return await other.call.add.aio(1) + await other.call.add.start(1)

    async def end(self) -> None:
        self.ended = True


class Blocking(Worker):
    """Has a thread of its own."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self.thread = threading.current_thread()

    @register()
    def rank(self, plus: int) -> int:
        """Its rank, and a number."""
        assert threading.current_thread() is self.thread
        return self.placement.rank + plus


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


def counter(loop: LoopThread, first: int = 0) -> Remote[Counter]:
    return Remote(LocalActor(loop, partial(Counter, first)))


def test_calls_wait_are_awaited_or_return_a_reference(loop: LoopThread) -> None:
    one, other = counter(loop), counter(loop, 10)
    assert one.call.add(2) == 2
    started: Any = one.call.add.start(3)
    assert started.result() == 5
    assert early(started) == 5
    assert early(Future()) is None, "there is no result yet"
    assert one.call.relay(other) == 11 + 12
    with pytest.raises(StoreError, match="the disk is full"):
        one.call.refuse()
    refused: Any = one.call.refuse.start()
    assert isinstance(refused.exception(), StoreError)
    assert early(refused) is None
    with pytest.raises(AttributeError):
        one.call.subtract(1)  # type: ignore[attr-defined]


def test_an_object_that_cannot_be_made_fails_in_every_call(loop: LoopThread) -> None:
    broken = counter(loop, -1)
    for _ in range(2):
        with pytest.raises(StoreError, match="nothing to count"):
            broken.call.add(1)
    broken.kill()


def test_an_object_releases_what_it_holds_when_it_is_killed(loop: LoopThread) -> None:
    actor = counter(loop)
    made = actor.actor._made.result()
    assert not made.ended
    actor.kill()
    assert made.ended


def test_a_cluster_of_blocking_workers_has_a_thread_for_each(loop: LoopThread) -> None:
    def spawn(kind: type[Worker], placement: Placement, arguments: Any) -> LocalActor:
        return LocalActor(loop, partial(kind, placement, **arguments))

    placements = [Placement(name, "blocking", "CPU") for name in ("a", "b")]
    cluster = TypedCluster(placements, Blocking, spawn=spawn)
    assert cluster.call.rank(5) == [5, 6]
    assert loop.start(cluster.call.rank.aio(1)).result() == [1, 2]
    assert len(set(cluster.wait_until_ready())) == 1
    cluster.shutdown()


def test_a_loop_that_is_busy_while_it_is_closed_ends_its_tasks_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No task is left pending and no coroutine unawaited; either would be a warning."""
    monkeypatch.setattr(local, "_CLOSE_S", 0.05)
    thread, free = LoopThread(), threading.Event()
    begun: set[asyncio.Future[None]] = set()

    async def block() -> None:
        free.wait()

    async def begins_another_as_it_ends() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            begun.add(asyncio.ensure_future(last()))

    async def last() -> None:
        await asyncio.Event().wait()

    waiting = thread.start(begins_another_as_it_ends())
    blocked = thread.start(block())
    late = thread.start(last())
    thread.close()
    assert not blocked.done()
    free.set()
    thread._thread.join()
    assert begun
    assert all(task.cancelled() for task in begun)
    assert thread._loop.is_closed()
    assert waiting.cancelled()
    assert late.cancelled()
    thread.close()


def test_tasks_that_end_one_after_the_other_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_CLOSE_S", 0.2)
    thread, ended = LoopThread(), list[int]()

    async def end_after(before: asyncio.Future[None] | None, number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if before is not None:
                await asyncio.wait([before])
            await asyncio.sleep(0.1)
            ended.append(number)

    async def begin() -> None:
        before: asyncio.Future[None] | None = None
        for number in range(6):
            before = asyncio.ensure_future(end_after(before, number))
            begun.append(before)
        await asyncio.sleep(0)

    begun: list[asyncio.Future[None]] = []
    local.wait(thread.start(begin()), "begin")
    thread.close()
    thread._thread.join()
    assert ended == [*range(6)]


def test_a_task_that_does_not_end_is_abandoned_and_asyncio_does_not_complain(
    monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    monkeypatch.setattr(local, "_CLOSE_S", 0.05)
    thread, cancelled = LoopThread(), threading.Event()

    async def hang() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()

    async def begin() -> None:
        running.append(asyncio.ensure_future(hang()))
        await asyncio.sleep(0)

    running: list[asyncio.Future[None]] = []
    local.wait(thread.start(begin()), "begin")
    thread.close()
    thread._thread.join()
    assert cancelled.is_set()
    assert not running.pop().done()
    gc.collect()
    assert not logged.records
