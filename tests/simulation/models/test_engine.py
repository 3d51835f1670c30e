"""The simulated inference worker: its streams, and their interruptions."""

import asyncio
from collections import Counter

import pytest

from rollart_flow.control.protocols import Inference
from rollart_flow.errors import EngineError
from rollart_flow.simulation.hardware import H20, QWEN3_8B, Roofline
from rollart_flow.simulation.models.batching import ContinuousBatch
from rollart_flow.simulation.models.engine import DisaggregatedEngine, SimulatedEngine
from rollart_flow.types import Chunk, FinishReason
from tests.simulation.models.streams import ROOFLINE, gathered, now, request, tokens

ASKED = 1_000


def an_engine(lost: Counter[str] | None = None, asked: int = ASKED) -> SimulatedEngine:
    """Each action has `asked` tokens, of a chain whose prompts come to 500 tokens."""
    batch = ContinuousBatch(ROOFLINE)
    left = lambda _, position: asked - (position - 500)  # noqa: E731
    return SimulatedEngine("w", batch, left, Counter() if lost is None else lost)


def contiguous(chunks: list[Chunk]) -> bool:
    """Whether the offsets of the chunks show that no id is missing and none comes twice."""
    return all(
        chunk.offset == sum(len(before.token_ids) for before in chunks[:i])
        for i, chunk in enumerate(chunks)
    )


async def test_the_first_turn_sends_its_first_token_early_and_the_rest_at_the_end() -> None:
    engine: Inference = an_engine()
    (first_at, first), *rest = await gathered(engine.generate(request()))
    assert first.token_ids == (1,)
    assert first_at == pytest.approx(ROOFLINE.prefill_s(500, 250))
    chunks = [first, *(chunk for _, chunk in rest)]
    assert {at for at, _ in rest} == {now()}
    assert now() > 50 * first_at
    assert contiguous(chunks)
    assert tokens(chunks) == ASKED
    assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + [FinishReason.STOP]


async def test_later_turns_come_at_their_end_only() -> None:
    chunks = await gathered(an_engine().generate(request(400, 80, 20)))
    assert {at for at, _ in chunks} == {now()}
    assert tokens([chunk for _, chunk in chunks]) == ASKED
    assert contiguous([chunk for _, chunk in chunks])


async def test_an_action_of_one_token_ends_properly() -> None:
    chunks = [chunk for _, chunk in await gathered(an_engine(asked=1).generate(request()))]
    assert tokens(chunks) == 1
    assert chunks[-1].finish_reason is FinishReason.STOP
    assert contiguous(chunks)


async def test_chunks_have_the_version_that_sampled_them() -> None:
    engine = an_engine()
    stream = asyncio.create_task(gathered(engine.generate(request())))
    await asyncio.sleep(2)
    engine.suspend()
    await asyncio.sleep(30)
    engine.resume(3)
    chunks = [chunk for _, chunk in await stream]
    versions = [version for chunk in chunks for version in chunk.versions]
    assert versions == sorted(versions)
    assert set(versions) == {0, 3}
    assert tokens(chunks) == ASKED
    assert contiguous(chunks)
    assert engine.suspended_s == 30
    assert now() > 32


async def test_closing_a_stream_removes_its_sequence_and_counts_the_lost_tokens() -> None:
    lost: Counter[str] = Counter()
    engine = an_engine(lost)
    stream = asyncio.create_task(gathered(engine.generate(request())))
    await asyncio.sleep(2)
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream
    assert len(engine.batch) == 0
    assert 0 < lost["t"] < ASKED
    assert lost["t"] == engine.batch.sampled_tokens


async def test_a_stream_that_comes_to_its_end_loses_nothing() -> None:
    lost: Counter[str] = Counter()
    await gathered(an_engine(lost).generate(request()))
    assert not lost


