"""The embedded engine keeps the promises of every engine, and what its own parts add."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from rollart_flow.engines.base import Engine
from rollart_flow.engines.embedded import EmbeddedEngine
from rollart_flow.engines.registry import EngineOptions, build_engine
from rollart_flow.errors import EngineError, SettingsError
from rollart_flow.models.cached import CachedQwen3
from rollart_flow.models.folder import load_folder
from rollart_flow.models.policy import Policy
from rollart_flow.types import Chunk, FinishReason, GenerationRequest, Sampling
from tests.engines.conformance import (
    CONTEXT,
    EngineConformance,
    Reference,
    ask,
    folders,
    generate,
    join,
    one_thread,
    prompt,
    reference,
)

__all__ = ["folders", "one_thread", "reference"]  # fixtures


class TestEmbeddedEngine(EngineConformance):
    """All that holds for every engine; with few rows, so that they are reused and exchanged."""

    def make(self, folder: Path) -> Engine:
        """Small in every respect."""
        return EmbeddedEngine(
            *load_folder(folder), seed=5, max_batch=12, cached_rows=9, chunk_tokens=4
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestEmbeddedEngineOnAGpu(EngineConformance):
    """The same where a GPU computes, with captured steps."""

    tolerance = 1e-3

    def make(self, folder: Path) -> Engine:
        """In float32, as what it is compared with."""
        return EmbeddedEngine(
            *load_folder(folder), seed=5, device="cuda", max_batch=12, cached_rows=9, chunk_tokens=4
        )

    def test_what_it_holds_while_suspended_does_not_grow(self, folders: tuple[Path, Path]) -> None:
        held: list[int] = []

        async def scenario(engine: Engine) -> None:
            for turn in range(5):
                await generate(engine, ask(f"turn {turn}", prompt(turn, 40)))
                await engine.suspend()
                await engine.release()
                held.append(torch.cuda.memory_reserved())
                await engine.resume()

        self.serve(folders, scenario)
        assert held[1:] == [held[1]] * 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused(folders: tuple[Path, Path]) -> None:
    wanted = r"^policy\.device='cuda': torch .* sees no GPU in this process; set policy\.device=cpu"
    with pytest.raises(SettingsError, match=wanted):
        build_engine(
            Policy.tiny(device="cuda", max_context=CONTEXT), str(folders[0]), EngineOptions(seed=0)
        )


@pytest.fixture
def prefilled() -> Any:
    """Tokens that are computed ahead of decoding, one entry a call."""
    counts: list[int] = []
    original = CachedQwen3.prefill

    def counted(self: CachedQwen3, *arguments: Any) -> None:
        counts.append(int(arguments[-1].sum()))
        original(self, *arguments)

    with patch.object(CachedQwen3, "prefill", counted):
        yield counts


def run(engine: EmbeddedEngine, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario in a loop and close the engine."""

    async def main() -> None:
        try:
            await scenario()
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_next_turn_computes_only_what_is_new(
    folders: tuple[Path, Path], prefilled: list[int]
) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]))

    async def scenario() -> None:
        first = await generate(engine, ask("a", prompt(1, 40)))
        assert prefilled == [39]
        chain = (*prompt(1, 40), *first.token_ids, *prompt(2, 10))
        await generate(engine, ask("b", chain))
        # of 58 tokens 47 were held, and the last is fed by the decode step
        assert prefilled == [39, 10]

    run(engine, scenario)


def test_attempts_at_one_prompt_share_its_computation(
    folders: tuple[Path, Path], prefilled: list[int]
) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]))

    async def scenario() -> None:
        group = [ask(f"{i}", prompt(1, 40)) for i in range(8)]
        answers = await asyncio.gather(*(generate(engine, request) for request in group))
        assert prefilled == [39]
        assert len({answer.token_ids for answer in answers}) > 1
        await generate(engine, ask("later", (*prompt(1, 40), *prompt(3, 5))))
        assert prefilled[0] == 39
        assert prefilled[1] <= 4  # fewer where what was drawn begins as this prompt goes on

    run(engine, scenario)


def test_prefixes_are_kept_up_to_the_bound_and_the_oldest_go_first(
    folders: tuple[Path, Path], prefilled: list[int]
) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]), max_batch=1, cached_rows=2)

    async def scenario() -> None:
        for index in (1, 2, 3, 1, 4):  # 1 is used again, so 4 takes the place of 2
            await generate(engine, ask(f"{index}-{len(prefilled)}", prompt(index, 30)))
        prefilled.clear()
        await generate(engine, ask("x", prompt(1, 30)))
        assert prefilled == []
        await generate(engine, ask("y", prompt(2, 30)))
        assert prefilled == [29]

    run(engine, scenario)


