"""Prompts are computed ahead where a worker can, and every request is decoded all the same."""

import asyncio
from dataclasses import replace

import pytest

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.loop.waits import Signal
from rollart_flow.control.protocols import Inference
from rollart_flow.errors import EngineError, RequestRefusedError
from rollart_flow.types import Chunk, EventKind, FinishReason, GenerationRequest, Prefix, Reason
from tests.control.inference.test_llm_proxy import STOP, Script, Scripted, chunk, request, says
from tests.dst.log import EventLog

HELD = Prefix(3, "block 7")


def holds(prefix: Prefix | None = HELD) -> Script:
    """A prefill worker that holds every prompt."""
    return lambda asked: [Chunk(asked.request_id, 0, (), (), (), FinishReason.LENGTH, (), prefix)]


DONE = says(chunk(0, 1, 0, end=STOP))


async def test_a_request_goes_to_a_prefill_worker_and_what_that_holds_to_a_decode_worker() -> None:
    prefill, decode = Scripted("p", holds()), Scripted("d", DONE)
    proxy = LLMProxy([decode], EventLog(), prefill=[prefill])
    generation = await proxy.generate(request())
    assert prefill.requests == [replace(request(), request_id="r/prefill", prefill_only=True)]
    assert decode.requests == [replace(request(), prefix=HELD)]
    assert generation.token_ids == (1, 0)
    assert (generation.worker, generation.prefilled_by) == ("d", "p")
    assert prefill.aborted == decode.aborted == []


async def test_both_kinds_keep_to_a_trajectory_and_share_the_load() -> None:
    prefills = [Scripted(name, holds()) for name in ("p0", "p1")]
    decodes = [Scripted(name, DONE) for name in ("d0", "d1")]
    proxy = LLMProxy(decodes, EventLog(), prefill=prefills)
    for turn in range(3):
        trajectories = [f"t{number}" for number in range(8)]
        asked = [request(f"{name}/{turn}", trajectory=name) for name in trajectories]
        await asyncio.gather(*(proxy.generate(each) for each in asked))
    for workers in (prefills, decodes):
        served = [{each.trajectory_id for each in worker.requests} for worker in workers]
        assert served[0] | served[1] == set(trajectories)
        assert not served[0] & served[1]
        assert [len(each) for each in served] == [4, 4]


async def test_a_group_has_its_prompt_computed_by_one_worker() -> None:
    prefills = [Scripted(name, holds()) for name in ("p0", "p1")]
    proxy = LLMProxy([Scripted("d", DONE)], EventLog(), prefill=prefills)
    for attempt in range(4):
        await proxy.generate(request(f"r{attempt}", trajectory=f"t{attempt}", placement=5))
    assert sorted(len(worker.requests) for worker in prefills) == [0, 4]


async def test_where_a_prefill_worker_dies_another_one_computes_the_prompt() -> None:
    log = EventLog()
    dying = Scripted("a", says(1.0, EngineError("gone")))
    heir = Scripted("b", lambda asked: [1.0, *holds()(asked)])
    proxy = LLMProxy([Scripted("d", DONE)], log, prefill=[dying, heir])
    asked = [request(f"r{number}", trajectory=f"t{number}") for number in range(4)]
    done = await asyncio.gather(*(proxy.generate(each) for each in asked))
    assert {generation.prefilled_by for generation in done} == {"b"}
    sent = len(dying.requests)
    await proxy.generate(request("later", trajectory=dying.requests[0].trajectory_id))
    assert 0 < len(dying.requests) == sent, "it is asked no more"
    (crash,) = log.of(EventKind.CRASH)
    assert (crash.subject, crash.reason) == ("a", Reason.WORKER_LOST)


async def test_where_none_is_left_decode_workers_compute_prompts_themselves() -> None:
    decode = Scripted("d", DONE)
    proxy = LLMProxy([decode], EventLog(), prefill=[Scripted("p", says(EngineError("gone")))])
    generation = await proxy.generate(request())
    assert decode.requests == [request()]
    assert (generation.token_ids, generation.prefilled_by) == ((1, 0), "")


async def test_a_request_is_sent_to_two_prefill_workers_at_most() -> None:
    prefills = [Scripted(f"p{i}", says(EngineError("out of memory"))) for i in range(4)]
    proxy = LLMProxy([Scripted("d", DONE)], EventLog(), prefill=prefills)
    await proxy.generate(request())
    assert sum(len(worker.requests) for worker in prefills) == 2


async def test_a_prefill_worker_that_comes_back_is_used_again() -> None:
    back = Signal()
    first, second = Scripted("p", says(EngineError("killed"))), Scripted("p", holds())

    async def recover(worker: Inference) -> list[Inference]:
        assert worker is first
        back.notify()
        return [second]

    proxy = LLMProxy([Scripted("d", DONE)], EventLog(), prefill=[first], recover=recover)
    told = asyncio.create_task(back.wait())
    assert (await proxy.generate(request())).prefilled_by == "", "it is not waited for"
    await told
    await asyncio.sleep(0)
    assert (await proxy.generate(request("r2"))).prefilled_by == "p"


async def test_what_a_prefill_worker_refuses_is_put_to_the_decode_worker() -> None:
    log, decode = EventLog(), Scripted("d", DONE)
    refusing = Scripted("p", says(RequestRefusedError("too long")))
    proxy = LLMProxy([decode], log, prefill=[refusing])
    assert (await proxy.generate(request())).prefilled_by == ""
    assert not log.of(EventKind.CRASH), "it is well"


async def test_a_worker_that_holds_nothing_is_not_fetched_from() -> None:
    decode = Scripted("d", DONE)
    await LLMProxy([decode], EventLog(), prefill=[Scripted("p", holds(None))]).generate(request())
    assert decode.requests == [request()]


async def test_a_request_that_goes_on_elsewhere_has_its_tokens_computed_ahead_too() -> None:
    prefill = Scripted("p", holds())
    dying = Scripted("a", says(chunk(0, 1, 2), EngineError("gone")))
    heir = Scripted("b", says(chunk(0, 3, 0, end=STOP)))
    proxy = LLMProxy([dying], EventLog(), prefill=[prefill])
    generation = asyncio.create_task(proxy.generate(request()))
    proxy.add(heir)
    assert (await generation).token_ids == (1, 2, 3, 0)
    assert [each.prompt_ids for each in prefill.requests] == [(7, 8), (7, 8, 1, 2)]
    await proxy.close()
    assert prefill.aborted == ["r/prefill"], "what the dead one did not fetch is given up"


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_an_abort_reaches_whoever_computes_or_holds_the_prompt(phase: str) -> None:
    def slow(asked: GenerationRequest) -> list[Chunk | Exception | float]:
        return [10.0, *holds()(asked)] if phase == "prefill" else list(holds()(asked))

    prefill, decode = Scripted("p", slow), Scripted("d", says(10.0, chunk(0, 0, end=STOP)))
    proxy = LLMProxy([decode], EventLog(), prefill=[prefill])
    generation = asyncio.create_task(proxy.generate(request()))
    await asyncio.sleep(5.0)
    proxy.abort("r")
    assert (await generation).finish_reason is FinishReason.ABORT
    await proxy.close()
    assert prefill.aborted == ["r/prefill"]
    assert decode.aborted == (["r"] if phase == "decode" else [])
