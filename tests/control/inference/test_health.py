"""Health checks: who hangs is restarted once and then removed; who is only slow is left alone."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.inference.health import HealthLimits, watch
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.protocols import Inference
from rollart_flow.errors import EngineError, SettingsError
from rollart_flow.types import Chunk, EventKind, FinishReason, GenerationRequest, Reason, Sampling
from tests.control.workers import START_S, Commanded
from tests.dst.log import EventLog

LIMITS = HealthLimits(answer_s=40.0, start_s=200.0)


class Watched:
    """A fleet under watch."""

    def __init__(self, *workers: Commanded) -> None:
        self.log = EventLog()
        self.fleet = EngineGroup(workers, 0, self.log)
        self.watch = asyncio.create_task(watch(self.fleet, self.log, LIMITS))

    async def end(self) -> None:
        self.watch.cancel()
        await asyncio.gather(self.watch, return_exceptions=True)


async def test_a_worker_that_hangs_is_restarted_in_place_and_serves_again() -> None:
    worker, other = Commanded("w0"), Commanded("w1")
    watched = Watched(worker, other)
    await asyncio.sleep(100)
    worker.hang()
    await asyncio.sleep(1.25 * LIMITS.answer_s)
    assert worker.processes == 2
    (crash,) = watched.log.of(EventKind.CRASH)
    assert (crash.subject, crash.reason) == ("w0", Reason.WORKER_LOST)
    assert crash.detail == {"error": "it hangs: no sign of life within 40 s"}
    assert await watched.fleet.revive("w0")
    assert worker.drawing
    await asyncio.sleep(10_000)
    assert (worker.processes, other.processes) == (2, 1)
    await watched.end()


async def test_the_second_time_it_is_removed() -> None:
    worker, other = Commanded("w0"), Commanded("w1")
    watched = Watched(worker, other)
    for _ in range(2):
        worker.hang()
        await asyncio.sleep(2 * LIMITS.answer_s + START_S)
    assert watched.fleet.workers == (other,)
    assert [crash.detail.get("removed", False) for crash in watched.log.of(EventKind.CRASH)] == [
        False, False, True,
    ]  # fmt: skip
    assert not await watched.fleet.revive("w0")
    await watched.end()


async def test_nobody_waits_for_a_worker_whose_node_is_gone_until_there_is_another() -> None:
    worker, other = Commanded("w0"), Commanded("w1")
    watched = Watched(worker, other)
    worker.lose_node()
    suspended = asyncio.create_task(watched.fleet.suspend())
    revived = asyncio.create_task(watched.fleet.revive("w0"))
    await asyncio.sleep(LIMITS.every_s + 1)
    assert suspended.done(), "the command that waited for it has given up"
    assert list(watched.fleet.workers) == [other]
    (crash,) = watched.log.of(EventKind.CRASH)
    assert crash.detail == {"error": "no node for w0", "away": True}
    await watched.fleet.update(3)
    await watched.fleet.resume()
    await asyncio.sleep(1_000)
    assert not revived.done()
    worker.find_node()
    await asyncio.sleep(LIMITS.every_s + START_S)
    assert set(watched.fleet.workers) == {worker, other}
    assert await revived
    assert (worker.drawing, worker.version) == (True, 3)
    assert len(watched.log.of(EventKind.CRASH)) == 1
    await watched.end()


async def test_workers_without_a_node_are_given_up_if_none_serves() -> None:
    workers = (Commanded("w0"), Commanded("w1"))
    watched = Watched(*workers)
    for worker in workers:
        worker.lose_node()
    lost = []
    for _ in range(2):
        await asyncio.sleep(0.75 * LIMITS.away_s)
        lost.append(watched.fleet.lost)
    assert lost == [False, True]
    assert {
        (crash.subject, crash.detail["error"])
        for crash in watched.log.of(EventKind.CRASH)
        if crash.detail.get("removed")
    } == {(name, f"no node for {name}, nor had one for 900 s") for name in ("w0", "w1")}
    await watched.watch


async def test_a_worker_that_comes_back_while_all_are_suspended_draws_once_they_are_resumed() -> (
    None
):
    worker, other = Commanded("w0"), Commanded("w1")
    watched = Watched(worker, other)
    worker.lose_node()
    await asyncio.sleep(LIMITS.every_s + 1)
    await watched.fleet.suspend()
    worker.find_node()
    await asyncio.sleep(2 * LIMITS.every_s + START_S)
    assert set(watched.fleet.workers) == {worker, other}
    assert "serve 0" not in worker.done
    await watched.fleet.resume()
    assert "serve 0" in worker.done
    await watched.end()


async def test_a_slow_worker_that_answers_is_not_lost() -> None:
    worker = Commanded("w0")
    worker.answers_in_s = 0.99 * LIMITS.answer_s
    watched = Watched(worker)
    await asyncio.sleep(10_000)
    assert worker.done == ["ping"] * int(10_000 / (LIMITS.every_s + worker.answers_in_s))
    assert watched.log.of(EventKind.CRASH) == []
    await watched.end()


async def test_a_new_process_is_given_time_to_start() -> None:
    worker = Commanded("w0", restarts=2)
    watched = Watched(worker)
    worker.hang()
    await asyncio.sleep(1.25 * LIMITS.answer_s)
    worker.answers_in_s = 3 * LIMITS.answer_s
    await asyncio.sleep(worker.answers_in_s + LIMITS.every_s + 1)
    assert worker.done == ["restart", "ping"], "longer than an answer may take"
    await asyncio.sleep(LIMITS.start_s)
    assert worker.done.count("restart") == 2, "which is so again once it has started"
    await watched.end()


async def test_a_worker_that_died_while_nobody_used_it_is_noticed() -> None:
    worker = Commanded("w0", restarts=0)
    watched = Watched(worker, Commanded("w1"))
    worker.die()
    await asyncio.sleep(LIMITS.every_s + 1)
    assert [each.name for each in watched.fleet.workers] == ["w1"]
    await watched.end()


async def test_watching_ends_with_the_last_worker() -> None:
    worker = Commanded("w0", restarts=0)
    watched = Watched(worker)
    worker.die()
    await watched.watch


async def test_an_exchange_that_waits_for_a_worker_that_hangs_goes_on_once_it_is_restarted() -> (
    None
):
    worker, other = Commanded("w0"), Commanded("w1")
    watched = Watched(worker, other)
    worker.hang()
    await watched.fleet.suspend()
    await watched.fleet.update(1)
    await watched.fleet.resume()
    assert asyncio.get_running_loop().time() == pytest.approx(1.25 * LIMITS.answer_s + START_S)
    assert (worker.version, worker.drawing) == (1, True)
    await watched.end()


class Streaming:
    """The same worker as its clients see it: a token each second while its process lives."""

    hardware = "H20"
    stands_for = frozenset(("H20",))

    def __init__(self, commanded: Commanded) -> None:
        self.worker = commanded.name
        self._commanded = commanded

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        process, length = self._commanded.processes, request.sampling.max_tokens
        for offset in range(length):
            await asyncio.sleep(1)
            if not self._commanded.drawing:  # it says nothing, and closes nothing
                await self._commanded.ended(process)
                raise EngineError(f"{self.worker} died")
            reason = FinishReason.LENGTH if offset == length - 1 else None
            yield Chunk(request.request_id, offset, (offset,), (-0.5,), (0,), reason)

    async def abort(self, request_id: str) -> None:
        """Nothing to end."""


async def test_requests_of_a_worker_that_hangs_go_on_elsewhere_from_the_tokens_they_have() -> None:
    first, second = Commanded("w0"), Commanded("w1")
    watched = Watched(first, second)
    engines = {each.name: Streaming(each) for each in (first, second)}

    async def recover(worker: Inference) -> list[Inference]:
        return [engines[name] for name in await watched.fleet.revive(worker.worker)]

    proxy = LLMProxy([engines["w0"]], watched.log, recover=recover)
    request = GenerationRequest("r", (7,), Sampling(max_tokens=50), "t")
    generation = asyncio.create_task(proxy.generate(request))
    await asyncio.sleep(20.5)
    proxy.add(engines["w1"])
    first.hang()
    done = await generation
    assert done.token_ids == (*range(20), *range(30)), "20 of the one, 30 of the other"
    assert done.worker == "w1"
    (retry,) = [event for event in watched.log.of(EventKind.RETRY) if event.subject == "t"]
    assert retry.detail["tokens"] == 20
    await proxy.close()
    await watched.end()


@pytest.mark.parametrize("name", ["answer_s", "start_s"])
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is 0.0, but must be above 0 seconds"):
        HealthLimits(**{name: 0.0})