def test_new_weights_forget_every_prefix(
    folders: tuple[Path, Path], reference: Reference, prefilled: list[int]
) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]))

    async def scenario() -> None:
        await generate(engine, ask("a", prompt(1, 40)))
        await engine.load(1, load_folder(folders[1])[1])
        request = ask("b", prompt(1, 40))
        answer = await generate(engine, request)
        assert prefilled == [39, 39]
        assert answer.logprobs == pytest.approx(reference.logprobs(request, answer), abs=1e-5)

    run(engine, scenario)


def test_a_released_engine_holds_no_cache_until_it_goes_on(folders: tuple[Path, Path]) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]))
    cache = engine._batch._cache.tensors

    async def scenario() -> None:
        whole = cache.keys.nbytes + cache.values.nbytes
        await generate(engine, ask("a", prompt(1, 40)))
        await engine.suspend()
        assert await engine.release() == whole
        assert cache.keys.nbytes + cache.values.nbytes == 0
        await engine.resume()
        assert cache.keys.nbytes + cache.values.nbytes == whole

    run(engine, scenario)


def test_draws_depend_on_seed_and_request_and_not_on_batch_mates(
    folders: tuple[Path, Path],
) -> None:
    request = ask("a", prompt(1, 20), Sampling(max_tokens=40))

    def drawn(seed: int, request: GenerationRequest, mates: int) -> tuple[int, ...]:
        engine = EmbeddedEngine(*load_folder(folders[0]), seed=seed, max_batch=8)
        answers = []

        async def scenario() -> None:
            others = [ask(f"mate {i}", prompt(i, 5 * i + 1)) for i in range(mates)]
            answers.extend(await asyncio.gather(*(generate(engine, r) for r in (*others, request))))

        run(engine, scenario)
        return answers[-1].token_ids

    alone = drawn(3, request, 0)
    assert drawn(3, request, 20) == alone
    assert drawn(4, request, 0) != alone
    assert drawn(3, replace(request, request_id="b"), 0) != alone


def test_a_request_continues_elsewhere_with_the_same_random_numbers(
    folders: tuple[Path, Path],
) -> None:
    whole = ask("a", prompt(1, 20), Sampling(max_tokens=40))
    answers = []

    async def scenario() -> None:
        answers.append(await generate(engine, whole))

    engine = EmbeddedEngine(*load_folder(folders[0]), seed=3)
    run(engine, scenario)
    tokens = answers[0].token_ids
    rest = replace(whole, prompt_ids=(*whole.prompt_ids, *tokens[:15]))
    whole = replace(rest, sampling=Sampling(max_tokens=25))
    engine = EmbeddedEngine(*load_folder(folders[0]), seed=3)
    run(engine, scenario)
    assert answers[1].token_ids == tokens[15:]


def test_a_short_answer_is_one_chunk_and_a_long_one_several(folders: tuple[Path, Path]) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]), chunk_tokens=10)

    async def scenario() -> None:
        for tokens, wanted in ((7, [7]), (10, [10]), (25, [10, 10, 5])):
            request = ask(str(tokens), prompt(1, 20), Sampling(max_tokens=tokens))
            chunks = [chunk async for chunk in engine.generate(request)]
            assert [len(chunk.token_ids) for chunk in chunks] == wanted

    run(engine, scenario)


def test_suspend_delivers_what_was_drawn_and_nothing_follows(folders: tuple[Path, Path]) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]), chunk_tokens=1000)
    chunks: list[Chunk] = []

    async def follow() -> None:
        async for chunk in engine.generate(ask("a", prompt(1, 20), Sampling(max_tokens=100))):
            chunks.append(chunk)

    async def scenario() -> None:
        original, steps, seventh = CachedQwen3.decode, count(1), asyncio.Event()

        def counted(*arguments: Any) -> torch.Tensor:
            if next(steps) == 7:
                seventh.set()
            return original(*arguments)

        task = asyncio.create_task(follow())
        with patch.object(CachedQwen3, "decode", counted):
            await seventh.wait()
            await engine.suspend()
            drawn = next(steps)
            for _ in range(50):
                await asyncio.sleep(0)
            assert next(steps) == drawn + 1
        assert [len(chunk.token_ids) for chunk in chunks] == [drawn - 1]
        await engine.resume()
        await task
        assert len(join(chunks).token_ids) == 100

    run(engine, scenario)


