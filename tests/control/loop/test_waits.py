"""Every wait has a name, and a stall is reported with all of them."""

import asyncio
import gc
import weakref

import pytest

from rollart_flow.control.loop.waits import Signal, Wait, Watchdog, listing, waiting
from rollart_flow.errors import SettingsError
from rollart_flow.types import EventKind
from tests.dst.log import EventLog


async def test_waits_are_listed_the_longest_first() -> None:
    signal = Signal()

    async def wait(name: str) -> None:
        with waiting(name):
            await signal.wait()

    first = asyncio.create_task(wait("first"))
    await asyncio.sleep(5)
    second = asyncio.create_task(wait("second"))
    await asyncio.sleep(1)
    assert listing() == (Wait("first", 0.0), Wait("second", 5.0))
    signal.notify()
    await asyncio.gather(first, second)
    assert listing() == ()


async def test_a_wait_that_raises_is_over() -> None:
    with pytest.raises(TimeoutError), waiting("for nothing"):
        async with asyncio.timeout(1):
            await asyncio.Event().wait()
    assert listing() == ()


def test_a_closed_loop_is_freed() -> None:
    async def wait() -> None:
        watchdog = Watchdog(EventLog(), stall_s=30)
        with waiting("a turn"):
            await asyncio.sleep(0)
        watchdog.close()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait())
    loop.close()
    alive = weakref.ref(loop)
    del loop
    gc.collect()
    assert alive() is None


async def test_a_signal_wakes_those_who_wait_and_remembers_nothing() -> None:
    signal = Signal()
    signal.notify()
    waiter = asyncio.create_task(signal.wait())
    await asyncio.sleep(1)
    assert not waiter.done()
    signal.notify()
    await waiter


async def test_a_stall_is_one_event_that_says_who_waits_for_what() -> None:
    log = EventLog()
    watchdog = Watchdog(log, stall_s=30)
    signal = Signal()

    async def wait() -> None:
        with waiting("get_batch(step=3)"):
            await signal.wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(300)
    (stall,) = log.of(EventKind.STALL)
    assert stall.subject == "get_batch(step=3)"
    assert stall.detail["idle_s"] == 30.0
    assert stall.detail["longest"] == [{"name": "get_batch(step=3)", "waited_s": 30.0}]
    signal.notify()
    await task
    watchdog.close()


async def test_progress_keeps_the_watchdog_quiet_and_a_second_stall_is_reported_again() -> None:
    log = EventLog()
    watchdog = Watchdog(log, stall_s=30)

    async def forever() -> None:
        with waiting("the hung one"):
            await asyncio.Event().wait()

    hung = asyncio.create_task(forever())
    for _ in range(10):
        with waiting("progress"):
            await asyncio.sleep(20)
    assert log.events == []
    await asyncio.sleep(100)
    with waiting("progress"):
        await asyncio.sleep(1)
    await asyncio.sleep(100)
    assert len(log.of(EventKind.STALL)) == 2
    watchdog.close()
    hung.cancel()


async def test_an_idle_loop_is_no_stall() -> None:
    log = EventLog()
    watchdog = Watchdog(log, stall_s=1)
    await asyncio.sleep(100)
    assert log.events == []
    watchdog.close()


async def test_a_stall_limit_of_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="stall_s is 0"):
        Watchdog(EventLog(), stall_s=0)
