"""The pool of boxes under virtual time: supply, leases, failures, cancellations."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from rollart_flow.errors import SandboxError, SettingsError, TaskQuarantinedError
from rollart_flow.sandbox.base import KilledBy, SandboxLimits, SandboxSnapshot, SandboxSpec
from rollart_flow.simulation.virtual_time import run
from tests.sandbox.boxes_in_memory import START_S, MemoryBox, Pooled, user

SPEC = SandboxSpec()
OTHER = SandboxSpec(workdir="/other")


def play(test: Callable[[Pooled], Awaitable[None]], **settings: object) -> Pooled:
    """Run a test with a pool, close the pool, and check that nothing of a box is left."""

    async def body() -> Pooled:
        pooled = Pooled(**{"holder_s": 1e9, **settings})
        try:
            await test(pooled)
        finally:
            await pooled.close()
        return pooled

    return run(body())


async def seconds(work: Awaitable[Any]) -> float:
    began = asyncio.get_running_loop().time()
    await work
    return asyncio.get_running_loop().time() - began


def test_a_box_of_an_expected_attempt_is_ready_when_it_asks() -> None:
    async def test(p: Pooled) -> None:
        p.pool.expect(user(), SPEC)
        await asyncio.sleep(START_S)
        assert await seconds(p.pool.open(user(), 1, SPEC)) < 0.1
        assert len(p.factory.made) == 1

    (record,) = play(test).records
    assert record.prewarmed
    assert record.wait_s == pytest.approx(0.01)
    assert record.ready_at is not None
    assert record.ready_at - record.created_at == timedelta(seconds=START_S)


def test_an_attempt_that_nobody_expected_waits_for_the_start_of_its_box() -> None:
    async def test(p: Pooled) -> None:
        assert await seconds(p.pool.open(user(), 1, SPEC)) == pytest.approx(START_S + 0.01)

    (record,) = play(test).records
    assert not record.prewarmed
    assert (record.trajectory_id, record.task_id, record.domain) == ("t0", "task", "domain")


def test_attempts_of_a_group_share_warm_boxes_of_one_key() -> None:
    async def test(p: Pooled) -> None:
        for number in range(4):
            p.pool.expect(user(number), SPEC)
            p.pool.expect(user(number), SPEC)
        await asyncio.sleep(2 * START_S)
        assert len(p.factory.made) == 4
        for number in reversed(range(4)):
            await p.pool.open(user(number), 1, replace(SPEC))
        assert len(p.factory.made) == 4
        await p.pool.open(user(5), 1, OTHER)
        await p.pool.open(user(6), 1, SPEC, SandboxSnapshot(SPEC, b"files"))
        assert len(p.factory.made) == 6

    assert len({record.environment_key for record in play(test).records}) == 3


def test_a_box_that_no_attempt_takes_ends_after_a_while() -> None:
    async def test(p: Pooled) -> None:
        p.pool.expect(user(), SPEC)
        await asyncio.sleep(START_S + 1)
        p.pool.release("s0")
        await asyncio.sleep(9)
        assert len(p.pool) == 1
        await asyncio.sleep(2)
        assert len(p.pool) == 0

    (record,) = play(test, idle_s=10.0).records
    assert (record.trajectory_id, record.wait_s, record.killed_by) == (None, None, "")


def test_a_surplus_box_serves_the_next_attempt_instead() -> None:
    async def test(p: Pooled) -> None:
        p.pool.expect(user(), SPEC)
        await asyncio.sleep(START_S)
        p.pool.release("s0")
        assert await seconds(p.pool.open(user(1), 1, SPEC)) < 0.1

    assert len(play(test).records) == 1


def test_the_pool_shrinks_to_its_minimum_only() -> None:
    async def test(p: Pooled) -> None:
        for number in range(5):
            p.pool.expect(user(number), SPEC)
        await asyncio.sleep(3)
        for number in range(5):
            p.pool.release(f"s{number}")
        await asyncio.sleep(1000)
        assert len(p.pool) == 2

    play(test, minimum=2, idle_s=10.0)


def test_a_box_that_was_given_back_is_never_used_again() -> None:
    async def test(p: Pooled) -> None:
        first = await p.pool.open(user(), 1, SPEC)
        await p.pool.answer(user(), {"call": "close", "box": 1})
        second = await p.pool.open(user(), 2, SPEC)
        assert first is not second
        assert len(p.factory.made) == 2

    play(test)


def test_a_dead_warm_box_is_replaced_before_it_is_handed_out() -> None:
    async def test(p: Pooled) -> None:
        p.pool.expect(user(), SPEC)
        await asyncio.sleep(START_S + 1)
        p.factory.made[0].living = False
        box = await p.pool.open(user(), 1, SPEC)
        assert box.alive

    dead, used = play(test).records
    assert (dead.killed_by, dead.trajectory_id) == ("health", None)
    assert used.killed_by == ""


def test_a_box_that_does_not_answer_in_time_is_dead_too_and_only_one_is_replaced() -> None:
    async def test(p: Pooled) -> None:
        p.factory.prepare = lambda box: setattr(box, "silent", True)
        with pytest.raises(SandboxError, match="two sandboxes in a row"):
            await p.pool.open(user(), 1, SPEC)

    assert [record.killed_by for record in play(test, health_s=2.0).records] == ["health"] * 2


def test_starts_are_bounded() -> None:
    async def test(p: Pooled) -> None:
        opens = [p.pool.open(user(number), 1, SPEC) for number in range(10)]
        assert await seconds(asyncio.gather(*opens)) == pytest.approx(4 * START_S, rel=0.1)
        assert p.factory.most_at_once == 3

    play(test, starts_at_once=3)


def test_failed_starts_are_repeated_after_times_that_double() -> None:
    async def test(p: Pooled) -> None:
        p.factory.failing = [SandboxError("no"), OSError("disk"), SandboxError("no")]
        await p.pool.open(user(), 1, SPEC)
        gaps = [
            b - a - START_S for a, b in zip(p.factory.starts, p.factory.starts[1:], strict=False)
        ]
        assert gaps == pytest.approx([0.5, 1.0, 2.0])

    records = play(test, backoff_s=0.5, start_tries=4).records
    assert [record.killed_by for record in records] == ["failure"] * 3 + [""]
    assert [record.error for record in records] == ["no", "disk", "no", None]
    assert all(record.ready_at is None for record in records[:3])


def test_the_time_between_starts_is_bounded() -> None:
    async def test(p: Pooled) -> None:
        p.factory.failing = [SandboxError("no")] * 12
        await p.pool.open(user(), 1, SPEC)
        assert p.factory.starts[-1] - p.factory.starts[-2] == pytest.approx(START_S + 5.0)

    play(test, backoff_s=0.5, longest_backoff_s=5.0, start_tries=20, failures=100)


def test_an_attempt_is_refused_after_some_failed_starts_with_the_reason() -> None:
    async def test(p: Pooled) -> None:
        p.factory.failing = [OSError("no disk")] * 3
        with pytest.raises(SandboxError, match="no sandbox can be started: no disk"):
            await p.pool.open(user(), 1, SPEC)
        await p.pool.open(user(), 2, SPEC)

    play(test, start_tries=3)


def test_a_start_that_hangs_fails_at_its_limit() -> None:
    async def test(p: Pooled) -> None:
        with pytest.raises(SandboxError, match=r"not ready after 0\.5 s"):
            await p.pool.open(user(), 1, SPEC)

    play(test, start_s=0.5, start_tries=1)


def test_a_wrong_spec_is_refused_at_once_and_blames_no_task() -> None:
    async def test(p: Pooled) -> None:
        for _ in range(3):
            p.factory.failing = [SettingsError("sandbox: no folder")]
            with pytest.raises(SettingsError, match="no folder"):
                await p.pool.open(user(), 1, SPEC)
        assert len(p.factory.starts) == 3

    play(test, failures=2)


def test_expected_boxes_that_cannot_start_are_given_up_until_somebody_asks() -> None:
    async def test(p: Pooled) -> None:
        p.factory.failing = [SandboxError("no")] * 3
        p.pool.expect(user(), SPEC)
        await asyncio.sleep(100)
        assert len(p.factory.starts) == 3
        await p.pool.open(user(), 1, SPEC)

    play(test, start_tries=3)


def test_the_maximum_is_kept_and_a_box_that_ends_makes_room() -> None:
    async def test(p: Pooled) -> None:
        await p.pool.open(user(0), 1, SPEC)
        await p.pool.open(user(1), 1, SPEC)
        waits = asyncio.ensure_future(p.pool.open(user(2), 1, SPEC))
        await asyncio.sleep(50)
        assert (waits.done(), len(p.pool)) == (False, 2)
        p.pool.release("s0")
        await waits
        assert len(p.pool) == 2

    play(test, maximum=2)


def test_warm_boxes_of_another_key_make_room_for_who_asks() -> None:
    async def test(p: Pooled) -> None:
        for number in range(3):
            p.pool.expect(user(number), SPEC)
        await asyncio.sleep(START_S + 1)
        await p.pool.open(user(9), 1, OTHER)
        await asyncio.sleep(5)
        assert len(p.pool) == 3
        assert len(p.factory.open) == 3

    assert len(play(test, maximum=3).records) == 4


def test_an_attempt_that_holds_a_box_gets_further_ones_beyond_the_maximum() -> None:
    async def test(p: Pooled) -> None:
        for number in range(2):
            await p.pool.open(user(number), 1, SPEC)
        await asyncio.gather(*(p.pool.open(user(number), 2, OTHER) for number in range(2)))
        assert len(p.pool) == 4

    play(test, maximum=2)


def test_a_lease_ends_with_its_time() -> None:
    async def test(p: Pooled) -> None:
        await p.pool.open(user(lease_s=20.0), 1, SPEC)
        await asyncio.sleep(15)
        await p.pool.open(user(lease_s=20.0), 2, SPEC)
        running = asyncio.ensure_future(
            p.pool.answer(user(), {"call": "exec", "box": 1, "command": "sleep 100"} | EXEC)
        )
        await asyncio.sleep(5)
        assert len(p.pool) == 0
        answer, _ = await running
        assert answer["error"][0] == "SandboxError"
        answer, _ = await p.pool.answer(user(), {"call": "processes", "box": 2})
        assert "lease is over" in answer["error"][1]

    assert [record.killed_by for record in play(test).records] == ["lease", "lease"]


EXEC = {"timeout_s": 60.0, "env": None, "cwd": None}


def test_leases_end_with_a_holder_that_gives_no_sign_of_life() -> None:
    async def test(p: Pooled) -> None:
        await p.pool.open(user(0, holder="dead"), 1, SPEC)
        await p.pool.open(user(1, holder="living"), 1, SPEC)
        p.pool.expect(user(2, holder="dead"), SPEC)
        for _ in range(10):
            p.pool.renew("living")
            await asyncio.sleep(5)
        assert [record.trajectory_id for record in p.records] == ["t0"]
        assert len(p.pool) == 2  # one held, and a warm one that serves somebody else
        answer, _ = await p.pool.answer(user(1), {"call": "processes", "box": 1})
        assert answer == {"value": 0}

    assert play(test, holder_s=10.0, idle_s=1000.0).records[0].killed_by == "lease"


def test_commands_memory_and_leftovers_are_counted() -> None:
    async def test(p: Pooled) -> None:
        await p.pool.open(user(), 1, SPEC)
        for command in ("leave 1", "leave 2", "true"):
            await p.pool.answer(user(), {"call": "exec", "box": 1, "command": command} | EXEC)
        await p.pool.answer(user(), {"call": "close", "box": 1})

    (record,) = play(test).records
    assert (record.execs, record.exec_s, record.leaked) == (3, 1.5, 2)
    assert record.peak_memory_mb == 12.0


@pytest.mark.parametrize("limit", [KilledBy.MEMORY, KilledBy.TIME, KilledBy.NOTHING])
def test_a_box_that_dies_in_a_lease_tells_why(limit: KilledBy) -> None:
    async def test(p: Pooled) -> None:
        p.factory.prepare = lambda box: setattr(box, "limit", limit)
        await p.pool.open(user(), 1, SPEC)
        answer, _ = await p.pool.answer(user(), {"call": "exec", "box": 1, "command": "die"} | EXEC)
        assert answer == {"error": ["SandboxError", "the sandbox has ended: it died"]}
        assert not p.factory.open or await seconds(asyncio.sleep(1))

    (record,) = play(test).records
    assert record.killed_by == (limit.value or "failure")
    assert record.error == "the sandbox has ended: it died"


def test_a_task_whose_boxes_fail_too_often_is_quarantined() -> None:
    async def test(p: Pooled) -> None:
        async def fails(number: int, task: str) -> None:
            await p.pool.open(user(number, task=task), 1, SPEC)
            who = user(number, task=task)
            await p.pool.answer(who, {"call": "exec", "box": 1, "command": "die"} | EXEC)
            p.pool.release(who.session)

        for number in range(2):
            await fails(number, "bad")
        await fails(10, "once")
        await p.pool.open(user(11, task="once"), 1, SPEC)
        p.pool.release("s11")
        await fails(12, "once")
        await fails(13, "once")
        await p.pool.open(user(14, task="once"), 1, SPEC)
        await fails(3, "bad")
        with pytest.raises(TaskQuarantinedError, match="3 sandboxes of task bad failed in a row"):
            await p.pool.open(user(4, task="bad"), 1, SPEC)
        before = len(p.factory.starts)
        p.pool.expect(user(5, task="bad"), SPEC)
        await asyncio.sleep(5)
        assert len(p.factory.starts) == before

    play(test, failures=3)


def test_the_failure_that_quarantines_a_task_says_so_at_once() -> None:
    async def test(p: Pooled) -> None:
        p.factory.failing = [SandboxError("no image")] * 9
        for _ in range(2):
            with pytest.raises(SandboxError, match="no image"):
                await p.pool.open(user(), 1, SPEC)
        with pytest.raises(TaskQuarantinedError, match="no image"):
            await p.pool.open(user(), 1, SPEC)

    play(test, failures=3, start_tries=3)


def test_a_warm_box_is_replaced_when_half_of_its_lifetime_is_over() -> None:
    async def test(p: Pooled) -> None:
        spec = SandboxSpec(limits=SandboxLimits(lifetime_s=100.0))
        p.pool.expect(user(lease_s=30.0), spec)
        await asyncio.sleep(60)
        assert len(p.factory.made) == 2
        assert await seconds(p.pool.open(user(lease_s=math.inf), 1, spec)) < 0.1
        await asyncio.sleep(60)
        assert len(p.factory.open) == 1  # a box that is used keeps its lifetime

    assert [record.killed_by for record in play(test).records] == ["time", ""]


@pytest.mark.parametrize(("lease_s", "lifetime_s"), [(2000.0, 4000.0), (9.0, 3600.0)])
def test_a_box_outlives_the_attempt_that_gets_it_half_used(
    lease_s: float, lifetime_s: float
) -> None:
    async def test(p: Pooled) -> None:
        await p.pool.open(user(lease_s=lease_s), 1, SPEC)
        assert p.factory.made[0].spec.limits.lifetime_s == lifetime_s

    play(test)


def test_an_error_of_closing_is_in_the_record_and_hinders_nothing() -> None:
    async def test(p: Pooled) -> None:
        async def close(box: MemoryBox) -> None:
            p.factory.open.discard(box)
            raise OSError("busy")

        p.factory.prepare = lambda box: setattr(box, "close", lambda: close(box))
        await p.pool.open(user(), 1, SPEC)

    assert play(test).records[0].error == "cannot be closed: busy"


def test_a_closed_pool_hands_out_nothing() -> None:
    async def test(p: Pooled) -> None:
        waits = asyncio.ensure_future(p.pool.open(user(), 1, SPEC))
        await asyncio.sleep(0.1)
        await p.close()
        with pytest.raises(SandboxError, match="is over"):
            await waits
        with pytest.raises(SandboxError, match="the pool of sandboxes has ended"):
            await p.pool.open(user(), 1, SPEC)
        p.pool.expect(user(3), SPEC)

    play(test)


@pytest.mark.parametrize("at", [0.0, 0.5, START_S, START_S + 0.005, START_S + 0.01, START_S + 2])
@pytest.mark.parametrize("how", ["cancel", "release"])
@pytest.mark.parametrize("expected", [True, False])
def test_an_attempt_that_ends_at_any_moment_leaves_no_box(
    at: float, how: str, *, expected: bool
) -> None:
    async def test(p: Pooled) -> None:
        if expected:
            p.pool.expect(user(), SPEC)

        async def attempt() -> None:
            await p.pool.open(user(), 1, SPEC)
            await p.pool.answer(user(), {"call": "exec", "box": 1, "command": "sleep 9"} | EXEC)

        task = asyncio.ensure_future(attempt())
        await asyncio.sleep(at)
        if how == "cancel":
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        p.pool.release("s0")
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(20)
        assert len(p.pool) == 0

    play(test, idle_s=3.0)


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_left_whatever_attempts_do(seed: int) -> None:
    """Many attempts that ask, hold, fail and are cancelled, in an order that the seed decides."""
    random = Random(seed)

    async def attempt(p: Pooled, number: int) -> None:
        who = user(number, task=f"task{number % 5}", holder=f"h{number % 2}")
        try:
            if random.random() < 0.7:
                p.pool.expect(who, SPEC)
            await asyncio.sleep(random.random() * 5)
            for box in range(1, 1 + random.randrange(1, 3)):
                await p.pool.open(who, box, random.choice([SPEC, OTHER]))
                command = random.choice(["true", "sleep 3", "die", "leave 1"])
                await p.pool.answer(who, {"call": "exec", "box": box, "command": command} | EXEC)
                if random.random() < 0.5:
                    await p.pool.answer(who, {"call": "close", "box": box})
        except SandboxError:
            pass
        finally:
            p.pool.release(who.session)

    async def test(p: Pooled) -> None:
        p.factory.failing = [SandboxError("no")] * random.randrange(4)
        p.factory.prepare = lambda box: setattr(box, "living", random.random() < 0.9)
        tasks = [asyncio.ensure_future(attempt(p, number)) for number in range(40)]
        for task in tasks:
            if random.random() < 0.3:
                await asyncio.sleep(random.random())
                task.cancel()
        _, waiting = await asyncio.wait(tasks, timeout=10_000)
        assert not waiting
        await asyncio.sleep(100)
        assert len(p.pool) == 0
        assert not [*p.pool._users, *p.pool._leases, *p.pool._deadlines]

    play(test, maximum=4, idle_s=5.0, failures=1000)
