"""LLMProxy: every token once and in order, on whatever worker is left."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from rollart_flow.control.inference.generation_builder import GenerationFailedError
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.protocols import Inference
from rollart_flow.errors import EngineError, RequestRefusedError, WorkerLeftError
from rollart_flow.types import Chunk, EventKind, FinishReason, GenerationRequest, Reason, Sampling
from tests.dst.log import EventLog

Script = Callable[[GenerationRequest], Sequence[Chunk | Exception | float]]


class Scripted:
    """A worker that does as it is told per request: chunks, pauses in seconds, errors."""

    def __init__(self, worker: str, script: Script, hardware: str = "H20") -> None:
        self._worker = worker
        self._hardware = hardware
        self.classes = frozenset((hardware,))
        self._script = script
        self.requests: list[GenerationRequest] = []
        self.aborted: list[str] = []
        self.closed: list[str] = []

    @property
    def worker(self) -> str:
        return self._worker

    @property
    def hardware(self) -> str:
        return self._hardware

    @property
    def stands_for(self) -> frozenset[str]:
        return self.classes

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        try:
            for act in self._script(request):
                if isinstance(act, Exception):
                    raise act
                if isinstance(act, float):
                    await asyncio.sleep(act)
                else:
                    yield act
        finally:
            self.closed.append(request.request_id)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


def chunk(offset: int, *tokens: int, end: FinishReason | None = None, version: int = 0) -> Chunk:
    count = len(tokens)
    return Chunk("r", offset, tokens, (-0.5,) * count, (version,) * count, end)


def request(
    name: str = "r",
    *,
    trajectory: str = "t",
    domain: str = "a",
    max_tokens: int = 10,
    placement: int | None = None,
) -> GenerationRequest:
    sampling = Sampling(max_tokens=max_tokens, stop_token_ids=(0,))
    return GenerationRequest(name, (7, 8), sampling, trajectory, domain, placement)


STOP = FinishReason.STOP


def says(*acts: Chunk | Exception | float) -> Script:
    return lambda request: acts


async def test_chunks_are_joined_to_one_generation() -> None:
    worker = Scripted("w", says(chunk(0, 1, 2), chunk(2, 3, version=1), chunk(3, 0, end=STOP)))
    generation = await LLMProxy([worker], EventLog()).generate(request())
    assert generation.token_ids == (1, 2, 3, 0)
    assert generation.versions == (0, 0, 1, 0)
    assert generation.logprobs == (-0.5,) * 4
    assert (generation.finish_reason, generation.worker, generation.hardware) == (STOP, "w", "H20")
    assert worker.aborted == []


async def test_what_arrives_twice_or_overlaps_counts_once() -> None:
    acts = [chunk(0, 1, 2), chunk(0, 1, 2), chunk(1, 2, 3), chunk(0, 1), chunk(3, 0, end=STOP)]
    generation = await LLMProxy([Scripted("w", says(*acts))], EventLog()).generate(request())
    assert generation.token_ids == (1, 2, 3, 0)


async def test_the_version_of_the_first_token_is_told_while_the_rest_is_generated() -> None:
    told: list[tuple[float, int]] = []
    worker = Scripted("w", says(5.0, chunk(0, 1, version=3), 5.0, chunk(1, 0, end=STOP)))
    loop = asyncio.get_running_loop()
    await LLMProxy([worker], EventLog()).generate(
        request(), lambda version: told.append((loop.time(), version))
    )
    assert told == [(5.0, 3)]


async def test_a_lost_worker_is_left_and_the_rest_is_generated_elsewhere() -> None:
    log = EventLog()
    dying = Scripted("dying", says(chunk(0, 1, 2), EngineError("out of memory")))
    heir = Scripted("heir", says(chunk(0, 3, version=1), chunk(1, 0, end=STOP, version=1)))
    proxy = LLMProxy([dying], log)
    generation = asyncio.create_task(proxy.generate(request()))
    proxy.add(heir)
    done = await generation
    assert done.token_ids == (1, 2, 3, 0)
    assert done.versions == (0, 0, 1, 1)
    assert done.worker == "heir"
    (rest,) = heir.requests
    assert rest.prompt_ids == (7, 8, 1, 2)
    assert rest.sampling.max_tokens == 8
    assert rest.request_id != "r"
    assert proxy.workers == ("heir",)
    (crash,) = log.of(EventKind.CRASH)
    assert (crash.subject, crash.reason) == ("dying", Reason.WORKER_LOST)
    (retry,) = log.of(EventKind.RETRY)
    assert (retry.subject, retry.detail["tokens"]) == ("t", 2)


@pytest.mark.parametrize(
    ("tokens", "reason"), [((1, 0), FinishReason.STOP), ((1, 2), FinishReason.LENGTH)]
)
async def test_nothing_is_asked_again_where_only_the_last_word_was_lost(
    tokens: tuple[int, ...], reason: FinishReason
) -> None:
    dying = Scripted("dying", says(chunk(0, *tokens), EngineError("gone")))
    heir = Scripted("heir", says())
    proxy = LLMProxy([dying], EventLog())
    generation = asyncio.create_task(proxy.generate(request(max_tokens=2)))
    proxy.add(heir)
    assert (await generation).finish_reason is reason
    assert (await generation).token_ids == tokens
    assert heir.requests == []


async def test_without_any_worker_the_tokens_so_far_come_with_the_error() -> None:
    proxy = LLMProxy([Scripted("w", says(chunk(0, 1), EngineError("gone")))], EventLog())
    with pytest.raises(GenerationFailedError, match="gone") as caught:
        await proxy.generate(request())
    assert caught.value.partial is not None
    assert caught.value.partial.token_ids == (1,)
    with pytest.raises(EngineError, match="no inference worker is left"):
        await proxy.generate(request())


async def test_a_refused_request_costs_no_worker() -> None:
    refusal = RequestRefusedError("the prompt is longer than the context")
    proxy = LLMProxy([Scripted("w", says(refusal))], EventLog())
    with pytest.raises(EngineError, match="longer than the context"):
        await proxy.generate(request())
    assert proxy.workers == ("w",)


async def test_a_request_that_kills_its_workers_does_not_kill_them_all() -> None:
    workers = [Scripted(f"w{i}", says(EngineError("boom"))) for i in range(5)]
    proxy = LLMProxy(workers, EventLog())
    with pytest.raises(EngineError, match="boom"):
        await proxy.generate(request())
    assert len(proxy.workers) == 3


async def test_a_missing_chunk_is_generated_again_and_the_worker_stays() -> None:
    acts = {"r": [chunk(0, 1), chunk(2, 3)], "r~1": [chunk(0, 2, 3), chunk(2, 0, end=STOP)]}
    worker = Scripted("w", lambda request: acts[request.request_id])
    proxy = LLMProxy([worker], EventLog())
    assert (await proxy.generate(request())).token_ids == (1, 2, 3, 0)
    await proxy.close()
    assert worker.aborted == ["r"]
    assert proxy.workers == ("w",)


async def test_a_stream_that_just_ends_is_a_lost_worker() -> None:
    proxy = LLMProxy([Scripted("w", says(chunk(0, 1)))], EventLog())
    with pytest.raises(EngineError, match="ended r without a reason"):
        await proxy.generate(request())


async def test_a_chunk_whose_lists_differ_in_length_is_refused() -> None:
    torn = Chunk("r", 0, (1, 2), (-0.5,), (0, 0))
    proxy = LLMProxy([Scripted("w", says(torn))], EventLog())
    with pytest.raises(EngineError, match="a chunk of 2 tokens has 1 logprobs"):
        await proxy.generate(request())


async def test_an_abort_returns_the_tokens_so_far_at_once() -> None:
    worker = Scripted("w", says(chunk(0, 1, 2), 1e6, chunk(2, 0, end=STOP)))
    proxy = LLMProxy([worker], EventLog())
    generation = asyncio.create_task(proxy.generate(request()))
    await asyncio.sleep(5)
    proxy.abort("r")
    proxy.abort("r")
    done = await generation
    assert done.token_ids == (1, 2)
    assert done.finish_reason is FinishReason.ABORT
    assert asyncio.get_running_loop().time() == 5
    await proxy.close()
    assert worker.aborted == ["r"]
    assert worker.closed == ["r"]


async def test_a_request_that_is_in_progress_is_not_taken_twice() -> None:
    proxy = LLMProxy([Scripted("w", says(10.0, chunk(0, 0, end=STOP)))], EventLog())
    first = asyncio.create_task(proxy.generate(request()))
    await asyncio.sleep(1)
    with pytest.raises(ValueError, match="'r' is in progress already"):
        await proxy.generate(request())
    assert (await first).token_ids == (0,)


async def test_an_abort_of_an_unknown_request_is_ignored() -> None:
    LLMProxy([], EventLog()).abort("nobody")


async def test_a_cancelled_caller_is_cancelled_and_its_request_aborted() -> None:
    worker = Scripted("w", says(chunk(0, 1), 1e6))
    proxy = LLMProxy([worker], EventLog())
    generation = asyncio.create_task(proxy.generate(request()))
    await asyncio.sleep(1)
    generation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await generation
    await proxy.close()
    assert worker.aborted == ["r"]


async def test_an_abort_does_not_swallow_a_cancellation_from_elsewhere() -> None:
    proxy = LLMProxy([Scripted("w", says(1e6))], EventLog())
    generation = asyncio.create_task(proxy.generate(request()))
    await asyncio.sleep(1)
    proxy.abort("r")
    generation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await generation


async def test_a_trajectory_stays_on_its_worker_until_it_is_released() -> None:
    workers = [Scripted(f"w{i}", says(chunk(0, 0, end=STOP))) for i in range(4)]
    proxy = LLMProxy(workers, EventLog())
    used = {(await proxy.generate(request(f"r{i}"))).worker for i in range(10)}
    assert len(used) == 1
    proxy.release("t")
    proxy.remove(used.pop())
    assert (await proxy.generate(request())).worker in proxy.workers


async def test_a_released_trajectory_may_be_placed_anew() -> None:
    busy = Scripted("busy", lambda r: [1e6] if r.request_id == "long" else [chunk(0, 0, end=STOP)])
    proxy = LLMProxy([busy], EventLog())
    await proxy.generate(request("r0"))
    long = asyncio.create_task(proxy.generate(request("long", trajectory="other")))
    await asyncio.sleep(1)
    proxy.add(Scripted("free", says(chunk(0, 0, end=STOP))))
    assert (await proxy.generate(request("r1"))).worker == "busy"
    proxy.release("t")
    assert (await proxy.generate(request("r2"))).worker == "free"
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
    await proxy.close()


async def test_a_stream_is_closed_once_it_has_said_that_it_ends() -> None:
    worker = Scripted("w", says(chunk(0, 0, end=STOP), 1e6))
    await LLMProxy([worker], EventLog()).generate(request())
    assert worker.closed == ["r"]
    assert worker.aborted == []


async def test_new_trajectories_go_to_the_least_loaded_worker() -> None:
    workers = [Scripted(f"w{i}", says(10.0, chunk(0, 0, end=STOP))) for i in range(3)]
    proxy = LLMProxy(workers, EventLog())
    await asyncio.gather(*(proxy.generate(request(f"r{i}", trajectory=f"t{i}")) for i in range(12)))
    assert [len(worker.requests) for worker in workers] == [4, 4, 4]


async def test_clients_without_load_spread_over_the_workers() -> None:
    first: list[str] = []
    for client in range(60):
        workers = [Scripted(f"w{i}", says(chunk(0, 0, end=STOP))) for i in range(3)]
        name = f"t{client}"
        done = await LLMProxy(workers, EventLog()).generate(request(trajectory=name))
        first.append(done.worker)
    assert all(first.count(f"w{i}") > 8 for i in range(3))


async def place(proxy: LLMProxy, group: int, attempt: int = 0) -> str:
    """Worker of an attempt whose group shares one."""
    name = f"{group}-{attempt}"
    return (await proxy.generate(request(name, trajectory=name, placement=group))).worker


async def test_one_worker_decodes_a_group_whatever_its_load_and_whoever_asks() -> None:
    pause = says(1.0, chunk(0, 0, end=STOP))
    names = ["w2", "w0", "w1"]
    one = LLMProxy([Scripted(name, pause) for name in names], EventLog())
    other = LLMProxy([Scripted(name, pause) for name in sorted(names)], EventLog())
    attempts = [place(proxy, 5, i) for i, proxy in enumerate([one, other] * 4)]
    assert len(set(await asyncio.gather(*attempts))) == 1
    one.release("5-0")
    assert await place(one, 5, 9) == await place(other, 5, 9)


async def test_groups_are_dealt_evenly_and_so_are_those_of_domains_that_take_turns() -> None:
    proxy = LLMProxy([Scripted(f"w{i}", says(chunk(0, 0, end=STOP))) for i in range(2)], EventLog())
    dealt = [await place(proxy, group) for group in range(80)]
    assert all(set(dealt[i : i + 2]) == {"w0", "w1"} for i in range(0, 80, 2))
    assert 10 <= dealt[::2].count("w0") <= 30


async def test_a_group_without_its_worker_moves_together_and_comes_back() -> None:
    proxy = LLMProxy([Scripted(f"w{i}", says(chunk(0, 0, end=STOP))) for i in range(4)], EventLog())
    home = await place(proxy, 7)
    proxy.remove(home)
    moved = {await place(proxy, 7, attempt) for attempt in range(4)}
    assert len(moved) == 1
    assert home not in moved
    proxy.add(Scripted(home, says(chunk(0, 0, end=STOP))))
    assert await place(proxy, 7) == home


async def test_a_group_stays_on_the_hardware_of_its_domain() -> None:
    end = says(chunk(0, 0, end=STOP))
    workers = [Scripted(f"w{i}", end, "H800" if i % 2 else "H20") for i in range(4)]
    proxy = LLMProxy(workers, EventLog(), hw_affinity={"a": "H800"})
    assert {await place(proxy, group) for group in range(12)} == {"w1", "w3"}


async def test_domains_are_served_by_the_hardware_that_they_are_bound_to() -> None:
    end = says(chunk(0, 0, end=STOP))
    workers = [Scripted("big", end, "H800"), Scripted("small", end, "H20")]
    proxy = LLMProxy(workers, EventLog(), hw_affinity={"lake": "H800", "default": "H20"})
    lake = await proxy.generate(request(trajectory="t1", domain="lake"))
    other = await proxy.generate(request(trajectory="t2", domain="sums"))
    assert (lake.hardware, other.hardware) == ("H800", "H20")


async def test_a_domain_falls_back_to_what_there_is_with_one_event() -> None:
    log = EventLog()
    worker = Scripted("w", says(chunk(0, 0, end=STOP)), "CPU")
    proxy = LLMProxy([worker], log, hw_affinity={"lake": "H800"})
    for i in range(5):
        done = await proxy.generate(request(trajectory=f"t{i}", domain="lake"))
        assert done.worker == "w"
        await proxy.generate(request(trajectory=f"u{i}", domain="unbound"))
    (fallback,) = log.of(EventKind.FALLBACK)
    assert fallback.domain == "lake"
    assert fallback.detail == {"wanted": "H800", "used": ["CPU"]}


async def test_a_worker_that_is_back_is_used_again() -> None:
    proxy = LLMProxy([Scripted("w", says(EngineError("gone")))], EventLog())
    with pytest.raises(EngineError):
        await proxy.generate(request())
    proxy.add(Scripted("w", says(chunk(0, 0, end=STOP))))
    assert (await proxy.generate(request())).token_ids == (0,)


async def test_kept_token_sets_stay_with_their_tokens() -> None:
    sampling = Sampling(top_p=0.9, max_tokens=4)
    kept = ((1, 2), (3,))
    ends = Chunk("r", 0, (1, 3), (-0.1, -0.2), (0, 0), STOP, kept)
    proxy = LLMProxy([Scripted("w", says(ends))], EventLog())
    done = await proxy.generate(GenerationRequest("r", (7,), sampling))
    assert done.kept == kept


class Nurse:
    """Brings workers back after a while, or says that it cannot."""

    def __init__(self, answer: bool | Exception, seconds: float = 60.0) -> None:
        self._answer = answer
        self._seconds = seconds
        self.asked: list[str] = []

    async def __call__(self, worker: Inference) -> list[Inference]:
        self.asked.append(worker.worker)
        await asyncio.sleep(self._seconds)
        if isinstance(self._answer, Exception):
            raise self._answer
        return [worker] if self._answer else []


def once_dead(*then: Chunk) -> Script:
    """A worker that dies at its first request and is well afterwards."""
    acts: list[Sequence[Chunk | Exception | float]] = [[EngineError("gone")]]
    return lambda request: acts.pop() if acts else then


async def test_requests_wait_for_the_last_worker_to_come_back() -> None:
    nurse = Nurse(True)
    proxy = LLMProxy([Scripted("w", once_dead(chunk(0, 0, end=STOP)))], EventLog(), recover=nurse)
    names = [f"r{i}" for i in range(3)]
    done = await asyncio.gather(*(proxy.generate(request(n, trajectory=n)) for n in names))
    assert [generation.token_ids for generation in done] == [(0,)] * 3
    assert nurse.asked == ["w"]
    assert proxy.workers == ("w",)
    await proxy.close()


async def test_nobody_waits_for_a_worker_while_another_is_in_use() -> None:
    nurse = Nurse(True)
    workers = [Scripted("w0", once_dead()), Scripted("w1", says(chunk(0, 0, end=STOP)))]
    proxy = LLMProxy(workers, EventLog(), recover=nurse, hw_affinity={"a": "H20"})
    for i in range(4):
        await proxy.generate(request(f"r{i}", trajectory=f"t{i}"))
    assert asyncio.get_running_loop().time() < 60
    await asyncio.sleep(100)
    assert set(proxy.workers) == {"w0", "w1"}
    await proxy.close()


@pytest.mark.parametrize("answer", [False, EngineError("no such worker")])
async def test_a_worker_that_never_comes_back_fails_those_who_wait(
    answer: bool | Exception,
) -> None:
    proxy = LLMProxy([Scripted("w", once_dead())], EventLog(), recover=Nurse(answer))
    with pytest.raises(GenerationFailedError, match="no inference worker is left"):
        await proxy.generate(request())
    await proxy.close()


async def test_closing_gives_recoveries_up() -> None:
    proxy = LLMProxy([Scripted("w", once_dead())], EventLog(), recover=Nurse(True, 1e9))
    generation = asyncio.create_task(proxy.generate(request()))
    await asyncio.sleep(1)
    await proxy.close()
    with pytest.raises(GenerationFailedError):
        await generation
    assert len(asyncio.all_tasks()) == 1


async def test_requests_of_a_worker_that_leaves_go_on_elsewhere_and_it_is_no_crash() -> None:
    log = EventLog()
    leaves: list[Sequence[Chunk | Exception | float]] = [
        [WorkerLeftError("left")] for _ in range(3)
    ]
    leaving = Scripted("w0", lambda request: leaves.pop())
    stays = Scripted("w1", says(chunk(0, 0, end=STOP)))

    async def replaced(worker: Inference) -> list[Inference]:
        return [stays]

    proxy = LLMProxy([leaving], log, recover=replaced)
    done = await proxy.generate(request())
    assert (done.token_ids, done.worker) == ((0,), "w1")
    assert proxy.workers == ("w1",)
    (retry,) = log.of(EventKind.RETRY)
    assert retry.reason is Reason.WORKER_LEFT
    assert not log.of(EventKind.CRASH)
    await proxy.close()


async def test_however_often_workers_leave_a_request_is_not_given_up() -> None:
    leaves: list[Sequence[Chunk | Exception | float]] = [[WorkerLeftError("left")]] * 5
    worker = Scripted("w", lambda request: leaves.pop() if leaves else [chunk(0, 0, end=STOP)])
    proxy = LLMProxy([worker], EventLog(), recover=Nurse(True))
    assert (await proxy.generate(request())).token_ids == (0,)
    await proxy.close()


async def test_a_worker_serves_the_classes_that_it_stands_for() -> None:
    log = EventLog()
    stand_in = Scripted("cpu", says(chunk(0, 0, end=STOP)), hardware="CPU")
    stand_in.classes = frozenset(("CPU", "H800"))
    other = Scripted("h20", says(chunk(0, 0, end=STOP)), hardware="H20")
    affinity = {"a": "H800", "default": "H20"}
    proxy = LLMProxy([stand_in, other], log, hw_affinity=affinity)
    done = await proxy.generate(request(domain="a"))
    assert (done.worker, done.hardware) == ("cpu", "CPU")
    assert not log.of(EventKind.FALLBACK), "it was reported as it was placed"
    await proxy.close()
