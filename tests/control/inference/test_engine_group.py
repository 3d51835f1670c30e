"""Fleet: what all workers are told, and those that were restarted or lost in between."""

import asyncio

import pytest

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.protocols import PullStats
from rollart_flow.errors import RunFailedError, WorkerAwayError
from rollart_flow.types import EventKind, Reason
from tests.control.workers import START_S, Commanded
from tests.dst.log import EventLog


def now() -> float:
    return asyncio.get_running_loop().time()


def staff(count: int, **settings: int) -> list[Commanded]:
    return [Commanded(f"w{i}", **settings) for i in range(count)]


async def test_a_run_goes_on_without_prefill_workers_and_ends_with_them_alone() -> None:
    prefill, decode = staff(2, restarts=0)
    fleet = EngineGroup((prefill, decode), 0, EventLog(), prefill=["w0"])
    prefill.die()
    await exchange(fleet, 1)
    assert (decode.version, fleet.workers, fleet.lost) == (1, (decode,), False)
    assert await fleet.revive("w0") == ()

    prefill, decode = staff(2, restarts=0)
    fleet = EngineGroup((prefill, decode), 0, EventLog(), prefill=["w0"])
    decode.die()
    with pytest.raises(RunFailedError, match="every engine worker has died"):
        await fleet.suspend()


async def test_what_takes_the_place_of_a_prefill_worker_is_one() -> None:
    old, decode, new = Commanded("w0"), Commanded("w1", restarts=0), Commanded("w2")
    fleet = EngineGroup((old, decode), 0, EventLog(), prefill=["w0"])
    await fleet.replace({"w0": False}, [new])
    assert await fleet.revive("w0") == ("w2",)
    decode.die()
    with pytest.raises(RunFailedError):
        await fleet.suspend()


async def exchange(fleet: EngineGroup, version: int) -> None:
    await fleet.suspend()
    await fleet.update(version)
    await fleet.resume()


async def test_an_exchange_reaches_every_worker_in_order() -> None:
    workers = staff(3)
    await exchange(EngineGroup(workers, 0, EventLog()), 1)
    assert all(worker.done == ["suspend", "update 1", "serve 1"] for worker in workers)
    assert all(worker.drawing for worker in workers)


async def test_what_workers_took_to_read_is_added_up_and_the_longest_wait_is_what_shows() -> None:
    workers = staff(3)
    for seconds, worker in enumerate(workers):
        worker.pull = PullStats(pull_s=10 + seconds, exposed_s=seconds)
    workers[2].gone = True
    fleet = EngineGroup(workers, 0, EventLog())
    fleet.prefetch(1)
    assert all(worker.done == ["prefetch 1"] for worker in workers)
    assert await fleet.update(1) == PullStats(pull_s=21, exposed_s=1)


async def test_a_worker_that_was_restarted_draws_under_the_version_of_the_others() -> None:
    log, workers = EventLog(), staff(2)
    fleet = EngineGroup(workers, 0, log)
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
    fleet = EngineGroup(workers, 0, EventLog())
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
    fleet = EngineGroup(workers, 0, EventLog())
    workers[1].die()
    await fleet.suspend()
    assert now() == START_S


async def test_a_worker_that_is_lost_for_good_is_left_out_with_one_event() -> None:
    log, workers = EventLog(), staff(2, restarts=0)
    fleet = EngineGroup(workers, 0, log)
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
    fleet = EngineGroup(workers, 0, EventLog())
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
    await EngineGroup(workers, 3, log, shared=True).suspend()
    assert all(worker.done == ["suspend", "release"] for worker in workers)
    (released,) = log.of(EventKind.RELEASE)
    assert (released.subject, released.detail, released.policy_version) == ("w0", {"bytes": 7}, 3)


async def test_a_fleet_that_was_left_suspended_revives_nobody_before_it_is_resumed() -> None:
    fleet = EngineGroup(staff(1), 0, EventLog(), suspended=True)
    revived = asyncio.create_task(fleet.revive("w0"))
    await asyncio.sleep(100)
    assert not revived.done()
    await fleet.resume()
    assert await revived


