"""Meter: what a proxy tells the profiler of its generations, and what it does not."""

import asyncio
from collections.abc import AsyncIterator

from rollart_flow.control.inference.affinity_stats import GenerationSpan, Seen
from rollart_flow.control.inference.generation_timer import GenerationTimer
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.inference.profiler import Profiler
from rollart_flow.errors import EngineError
from rollart_flow.types import Chunk, FinishReason, GenerationRequest, Sampling
from tests.dst.log import EventLog


class Notes(Profiler):
    """The real one; notes what it is told."""

    def __init__(self) -> None:
        super().__init__(EventLog())
        self.seen: list[Seen] = []

    def observe(self, seen: Seen) -> None:
        self.seen.append(seen)
        super().observe(seen)


class Paced:
    """Prefills for 2 s, then a chunk of two tokens every second, up to the limit."""

    hardware = "H20"
    stands_for = frozenset(("H20",))

    def __init__(self, worker: str = "w", *, version: int = 0, dies: bool = False) -> None:
        self.worker = worker
        self.version = version
        self.dies = dies

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        await asyncio.sleep(1)
        most = request.sampling.max_tokens
        for offset in range(0, most, 2):
            await asyncio.sleep(1)
            end = FinishReason.LENGTH if offset == most - 2 else None
            yield Chunk(request.request_id, offset, (1, 1), (-0.5,) * 2, (self.version,) * 2, end)
            if self.dies:
                raise EngineError("gone")

    async def abort(self, request_id: str) -> None:
        """Nothing to end."""


def request(name: str, *prompt: int) -> GenerationRequest:
    return GenerationRequest(name, prompt, Sampling(max_tokens=6), "t", "lake")


async def test_a_generation_is_told_in_two_spans() -> None:
    notes = Notes()
    proxy = LLMProxy([Paced()], EventLog(), hw_affinity=GenerationTimer(notes))
    await proxy.generate(request("r", 7, 7, 7))
    assert notes.seen == [
        Seen("lake", "H20", 3, 6, (GenerationSpan(2, 3, 2.0), GenerationSpan(4, 0, 2.0)))
    ]


async def test_what_its_worker_has_cached_of_a_trajectory_is_not_new() -> None:
    notes = Notes()
    proxy = LLMProxy([Paced()], EventLog(), hw_affinity=GenerationTimer(notes))
    await proxy.generate(request("r0", 7, 7, 7))
    await proxy.generate(request("r1", 7, 7, 7, *(1,) * 6, 8, 8))
    proxy.release("t")
    await proxy.generate(request("r2", 7, 7, 7))
    assert [each.new_tokens for each in notes.seen] == [3, 2, 3]


async def test_prefills_of_others_on_the_same_worker_are_told_too() -> None:
    notes = Notes()
    proxy = LLMProxy([Paced()], EventLog(), hw_affinity=GenerationTimer(notes))

    async def later() -> None:
        await asyncio.sleep(1.5)
        await proxy.generate(request("r1", *(8,) * 100))

    await asyncio.gather(proxy.generate(request("r0", 7)), later())
    first, second = notes.seen
    assert [span.prefilled for span in first.spans] == [1, 100]
    assert [span.prefilled for span in second.spans] == [101, 0]


async def test_a_simulation_says_how_many_tokens_ids_stand_for() -> None:
    notes = Notes()
    proxy = LLMProxy([Paced()], EventLog(), hw_affinity=GenerationTimer(notes, sum))
    await proxy.generate(request("r", 500, 20))
    assert notes.seen[0].new_tokens == 520


async def test_generations_that_an_exchange_of_weights_may_have_paused_are_not_told() -> None:
    notes, engine = Notes(), Paced()
    proxy = LLMProxy([engine], EventLog(), hw_affinity=GenerationTimer(notes))
    engine.version = 1
    await proxy.generate(request("r0", 7))
    assert notes.seen == []
    await proxy.generate(request("r1", 7))
    running = asyncio.create_task(proxy.generate(request("r2", 7)))
    await asyncio.sleep(2.5)
    engine.version = 2
    await running
    assert len(notes.seen) == 1


async def test_generations_that_moved_or_were_aborted_are_not_told() -> None:
    notes = Notes()
    proxy = LLMProxy([Paced(dies=True)], EventLog(), hw_affinity=GenerationTimer(notes))
    moved = asyncio.create_task(proxy.generate(request("r0", 7)))
    await asyncio.sleep(0.5)
    proxy.add(Paced("other"))
    await moved
    aborted = asyncio.create_task(proxy.generate(request("r1", 7)))
    await asyncio.sleep(3.5)
    proxy.abort("r1")
    assert (await aborted).finish_reason is FinishReason.ABORT
    assert notes.seen == []
    await proxy.close()
