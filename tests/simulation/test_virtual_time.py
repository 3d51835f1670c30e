"""The virtual-time loop: the clock jumps, seeds repeat, and a deadlock names its waits."""

import asyncio
import random
import time
from random import Random

import pytest

from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.errors import DeadlockError
from rollart_flow.simulation import VirtualTimeLoop, run
from rollart_flow.simulation.pytest_plugin import VirtualTime
from rollart_flow.simulation.virtual_time import Calendar


def test_the_clock_jumps_to_the_next_timer() -> None:
    async def a_year() -> float:
        await asyncio.sleep(365 * 86_400)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert run(a_year()) == 365 * 86_400
    assert time.monotonic() - started < 5


def test_the_fixture_runs_waiting_code_at_once(virtual_time: VirtualTime) -> None:
    async def drawn_after_an_hour() -> float:
        await asyncio.sleep(3600)
        return random.random()

    assert virtual_time(drawn_after_an_hour(), seed=3) == random.Random(3).random()
    with pytest.raises(DeadlockError, match="the key"):
        virtual_time(_waits_for_ever("the key"))


async def _waits_for_ever(name: str) -> None:
    with waiting(name):
        await asyncio.Event().wait()


def test_small_steps_still_pass_far_from_zero() -> None:
    async def main() -> float:
        await asyncio.sleep(1e9)
        for _ in range(10):
            await asyncio.sleep(1e-8)
        await asyncio.sleep(0.5)
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(1e9 + 0.5, abs=1e-5)


def test_timers_fire_in_order_of_their_time() -> None:
    order: list[str] = []

    async def after(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    async def main() -> None:
        await asyncio.gather(after(3, "c"), after(1, "a"), after(2, "b"))

    run(main())
    assert order == ["a", "b", "c"]


def test_timers_of_one_moment_fire_in_the_order_in_which_they_were_set() -> None:
    order: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers = [loop.call_at(5, order.append, i) for i in range(50)]
        for timer in timers[1::2]:
            timer.cancel()
        await asyncio.sleep(6)

    run(main())
    assert order == list(range(0, 50, 2))


def test_cancelled_timers_neither_pile_up_nor_move_the_clock() -> None:
    async def main() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        for _ in range(10_000):
            loop.call_later(3600, print).cancel()
        await asyncio.sleep(1)
        return loop.time(), loop.timers

    ended, held = run(main())
    assert ended == 1
    assert held < 500


def test_timeouts_work_at_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(main()) == 60


def test_a_deadlock_names_the_waits() -> None:
    async def waits_for(name: str) -> None:
        with waiting(name):
            await Signal().wait()

    async def main() -> None:
        await asyncio.sleep(2)
        await asyncio.gather(waits_for("get_batch(step=3)"), waits_for("admit(source, 7)"))

    with pytest.raises(DeadlockError, match=r"get_batch\(step=3\) .*; admit\(source, 7\)"):
        run(main())


def test_a_deadlock_without_named_waits_names_the_tasks() -> None:
    async def main() -> None:
        await asyncio.create_task(asyncio.Event().wait(), name="the stuck one")

    with pytest.raises(DeadlockError, match="the stuck one"):
        run(main())


def test_tasks_are_cancelled_and_finish_after_a_deadlock() -> None:
    finished: list[bool] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            finished.append(True)

    with pytest.raises(DeadlockError):
        run(main())
    assert finished == [True]


def test_the_seed_decides_random_numbers_and_the_state_is_restored() -> None:
    async def draw() -> float:
        return random.random()

    random.seed(7)
    first = random.random()
    random.seed(7)
    assert run(draw(), seed=1) == run(draw(), seed=1)
    assert run(draw(), seed=1) != run(draw(), seed=2)
    assert random.random() == first


def _order_of_ten(seed: int, *, shuffle: bool) -> tuple[int, ...]:
    order: list[int] = []

    async def note(i: int) -> None:
        order.append(i)

    async def main() -> None:
        await asyncio.gather(*(note(i) for i in range(10)))

    run(main(), seed=seed, shuffle=shuffle)
    return tuple(order)


def test_shuffling_explores_schedules_and_a_seed_repeats_one() -> None:
    orders = {_order_of_ten(seed, shuffle=True) for seed in range(20)}
    assert len(orders) > 15
    assert _order_of_ten(3, shuffle=True) == _order_of_ten(3, shuffle=True)
    assert all(sorted(order) == list(range(10)) for order in orders)


def test_without_shuffling_asyncios_order_stands() -> None:
    assert _order_of_ten(3, shuffle=False) == tuple(range(10))


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(time.monotonic)

    with pytest.raises(RuntimeError, match="no threads under virtual time"):
        run(main())


def test_errors_of_the_main_coroutine_come_out() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise ValueError("as it was raised")

    with pytest.raises(ValueError, match="as it was raised"):
        run(main())


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
    """Also at the present moment itself."""
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