async def test_sliding_workers_leave_for_training_and_come_back_under_the_newest_version() -> None:
    log, (steady, sliding) = EventLog(), staff(2, frees=7)
    fleet = EngineGroup((steady, sliding), 0, log, sliding=["w1"])
    await fleet.to_training()
    await fleet.to_training()
    assert (fleet.workers, sliding.done, sliding.drawing) == ((steady,), ["leave"], False)
    await exchange(fleet, 1)
    assert sliding.done == ["leave"], "while it trains it is told nothing"
    returning = asyncio.create_task(fleet.revive("w1"))
    await asyncio.sleep(100)
    assert not returning.done()
    await fleet.to_rollout()
    assert await returning == ("w1",)
    assert (sliding.version, sliding.drawing, fleet.workers) == (1, True, (steady, sliding))
    slides = [(event.subject, event.detail) for event in log.of(EventKind.SLIDE)]
    assert slides == [("w1", {"to": "training", "bytes": 7}), ("w1", {"to": "rollout"})]
    assert not log.of(EventKind.RETRY), "nothing was lost"


async def test_a_sliding_worker_that_dies_at_training_is_not_waited_for() -> None:
    steady, sliding = staff(2, restarts=0)
    fleet = EngineGroup((steady, sliding), 0, EventLog(), sliding=["w1"])
    await fleet.to_training()
    sliding.die()
    await fleet.to_rollout()
    assert fleet.workers == (steady,)
    assert await fleet.revive("w1") == ()


async def test_a_sliding_worker_that_is_being_asked_to_leave_is_not_taken_to_have_left() -> None:
    steady, sliding = staff(2)
    fleet = EngineGroup((steady, sliding), 0, EventLog(), sliding=["w1"])
    sliding.hang()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(fleet.to_training(), 1.0)
    sliding.restart()
    await fleet.resume()
    assert (sliding.drawing, fleet.workers) == (True, (steady, sliding))


async def test_a_sliding_worker_that_gets_a_node_while_its_devices_train_serves_after_that() -> (
    None
):
    steady, sliding = staff(2)
    fleet = EngineGroup((steady, sliding), 0, EventLog(), sliding=["w1"])
    await fleet.to_training()
    sliding.lose_node()
    fleet.leave("w1", WorkerAwayError("no node"))
    sliding.find_node()
    await fleet.rejoin("w1")
    assert (sliding.drawing, fleet.workers) == (False, (steady,))
    await fleet.to_rollout()
    assert (sliding.drawing, fleet.workers) == (True, (steady, sliding))


async def test_a_run_with_sliding_workers_alone_waits_for_them() -> None:
    (sliding,) = staff(1)
    fleet = EngineGroup((sliding,), 0, EventLog(), sliding=["w0"])
    await fleet.to_training()
    await exchange(fleet, 3)
    assert not fleet.lost
    await fleet.to_rollout()
    assert (sliding.version, sliding.drawing) == (3, True)


async def test_workers_that_take_the_place_of_another_serve_before_it_leaves() -> None:
    log, (old, shared) = EventLog(), staff(2)
    new = [Commanded("n0"), Commanded("n1")]
    for worker in new:
        worker.drawing = False
    fleet = EngineGroup((old, shared), 0, log)
    await exchange(fleet, 4)
    await fleet.replace({"w0": False, "w1": True}, new)
    assert [worker.version for worker in new] == [4, 4]
    assert old.done[-1] == "leave"
    assert not old.drawing
    assert shared.done[-2:] == ["leave", "serve 4"], "its requests are routed anew"
    assert fleet.workers == (shared, *new)
    assert await fleet.revive("w0") == ("n0", "n1")
    assert await fleet.revive("w1") == ("n0", "n1", "w1")
    await exchange(fleet, 5)
    assert {worker.version for worker in (shared, *new)} == {5}
    assert old.version == 4
    assert not log.of(EventKind.RETRY)
    assert not log.of(EventKind.CRASH)


async def test_workers_that_come_while_the_others_are_suspended_serve_with_them() -> None:
    (old,) = staff(1)
    new = Commanded("n0")
    new.drawing = False
    fleet = EngineGroup((old,), 0, EventLog())
    await fleet.suspend()
    await fleet.replace({"w0": False}, [new])
    assert not new.drawing
    await fleet.update(1)
    await fleet.resume()
    assert (new.version, new.drawing) == (1, True)


async def test_workers_without_a_node_are_waited_for_where_they_are_all_there_are() -> None:
    workers = staff(2)
    fleet = EngineGroup(workers, 0, EventLog())
    for worker in workers:
        worker.lose_node()
        fleet.leave(worker.name, WorkerAwayError("no node"))
    await fleet.suspend()
    await fleet.update(1)
    await fleet.resume()
    workers[0].find_node()
    await fleet.rejoin("w0")
    assert (workers[0].version, workers[0].drawing) == (1, True)
