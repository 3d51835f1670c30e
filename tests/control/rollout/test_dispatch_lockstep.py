"""Lockstep: a barrier before each turn, one at the end, or both."""

import asyncio

from rollart_flow.control.rollout.dispatch import Lockstep


async def attempt(
    lockstep: Lockstep, log: list[tuple[float, str]], name: str, *turns: float
) -> str:
    """Takes turns of so many seconds each."""
    loop = asyncio.get_running_loop()
    for turn_s in turns:
        await lockstep.turn()
        log.append((loop.time(), name))
        await asyncio.sleep(turn_s)
    return name


async def test_turns_begin_together_and_attempts_leave_together() -> None:
    lockstep = Lockstep()
    log: list[tuple[float, str]] = []
    left: dict[str, float] = {}

    async def run(name: str, *turns: float) -> None:
        await lockstep.run(attempt(lockstep, log, name, *turns))
        left[name] = asyncio.get_running_loop().time()

    await asyncio.gather(run("fast", 1, 1), run("slow", 5, 2), run("long", 1, 1, 1))
    assert sorted(log) == sorted(
        [(0.0, name) for name in ("fast", "slow", "long")]
        + [(5.0, name) for name in ("fast", "slow", "long")]
        + [(7.0, "long")]
    )
    assert left == dict.fromkeys(("fast", "slow", "long"), 8.0)


async def test_with_the_ends_alone_turns_are_free_and_attempts_leave_together() -> None:
    lockstep = Lockstep(turns=False)
    log: list[tuple[float, str]] = []
    left: dict[str, float] = {}

    async def run(name: str, *turns: float) -> None:
        await lockstep.run(attempt(lockstep, log, name, *turns))
        left[name] = asyncio.get_running_loop().time()

    await asyncio.gather(run("fast", 1, 1), run("slow", 5, 2))
    assert sorted(log) == [(0.0, "fast"), (0.0, "slow"), (1.0, "fast"), (5.0, "slow")]
    assert left == {"fast": 7.0, "slow": 7.0}


async def test_with_the_turns_alone_attempts_leave_by_themselves() -> None:
    lockstep = Lockstep(ends=False)
    log: list[tuple[float, str]] = []
    left: dict[str, float] = {}

    async def run(name: str, *turns: float) -> None:
        await lockstep.run(attempt(lockstep, log, name, *turns))
        left[name] = asyncio.get_running_loop().time()

    await asyncio.gather(run("fast", 1), run("slow", 5, 2))
    assert log[-1] == (5.0, "slow")
    assert left == {"fast": 1.0, "slow": 7.0}


async def test_one_that_fails_or_is_cancelled_holds_up_nobody() -> None:
    lockstep = Lockstep()
    log: list[tuple[float, str]] = []

    async def failing() -> None:
        await asyncio.sleep(1)
        raise ValueError

    stuck = asyncio.create_task(lockstep.run(attempt(lockstep, log, "stuck", 1, 1)))
    fails = asyncio.create_task(lockstep.run(failing()))
    await asyncio.sleep(0)
    waits = asyncio.create_task(lockstep.run(attempt(lockstep, log, "waits", 1)))
    await asyncio.sleep(0.5)
    assert log == []
    stuck.cancel()
    done, _ = await asyncio.wait((stuck, fails, waits))
    assert stuck.cancelled()
    assert isinstance(fails.exception(), ValueError)
    assert waits.result() == "waits"
    assert log == [(1.0, "waits")]
    assert len(done) == 3


async def test_the_next_wave_starts_afresh() -> None:
    lockstep = Lockstep()
    log: list[tuple[float, str]] = []
    for _ in range(2):
        await asyncio.gather(
            *(lockstep.run(attempt(lockstep, log, name, 1)) for name in ("a", "b"))
        )
    assert sorted(log) == [(0.0, "a"), (0.0, "b"), (1.0, "a"), (1.0, "b")]