async def test_a_leaving_worker_sends_its_tokens_and_an_error() -> None:
    lost: Counter[str] = Counter()
    engine = an_engine(lost)
    chunks: list[Chunk] = []

    async def read() -> None:
        async for chunk in engine.generate(request()):
            chunks.append(chunk)

    reader = asyncio.create_task(read())
    await asyncio.sleep(2)
    engine.leave()
    with pytest.raises(EngineError, match="has left"):
        await reader
    assert 0 < tokens(chunks) < ASKED
    assert contiguous(chunks)
    assert all(chunk.finish_reason is None for chunk in chunks)
    with pytest.raises(EngineError, match="has left"):
        await gathered(engine.generate(request()))
    await asyncio.sleep(10)
    engine.come_back(4)
    assert engine.away_s == 10
    rest = [chunk for _, chunk in await gathered(engine.generate(request(500, tokens(chunks))))]
    assert tokens(chunks) + tokens(rest) == ASKED, "the rest goes on where it was"
    assert {version for chunk in rest for version in chunk.versions} == {4}


async def test_a_request_without_a_token_fails_when_the_worker_leaves() -> None:
    engine = an_engine()
    reader = asyncio.create_task(gathered(engine.generate(request())))
    await asyncio.sleep(0)
    engine.leave()
    with pytest.raises(EngineError, match="has left"):
        await reader


async def test_a_generation_takes_a_few_events_however_long_it_is() -> None:
    """One timer at a time, for the next event."""
    engine = an_engine(asked=20_000)
    woken = 0
    wake = engine._wake

    def counted() -> None:
        nonlocal woken
        woken += 1
        wake()

    engine._wake = counted  # type: ignore[method-assign]
    await gathered(engine.generate(request()))
    assert woken <= 3


async def test_two_streams_share_the_worker() -> None:
    alone = an_engine()
    await gathered(alone.generate(request()))
    alone_s, began = now(), now()
    engine = an_engine()
    both = (engine.generate(request(trajectory=name)) for name in "ab")
    await asyncio.gather(*map(gathered, both))
    assert alone_s < now() - began < 1.2 * alone_s


async def test_prompts_of_a_domain_use_its_share_of_their_cached_tokens() -> None:
    left = lambda _, position: 300 if position == 2_000 else 100  # noqa: E731

    def worker(*, stored: bool) -> SimulatedEngine:
        batch = ContinuousBatch(ROOFLINE, stored=stored)
        return SimulatedEngine("w", batch, left, Counter(), cached_shares={"web": 0.5})

    async def computed(engine: Inference, batch: ContinuousBatch, domain: str) -> int:
        """New tokens of a second prompt, which is 50 longer than the chain of the first."""
        await gathered(engine.generate(request(2_000, trajectory=domain, domain=domain)))
        before = batch.prefilled_tokens
        await gathered(engine.generate(request(2_000, 300, 50, trajectory=domain, domain=domain)))
        return batch.prefilled_tokens - before

    alone = worker(stored=False)
    assert await computed(alone, alone.batch, "math") == 50
    assert await computed(alone, alone.batch, "web") == 2_350 - 2_300 // 2
    prefill, decode = worker(stored=True), worker(stored=False)
    pair = DisaggregatedEngine([prefill], [decode], 25.0, QWEN3_8B.kv_bytes)
    assert await computed(pair, prefill.batch, "math") == 350
    assert await computed(pair, prefill.batch, "web") == 2_350 - 2_000 // 2


async def test_prefill_workers_compute_prompts_and_decode_workers_sample() -> None:
    """Only new tokens cross the network, and a trajectory keeps its pair of workers."""
    left = lambda _, position: 300 if position == 2_000 else 100  # noqa: E731
    lost: Counter[str] = Counter()
    prefill = [
        SimulatedEngine(f"p{i}", ContinuousBatch(ROOFLINE, stored=True), left, lost) for i in (0, 1)
    ]
    slow = Roofline(QWEN3_8B, H20)
    decode = [SimulatedEngine(f"d{i}", ContinuousBatch(slow), left, lost) for i in (0, 1)]
    pair: Inference = DisaggregatedEngine(prefill, decode, 25.0, QWEN3_8B.kv_bytes)
    first = [chunk for _, chunk in await gathered(pair.generate(request(2_000)))]
    second = [chunk for _, chunk in await gathered(pair.generate(request(2_000, 300, 50)))]
    assert (tokens(first), tokens(second)) == (300, 100)
    sampled = [engine.batch.sampled_tokens for engine in decode]
    assert sorted(sampled) == [0, 400]
    assert [engine.batch.prefilled_tokens for engine in prefill] == [2_350, 0]
    assert sum(engine.batch.prefilled_tokens for engine in decode) == 0
    assert (pair.worker, pair.hardware) == ("2P2D", "H20")
