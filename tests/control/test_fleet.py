"""Fleet: what all workers are told, and those that were restarted or lost in between."""

import asyncio

import pytest

from rollart_flow.control.fleet import Fleet
from rollart_flow.errors import RunFailedError
from rollart_flow.simulation.fuzz.log import EventLog
from rollart_flow.types import EventKind, Reason
from tests.control.workers import START_S, Commanded


def now() -> float:
    return asyncio.get_running_loop().time()


def staff(count: int, **settings: int) -> list[Commanded]:
    return [Commanded(f"w{i}", **settings) for i in range(count)]


async def exchange(fleet: Fleet, version: int) -> None:
    await fleet.suspend()
    await fleet.update(version)
    await fleet.resume()


async def test_an_exchange_reaches_every_worker_in_order() -> None:
    workers = staff(3)
    await exchange(Fleet(workers, 0, EventLog()), 1)
    assert all(worker.done == ["suspend", "update 1", "serve 1"] for worker in workers)
    assert all(worker.drawing for worker in workers)


async def test_a_worker_that_was_restarted_draws_under_the_version_of_the_others() -> None:
    log, workers = EventLog(), staff(2)
    fleet = Fleet(workers, 0, log)
    await exchange(fleet, 5)
    workers[0].die()
    assert await fleet.revive("w0")
    assert (workers[0].version, workers[0].drawing, now()) == (5, True, START_S)
    (returned,) = log.of(EventKind.RETRY)
    assert (returned.subject, returned.reason) == ("w0", Reason.WORKER_LOST)
    assert returned.policy_version == 5
    assert await fleet.revive("w0"), "it serves already"
    assert len(log.of(EventKind.RETRY)) == 1


async def test_a_worker_that_was_restarted_draws_nothing_while_the_others_are_suspended() -> None:
    workers = staff(2)
    fleet = Fleet(workers, 0, EventLog())
    await fleet.suspend()
    workers[0].die()
    revived = asyncio.create_task(fleet.revive("w0"))
    await asyncio.sleep(2 * START_S)
    assert not revived.done()
    assert not workers[0].drawing
    await fleet.update(1)
    await fleet.resume()
    assert await revived
    assert (workers[0].version, workers[0].drawing) == (1, True)


async def test_commands_wait_for_a_restart_that_is_under_way() -> None:
    workers = staff(2)
    fleet = Fleet(workers, 0, EventLog())
    workers[1].die()
    await fleet.suspend()
    assert now() == START_S


async def test_a_worker_that_is_lost_for_good_is_left_out_with_one_event() -> None:
    log, workers = EventLog(), staff(2, restarts=0)
    fleet = Fleet(workers, 0, log)
    workers[0].die()
    assert not await fleet.revive("w0")
    await exchange(fleet, 1)
    assert [worker.name for worker in fleet.workers] == ["w1"]
    (crash,) = log.of(EventKind.CRASH)
    assert (crash.subject, crash.reason) == ("w0", Reason.WORKER_LOST)
    assert crash.detail == {"error": "w0 is gone", "removed": True}
    assert workers[1].version == 1


@pytest.mark.parametrize("command", ["suspend", "update", "resume"])
async def test_without_any_worker_the_run_cannot_go_on(command: str) -> None:
    workers = staff(2, restarts=0)
    fleet = Fleet(workers, 0, EventLog())
    for worker in workers:
        worker.die()
    commands = {
        "suspend": fleet.suspend,
        "update": lambda: fleet.update(1),
        "resume": fleet.resume,
    }
    with pytest.raises(RunFailedError, match="every engine worker has died"):
        await commands[command]()


async def test_shared_workers_give_back_memory_and_say_how_much() -> None:
    log, workers = EventLog(), [Commanded("w0", frees=7), Commanded("w1")]
    await Fleet(workers, 3, log, shared=True).suspend()
    assert all(worker.done == ["suspend", "release"] for worker in workers)
    (released,) = log.of(EventKind.RELEASE)
    assert (released.subject, released.detail, released.policy_version) == ("w0", {"bytes": 7}, 3)


async def test_a_fleet_that_was_left_suspended_revives_nobody_before_it_is_resumed() -> None:
    fleet = Fleet(staff(1), 0, EventLog(), suspended=True)
    revived = asyncio.create_task(fleet.revive("w0"))
    await asyncio.sleep(100)
    assert not revived.done()
    await fleet.resume()
    assert await revived