def test_suspend_wins_over_a_request_of_the_same_moment(folders: tuple[Path, Path]) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]))

    async def scenario() -> None:
        await generate(engine, ask("first", prompt(1, 5)))  # the steps' task is waiting now
        late = asyncio.create_task(generate(engine, ask("late", prompt(1, 20))))
        await asyncio.sleep(0)
        with patch.object(CachedQwen3, "decode", side_effect=AssertionError("drew a token")):
            await engine.suspend()
            for _ in range(10):
                await asyncio.sleep(0)
        await engine.resume()
        assert len((await late).token_ids) == 8

    run(engine, scenario)


def test_weights_that_are_not_finite_end_the_requests_and_harm_no_later_one(
    folders: tuple[Path, Path], reference: Reference
) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]))

    async def scenario() -> None:
        _, tensors = load_folder(folders[1])
        broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}
        await engine.load(1, broken)
        requests = [ask(str(index), prompt(index, 20)) for index in range(3)]
        errors = await asyncio.gather(
            *(generate(engine, request) for request in requests), return_exceptions=True
        )
        assert [type(error) for error in errors] == [EngineError] * 3
        assert "version 1" in str(errors[0])
        assert "not finite" in str(errors[0])
        await engine.load(1, tensors)
        answer = await generate(engine, requests[0])
        wanted = reference.logprobs(requests[0], answer)
        assert answer.logprobs == pytest.approx(wanted, abs=1e-5)

    run(engine, scenario)


def test_loaded_tensors_may_change_afterwards(
    folders: tuple[Path, Path], reference: Reference
) -> None:
    config, tensors = load_folder(folders[0])
    engine = EmbeddedEngine(config, tensors)

    async def scenario() -> None:
        for tensor in tensors.values():
            tensor.zero_()
        request = ask("a", prompt(1, 20))
        answer = await generate(engine, request)
        wanted = reference.logprobs(request, answer)
        assert answer.logprobs == pytest.approx(wanted, abs=1e-5)

    run(engine, scenario)


def test_bfloat16_stays_near_float32(folders: tuple[Path, Path], reference: Reference) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]), dtype="bfloat16")

    async def scenario() -> None:
        request = ask("a", prompt(1, 30), Sampling(max_tokens=30))
        answer = await generate(engine, request)
        wanted = reference.logprobs(request, answer)
        assert answer.logprobs == pytest.approx(wanted, abs=0.2)
        assert answer.logprobs != pytest.approx(wanted, abs=1e-5)

    run(engine, scenario)


def test_a_prompt_that_fills_the_context_ends_at_once(folders: tuple[Path, Path]) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]))

    async def scenario() -> None:
        answer = await generate(engine, ask("a", prompt(1, CONTEXT)))
        assert (answer.token_ids, answer.finish_reason) == ((), FinishReason.LENGTH)

    run(engine, scenario)


def test_two_requests_of_one_id_are_refused(folders: tuple[Path, Path]) -> None:
    engine = EmbeddedEngine(*load_folder(folders[0]))

    async def scenario() -> None:
        first = asyncio.create_task(generate(engine, ask("a", prompt(1, 20))))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="in flight"):
            await generate(engine, ask("a", prompt(1, 20)))
        assert len((await first).token_ids) == 8

    run(engine, scenario)


def test_long_prompts_are_computed_in_pieces(
    folders: tuple[Path, Path],
    reference: Reference,
    prefilled: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollart_flow.engines.batch.PREFILL_TOKENS", 50)
    engine = EmbeddedEngine(*load_folder(folders[0]))

    async def scenario() -> None:
        requests = [ask(str(i), prompt(i, 140 - 30 * i)) for i in range(4)]
        answers = await asyncio.gather(*(generate(engine, request) for request in requests))
        assert max(prefilled) <= 50
        for request, answer in zip(requests, answers, strict=True):
            wanted = reference.logprobs(request, answer)
            assert answer.logprobs == pytest.approx(wanted, abs=1e-5)

    run(engine, scenario)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"device": "tpu"}, "device must be one of cpu, cuda"),
        ({"max_context": CONTEXT + 1}, "max_context"),
        ({"max_batch": 0}, "max_batch"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
    ],
)
def test_impossible_settings_are_refused(
    folders: tuple[Path, Path], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        EmbeddedEngine(*load_folder(folders[0]), **settings)
