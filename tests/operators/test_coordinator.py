"""The coordinator: what the buffer knows before an attempt may generate."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import rollart, rollart_plus
from rollart_flow.operators.coordinator import CoordinatorActor
from rollart_flow.types import Event, EventKind

HOST, ATTEMPT, GROUP = "tasks-0", "g00000000-00", "g00000000"


class Buffer:
    """Gets events, and confirms them once `arrived` is set."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.call = self.report = self.received = self

    def start(self, events: Any) -> None:
        pass

    async def aio(self) -> None:
        await self.arrived.wait()


class Scheduler:
    """Admits the group that was opened ahead, as its attempt asks or is announced."""

    def __init__(self, emit: Any) -> None:
        self._emit = emit

    async def permit(self, trajectory_id: str, worker: str) -> None:
        self._emit(Event(EventKind.ADMIT, GROUP))

    async def announce(self, worker: str, running: Any) -> tuple[int, tuple[()]]:
        self._emit(Event(EventKind.ADMIT, GROUP))
        return 0, ()


def coordinator(schedule: Schedule, buffer: Buffer) -> CoordinatorActor:
    settings = SimpleNamespace(steps=1, evaluate_every=None, schedule=schedule)
    engines = SimpleNamespace(workers=[])
    actor = CoordinatorActor(cast("Any", settings), cast("Any", buffer), cast("Any", engines))
    scheduler = Scheduler(actor._run.events.emit)
    actor._plane = cast("Any", SimpleNamespace(scheduler=scheduler))
    return actor


@pytest.mark.parametrize("asks", ["permit", "announce"])
async def test_attempts_of_a_group_opened_ahead_start_once_the_buffer_knows_its_admission(
    asks: str,
) -> None:
    buffer = Buffer()
    actor = coordinator(rollart_plus(1), buffer)
    said: Any = actor.permit(HOST, [ATTEMPT], []) if asks == "permit" else actor.announce(HOST, [])
    call = asyncio.create_task(said)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not call.done()
    buffer.arrived.set()
    assert await call == ([None] if asks == "permit" else (0, ()))


async def test_nobody_waits_where_groups_are_admitted_before_their_attempts_start() -> None:
    actor = coordinator(rollart(1), Buffer())
    assert await actor.permit(HOST, [ATTEMPT], []) == [None]
