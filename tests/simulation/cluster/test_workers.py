"""Simulated inference workers: transfers of weights, and devices that training lends."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.plane import engine_group
from rollart_flow.simulation.cluster.workers import InstantEngineGroup, SimulatedWorkers
from rollart_flow.simulation.hardware import H800, QWEN3_8B, Roofline
from rollart_flow.simulation.models.batching import ContinuousBatch
from rollart_flow.simulation.models.engine import SimulatedEngine
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.transfers import MOONCAKE
from rollart_flow.simulation.workloads import GEM_MATH
from rollart_flow.types import Chunk, Event, EventKind, FinishReason, GenerationRequest, Sampling

SCENARIO = Scenario(
    "group", QWEN3_8B, (GEM_MATH,), (Pool(H800, 2),), Pool(H800, 2), batch_size=8, group_size=4
)
ASKED = 2_000


def now() -> float:
    return asyncio.get_running_loop().time()


def engines(prefix: str, count: int, lost: Counter[str]) -> list[SimulatedEngine]:
    def left(trajectory_id: str, position: int) -> int:
        return ASKED - (position - 100)

    return [
        SimulatedEngine(f"{prefix}{i}", ContinuousBatch(Roofline(QWEN3_8B, H800)), left, lost)
        for i in range(count)
    ]


def workers(sliding: int = 0, scenario: Scenario = SCENARIO) -> SimulatedWorkers:
    lost: Counter[str] = Counter()
    return SimulatedWorkers(engines("w", 2, lost), engines("s", sliding, lost), scenario)


def commanding(workers: SimulatedWorkers) -> EngineGroup:
    return engine_group(workers.commanded, lambda event: None, kind=InstantEngineGroup)


def names(group: EngineGroup) -> list[str]:
    return [worker.name for worker in group.workers]


async def gathered(stream: AsyncIterator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in stream]


def request(name: str) -> GenerationRequest:
    return GenerationRequest(name, (100,), Sampling(max_tokens=1 << 30), trajectory_id=name)


async def exchange(group: EngineGroup, version: int) -> float:
    """Seconds from the suspension to the resumption."""
    await group.suspend()
    began = now()
    await group.update(version)
    await group.resume()
    return now() - began


async def test_a_push_takes_the_link_and_an_update_takes_the_exposed_pull() -> None:
    every = workers()
    group = commanding(every)
    await every.transfers.push()
    assert now() == pytest.approx(MOONCAKE.push_s(QWEN3_8B))
    exposed = MOONCAKE.exposed_s(QWEN3_8B, 1)
    assert await exchange(group, 1) == pytest.approx(exposed)
    assert every.transfers.exposed_s == [exposed]
    assert all(engine.suspended_s == pytest.approx(exposed) for engine in every.engines)


async def test_the_version_that_is_served_needs_no_transfer() -> None:
    every = workers()
    group = commanding(every)
    await every.transfers.push()
    await exchange(group, 1)
    assert await exchange(group, 1) == 0
    assert len(every.transfers.exposed_s) == 1


async def test_two_pushes_take_the_link_in_turn() -> None:
    transfers = workers().transfers
    await asyncio.gather(transfers.push(), transfers.push())
    assert now() == pytest.approx(2 * MOONCAKE.push_s(QWEN3_8B))


async def test_requests_in_flight_continue_under_the_new_version() -> None:
    every = workers()
    group = commanding(every)
    streams = [asyncio.create_task(gathered(e.generate(request(e.worker)))) for e in every.engines]
    await asyncio.sleep(3)
    await exchange(group, 1)
    for stream in streams:
        versions = [version for chunk in await stream for version in chunk.versions]
        assert set(versions) == {0, 1}
    assert all(engine.batch.version == 1 for engine in every.engines)


async def test_sliding_engines_leave_for_training_and_come_back_with_the_served_version() -> None:
    every = workers(sliding=1)
    group = commanding(every)
    assert names(group) == ["w0", "w1", "s0"]
    await group.to_training()
    await group.to_training()
    assert names(group) == ["w0", "w1"]
    await every.transfers.push()
    await exchange(group, 1)
    assert every.sliding[0].batch.version == 0
    away = now()
    await group.to_rollout()
    assert names(group) == ["w0", "w1", "s0"]
    assert every.sliding[0].batch.version == 1
    assert every.sliding[0].away_s == pytest.approx(away)


async def test_requests_of_a_sliding_engine_continue_elsewhere_with_their_tokens() -> None:
    every = workers(sliding=2)
    group = commanding(every)
    everything = [*every.engines, *every.sliding]
    proxy = LLMProxy(everything, lambda event: None)
    every.tell(proxy)
    asked = [f"t{i}" for i in range(8)]
    streams = [asyncio.create_task(proxy.generate(request(name))) for name in asked]
    await asyncio.sleep(5)
    before = [engine.batch.sampled_tokens for engine in every.sliding]
    await group.to_training()
    sampled = [engine.batch.sampled_tokens for engine in every.sliding]
    assert min(sampled) > 100, "both had something to do"
    assert all(now >= then for now, then in zip(sampled, before, strict=True))
    generations = await asyncio.gather(*streams)
    for generation in generations:
        assert sum(generation.token_ids) == ASKED
        assert generation.finish_reason is FinishReason.STOP
    total = sum(engine.batch.sampled_tokens for engine in everything)
    assert total == len(asked) * ASKED, "no token is sampled again"
    await group.to_rollout()
    await proxy.close()


async def test_proxies_know_the_serving_engines_before_a_request_fails() -> None:
    """Many workers leave at once: a request must not fail because it tried one after another."""
    every = workers(sliding=16)
    group = commanding(every)
    everything = [*every.engines, *every.sliding]
    kinds: set[EventKind] = set()

    def record(event: Event) -> None:
        kinds.add(event.kind)

    proxy = LLMProxy(everything, record)
    every.tell(proxy)
    streams = [asyncio.create_task(proxy.generate(request(f"t{i}"))) for i in range(64)]
    await asyncio.sleep(5)
    await group.to_training()
    assert proxy.workers == ("w0", "w1")
    late = LLMProxy(everything, record)
    every.tell(late)
    assert late.workers == ("w0", "w1")
    for generation in await asyncio.gather(*streams):
        assert sum(generation.token_ids) == ASKED
    await group.to_rollout()
    assert len(proxy.workers) == len(late.workers) == 18
    assert kinds <= {EventKind.RETRY}, "nobody crashed"
    await asyncio.gather(proxy.close(), late.close())


async def test_the_exposed_pull_is_that_of_the_scenario() -> None:
    slow = replace(SCENARIO, transfer=replace(MOONCAKE, streamed=False))
    assert await exchange(commanding(workers(scenario=slow)), 1) == pytest.approx(
        MOONCAKE.pull_s(QWEN3_8B)
    )
