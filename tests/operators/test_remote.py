"""Clients of the actors of a run, over an actor that answers when it is told to."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from rollart_flow.operators.remote import EventSender
from rollart_flow.types import Event, EventKind
from tests.logged import Logged


class Buffer:
    """Notes the subjects of events, and lets `received` return once `arrived` is set."""

    def __init__(self) -> None:
        self.subjects: list[str] = []
        self.arrived = asyncio.Event()
        self.call = self.report = self.received = self

    def start(self, events: Sequence[tuple[datetime, Event]]) -> None:
        self.subjects += [event.subject for _, event in events]

    async def aio(self) -> None:
        await self.arrived.wait()


async def test_everyone_who_asks_waits_until_the_events_before_have_arrived() -> None:
    buffer = Buffer()
    sender = EventSender(cast(Any, buffer))
    sender.emit(Event(EventKind.ADMIT, "g00000000"))
    waits = [asyncio.create_task(sender.received()) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert buffer.subjects == ["g00000000"]
    assert not any(wait.done() for wait in waits)
    buffer.arrived.set()
    await asyncio.gather(*waits)


async def test_a_process_that_died_is_an_error_in_the_log_and_others_are_not(
    logged: Logged,
) -> None:
    sender = EventSender(cast(Any, Buffer()))
    sender.emit(Event(EventKind.ADMIT, "g00000000"))
    sender.emit(Event(EventKind.CRASH, "engine-0", detail={"error": "killed by SIGKILL"}))
    await asyncio.sleep(0)
    (record,) = logged.records
    assert (record.levelname, record.getMessage()) == ("ERROR", "engine-0 died: killed by SIGKILL")
