"""The calendar of timers: any number of timers comes in order, in any order of setting."""

import asyncio
from random import Random

import pytest

from rollart_flow.simulation import VirtualTimeLoop, run
from rollart_flow.simulation.loop.calendar import Calendar


async def test_any_timers_fire_in_the_order_of_time_and_then_of_setting() -> None:
    loop = asyncio.get_running_loop()
    chance = Random(0)
    calendar = Calendar()
    fired: list[tuple[float, int]] = []
    expected: list[tuple[float, int]] = []
    for number in range(2_000):
        when = chance.choice((chance.uniform(0, 100), float(chance.randrange(100))))
        expected.append((when, number))
        calendar.add(when, asyncio.TimerHandle(when, fired.append, (expected[-1],), loop))
    for timer in drained(calendar):
        timer._run()
    assert fired == sorted(expected)
    assert len(calendar) == 0


def drained(calendar: Calendar) -> list[asyncio.TimerHandle]:
    timers: list[asyncio.TimerHandle] = []
    while (when := calendar.next()) is not None:
        taken = calendar.take(when)
        assert all(timer.when() == when for timer in taken)
        timers += taken
    return timers


@pytest.mark.parametrize("seed", range(5))
def test_timers_that_are_set_while_others_fire_take_their_place(seed: int) -> None:
    """Also on the page of the present, and at the present moment itself."""
    fired: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        chance = Random(seed)

        def fire(left: int) -> None:
            fired.append(loop.time())
            for _ in range(2 if left else 0):
                loop.call_later(chance.choice((0.0, 1e-4, 0.01, 0.5, 40.0)), fire, left - 1)

        loop.call_soon(fire, 8)
        await asyncio.sleep(1_000)

    run(main())
    assert len(fired) == 2**9 - 1
    assert fired == sorted(fired)


def test_sleeps_that_ended_are_not_taken_for_cancelled_timers() -> None:
    """A sleep cancels its timer after it has fired."""

    async def main() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        kept = [loop.call_later(3_600 + i, print) for i in range(1_000)]
        for timer in kept[:400]:
            timer.cancel()
        for _ in range(1_000):
            await asyncio.sleep(0.1)
        held = loop.timers
        for timer in kept[400:]:
            timer.cancel()
        return held, loop.timers

    held, left = run(main())
    assert held == 1_000  # 400 cancelled ones are fewer than half: nothing was looked through
    assert left < 500
