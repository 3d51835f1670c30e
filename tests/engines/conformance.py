"""What every inference engine must do: subclass `EngineConformance` and say how one is made.

The reference is transformers: an engine's tokens are scored again by a forward of the weights that
they say they were drawn under, and every logprob must agree.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from rollart_flow.engines.base import Engine
from rollart_flow.errors import EngineError, RequestRefusedError, WeightsError
from rollart_flow.models.folder import load_folder, save_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.tokenizer import tokenizer_files
from rollart_flow.models.version_zero import materialize
from rollart_flow.types import Chunk, FinishReason, Generation, GenerationRequest, Sampling
from rollart_flow.types.token_ids import TokenIds

CONTEXT = 160
VOCABULARY = 105

Tensors = dict[str, torch.Tensor]


def sharpened(tensors: Tensors, seed: int) -> Tensors:
    """Weights far from the even distribution of fresh ones, another set for each seed."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + torch.randn(tensor.shape, generator=generator) * 0.15
        for name, tensor in tensors.items()
    }


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two sets of weights of one model, as Hugging Face folders."""
    root = tmp_path_factory.mktemp("models")
    materialize(Policy.tiny(hidden=32, heads=2, max_context=CONTEXT), root / "fresh")
    config, tensors = load_folder(root / "fresh")
    for seed in (0, 1):
        files = tokenizer_files(root / "fresh")
        save_folder(root / str(seed), config, sharpened(tensors, seed), files)
    return root / "0", root / "1"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Operators this small only lose by waiting for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Reference:
    """transformers' forward over both sets of weights."""

    def __init__(self, folders: Sequence[Path]) -> None:
        quiet: Any = transformers_logging.disable_progress_bar
        quiet()
        self.models = [AutoModelForCausalLM.from_pretrained(folder) for folder in folders]

    @torch.no_grad()
    def logits(self, version: int, tokens: Sequence[int]) -> torch.Tensor:
        """[len(tokens), vocabulary]."""
        logits: torch.Tensor = self.models[version](input_ids=torch.tensor([tokens])).logits[0]
        return logits

    def logprobs(self, request: GenerationRequest, generation: Generation) -> list[float]:
        """What each generated token's logprob must be."""
        sampling = request.sampling
        chain = (*request.prompt_ids, *generation.token_ids)
        by_version = {v: self.logits(v, chain) for v in set(generation.versions)}
        answer = []
        for index, token in enumerate(generation.token_ids):
            row = by_version[generation.versions[index]][len(request.prompt_ids) + index - 1]
            allowed = generation.kept[index] if generation.kept else sampling.allowed_token_ids
            if allowed:
                mask = torch.full_like(row, float("-inf"))
                mask[list(allowed)] = 0.0
                row = row + mask
            answer.append(float((row / (sampling.temperature or 1.0)).log_softmax(-1)[token]))
        return answer


@pytest.fixture(scope="session")
def reference(folders: tuple[Path, Path]) -> Reference:
    """The judge."""
    return Reference(folders)


def prompt(seed: int, tokens: int) -> tuple[int, ...]:
    """Random plain characters."""
    random = Random(seed)
    return tuple(random.randrange(5, VOCABULARY) for _ in range(tokens))


def ask(
    name: str, prompt_ids: Sequence[int], sampling: Sampling | None = None
) -> GenerationRequest:
    """A request; eight tokens unless told otherwise."""
    return GenerationRequest(name, prompt_ids, sampling or Sampling(max_tokens=8))


def join(chunks: Sequence[Chunk]) -> Generation:
    """A finished generation from its chunks, whose offsets must fit."""
    tokens: list[int] = []
    for chunk in chunks:
        assert chunk.offset == len(tokens)
        assert len(chunk.token_ids) == len(chunk.logprobs) == len(chunk.versions)
        tokens += chunk.token_ids
    reasons = [chunk.finish_reason for chunk in chunks]
    assert reasons[:-1] == [None] * (len(chunks) - 1)
    assert reasons[-1] is not None
    return Generation(
        token_ids=tuple(tokens),
        logprobs=tuple(value for chunk in chunks for value in chunk.logprobs),
        versions=tuple(version for chunk in chunks for version in chunk.versions),
        finish_reason=reasons[-1],
        kept=tuple(ids for chunk in chunks for ids in chunk.kept),
    )


async def generate(engine: Engine, request: GenerationRequest) -> Generation:
    """All of a request's answer."""
    return join([chunk async for chunk in engine.generate(request)])


class EngineConformance(ABC):
    """Tests of one engine. Names of tests are the promises of `Engine`."""

    tolerance = 1e-5
    """Of logprobs, in natural log."""
    releases = True
    """Whether it has memory to give back while it is suspended."""

    @abstractmethod
    def make(self, folder: Path) -> Engine:
        """An engine for version 0 in the folder, that streams chunks of a few tokens."""

    def serve(
        self,
        folders: tuple[Path, Path],
        scenario: Callable[[Engine], Awaitable[None]],
    ) -> None:
        """Run a scenario on a new engine and close it."""

        async def main() -> None:
            engine = self.make(folders[0])
            try:
                await scenario(engine)
            finally:
                await engine.close()

        asyncio.run(asyncio.wait_for(main(), 60))

    def agree(self, reference: Reference, request: GenerationRequest, answer: Generation) -> None:
        """Every logprob is the reference's."""
        wanted = reference.logprobs(request, answer)
        assert answer.logprobs == pytest.approx(wanted, abs=self.tolerance)

    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(max_tokens=20),
            Sampling(max_tokens=20, temperature=0.6),
            Sampling(max_tokens=20, temperature=1.4, allowed_token_ids=(7, 8, 40, 41)),
            Sampling(max_tokens=20, temperature=0.0),
            Sampling(max_tokens=20, temperature=0.0, allowed_token_ids=(7, 8, 40, 41)),
        ],
        ids=["plain", "temperature", "allowed", "greedy", "greedy-allowed"],
    )
    def test_logprobs_are_those_of_the_policy(
        self, folders: tuple[Path, Path], reference: Reference, sampling: Sampling
    ) -> None:
        async def scenario(engine: Engine) -> None:
            request = ask("a", prompt(1, 30), sampling)
            answer = await generate(engine, request)
            assert len(answer.token_ids) == 20
            assert answer.finish_reason is FinishReason.LENGTH
            assert set(answer.versions) == {0}
            if sampling.allowed_token_ids:
                assert set(answer.token_ids) <= set(sampling.allowed_token_ids)
            self.agree(reference, request, answer)

        self.serve(folders, scenario)

    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(max_tokens=20, top_k=3),
            Sampling(max_tokens=20, top_p=0.7),
            Sampling(max_tokens=20, top_p=0.8, top_k=5, temperature=0.9),
            Sampling(max_tokens=20, top_k=3, allowed_token_ids=(7, 8, 40, 41, 42)),
        ],
        ids=["top-k", "top-p", "both", "allowed"],
    )
    def test_truncated_sampling_reports_what_was_kept(
        self, folders: tuple[Path, Path], reference: Reference, sampling: Sampling
    ) -> None:
        async def scenario(engine: Engine) -> None:
            request = ask("a", prompt(2, 30), sampling)
            answer = await generate(engine, request)
            assert len(answer.kept) == len(answer.token_ids) == 20
            logits = reference.logits(0, (*request.prompt_ids, *answer.token_ids))
            rows = logits[len(request.prompt_ids) - 1 :]
            for token, kept, row in zip(answer.token_ids, answer.kept, rows, strict=False):
                assert token in kept
                assert set(kept) == _kept_by_definition(row, sampling)
            self.agree(reference, request, answer)

        self.serve(folders, scenario)

    def test_greedy_follows_the_most_likely_tokens(
        self, folders: tuple[Path, Path], reference: Reference
    ) -> None:
        async def scenario(engine: Engine) -> None:
            greedy = Sampling(temperature=0.0, max_tokens=24)
            requests = [ask(str(i), prompt(i, 10 + i), greedy) for i in range(4)]
            for request in requests:
                answer = await generate(engine, request)
                chain = tuple(request.prompt_ids)
                for token in answer.token_ids:
                    assert token == int(reference.logits(0, chain)[-1].argmax())
                    chain += (token,)

        self.serve(folders, scenario)

    def test_a_prompt_in_a_buffer_is_that_of_a_tuple(self, folders: tuple[Path, Path]) -> None:
        async def scenario(engine: Engine) -> None:
            greedy = Sampling(temperature=0.0, max_tokens=8)
            one = await generate(engine, ask("tuple", prompt(1, 20), greedy))
            other = await generate(engine, ask("buffer", TokenIds.of(prompt(1, 20)), greedy))
            assert one.token_ids == other.token_ids

        self.serve(folders, scenario)

    def test_many_requests_of_unequal_lengths(
        self, folders: tuple[Path, Path], reference: Reference
    ) -> None:
        async def scenario(engine: Engine) -> None:
            random = Random(3)
            requests = [
                ask(
                    str(index),
                    prompt(index // 4, random.randint(1, 90) if index % 4 else 60),
                    Sampling(max_tokens=random.randint(1, 60), temperature=0.8),
                )
                for index in range(100)
            ]
            answers = await asyncio.gather(*(generate(engine, request) for request in requests))
            for request, answer in zip(requests, answers, strict=True):
                assert len(answer.token_ids) == request.sampling.max_tokens
                self.agree(reference, request, answer)

        self.serve(folders, scenario)

    def test_draws_follow_the_distribution(
        self, folders: tuple[Path, Path], reference: Reference
    ) -> None:
        async def scenario(engine: Engine) -> None:
            first = Sampling(max_tokens=1, allowed_token_ids=(20, 30, 40, 50))
            requests = [ask(str(index), prompt(9, 12), first) for index in range(2000)]
            answers = await asyncio.gather(*(generate(engine, request) for request in requests))
            drawn = [answer.token_ids[0] for answer in answers]
            row = reference.logits(0, prompt(9, 12))[-1, [20, 30, 40, 50]].softmax(-1)
            found = [drawn.count(token) / len(drawn) for token in (20, 30, 40, 50)]
            assert found == pytest.approx(row.tolist(), abs=0.05)

        self.serve(folders, scenario)

    def test_a_stop_token_is_the_last(self, folders: tuple[Path, Path]) -> None:
        async def scenario(engine: Engine) -> None:
            sampling = Sampling(
                max_tokens=60, temperature=2.0, allowed_token_ids=(1, 2, 9), stop_token_ids=(1, 2)
            )
            for index in range(8):
                answer = await generate(engine, ask(str(index), prompt(index, 5), sampling))
                assert answer.finish_reason is FinishReason.STOP
                assert answer.token_ids[-1] in (1, 2)
                assert set(answer.token_ids[:-1]) <= {9}

        self.serve(folders, scenario)

    def test_the_context_ends_a_generation(
        self, folders: tuple[Path, Path], reference: Reference
    ) -> None:
        async def scenario(engine: Engine) -> None:
            request = ask("a", prompt(4, CONTEXT - 5), Sampling(max_tokens=50))
            answer = await generate(engine, request)
            assert answer.finish_reason is FinishReason.LENGTH
            assert len(answer.token_ids) == 5
            self.agree(reference, request, answer)

        self.serve(folders, scenario)

    @pytest.mark.parametrize(
        ("prompt_ids", "sampling"),
        [
            (prompt(5, CONTEXT + 1), Sampling()),
            ((), Sampling()),
            ((3, VOCABULARY), Sampling()),
            (TokenIds.of((3, VOCABULARY)), Sampling()),
            ((3,), Sampling(allowed_token_ids=(VOCABULARY,))),
        ],
        ids=["too long", "empty", "unknown id", "unknown id in a buffer", "unknown allowed id"],
    )
    def test_what_cannot_be_served_is_refused(
        self, folders: tuple[Path, Path], prompt_ids: Sequence[int], sampling: Sampling
    ) -> None:
        async def scenario(engine: Engine) -> None:
            with pytest.raises(RequestRefusedError, match="'bad'"):
                await generate(engine, ask("bad", prompt_ids, sampling))
            assert len((await generate(engine, ask("good", prompt(1, 5)))).token_ids) == 8

        self.serve(folders, scenario)

    def test_the_next_turn_continues_the_chain(
        self, folders: tuple[Path, Path], reference: Reference
    ) -> None:
        async def scenario(engine: Engine) -> None:
            async def trajectory(index: int) -> None:
                chain = prompt(index // 4, 24)
                for turn in range(4):
                    request = ask(f"{index}-{turn}", chain)
                    answer = await generate(engine, request)
                    self.agree(reference, request, answer)
                    chain += (*answer.token_ids, *prompt(100 * index + turn, 11))

            await asyncio.gather(*(trajectory(index) for index in range(12)))

        self.serve(folders, scenario)

    def test_abort_keeps_the_tokens(self, folders: tuple[Path, Path], reference: Reference) -> None:
        async def scenario(engine: Engine) -> None:
            request = ask("a", prompt(6, 20), Sampling(max_tokens=130))
            chunks: list[Chunk] = []
            async for chunk in engine.generate(request):
                chunks.append(chunk)
                if len(chunks) == 2:
                    await engine.abort("unknown")
                    await engine.abort("a")
            answer = join(chunks)
            assert answer.finish_reason is FinishReason.ABORT
            assert 2 <= len(answer.token_ids) < 130
            self.agree(reference, request, answer)

        self.serve(folders, scenario)

    def test_closing_the_stream_aborts(self, folders: tuple[Path, Path]) -> None:
        async def scenario(engine: Engine) -> None:
            request = ask("a", prompt(6, 20), Sampling(max_tokens=130))
            async with aclosing(stream(engine, request)) as chunks:
                await anext(chunks)
            # the id is free again only if the first request is gone
            again = await generate(engine, ask("a", prompt(6, 20)))
            assert again.finish_reason is FinishReason.LENGTH

        self.serve(folders, scenario)

    def test_weights_change_between_two_tokens_of_a_request(
        self, folders: tuple[Path, Path], reference: Reference
    ) -> None:
        """Tokens stay, versions tell them apart, and none is drawn while suspended."""

        async def scenario(engine: Engine) -> None:
            long = Sampling(max_tokens=90)
            requests = [ask(str(index), prompt(index // 2, 30), long) for index in range(6)]
            received: dict[str, list[Chunk]] = {request.request_id: [] for request in requests}
            moving = asyncio.Event()

            async def follow(request: GenerationRequest) -> None:
                async for chunk in engine.generate(request):
                    received[request.request_id].append(chunk)
                    if all(received.values()):
                        moving.set()

            tasks = [asyncio.create_task(follow(request)) for request in requests]
            await moving.wait()
            await engine.suspend()
            late = asyncio.create_task(generate(engine, ask("late", prompt(7, 30))))
            await engine.load(1, load_folder(folders[1])[1])
            assert engine.version == 1
            await engine.resume()
            await asyncio.gather(*tasks)
            for request in requests:
                answer = join(received[request.request_id])
                assert len(answer.token_ids) == 90
                assert sorted(answer.versions) == list(answer.versions)
                assert set(answer.versions) == {0, 1}
                self.agree(reference, request, answer)
            assert set((await late).versions) == {1}

        self.serve(folders, scenario)

    def test_a_suspended_engine_draws_nothing(self, folders: tuple[Path, Path]) -> None:
        async def scenario(engine: Engine) -> None:
            await engine.suspend()
            await engine.suspend()
            held = asyncio.create_task(generate(engine, ask("a", prompt(8, 20))))
            aborted = asyncio.create_task(generate(engine, ask("b", prompt(8, 20))))
            for _ in range(50):
                await asyncio.sleep(0)
            await engine.abort("b")
            answer = await aborted
            assert (answer.token_ids, answer.finish_reason) == ((), FinishReason.ABORT)
            assert not held.done()
            await engine.resume()
            assert len((await held).token_ids) == 8

        self.serve(folders, scenario)

    @pytest.mark.parametrize("version", [0, 1])
    def test_what_is_released_is_rebuilt_and_requests_keep_their_tokens(
        self, folders: tuple[Path, Path], reference: Reference, version: int
    ) -> None:
        """With new weights and with those that were served before."""

        async def scenario(engine: Engine) -> None:
            requests = [ask(str(i), prompt(i, 30), Sampling(max_tokens=90)) for i in range(4)]
            received: dict[str, list[Chunk]] = {request.request_id: [] for request in requests}
            moving = asyncio.Event()

            async def follow(request: GenerationRequest) -> None:
                async for chunk in engine.generate(request):
                    received[request.request_id].append(chunk)
                    if all(received.values()):
                        moving.set()

            tasks = [asyncio.create_task(follow(request)) for request in requests]
            await moving.wait()
            await engine.suspend()
            assert (await engine.release() > 0) == self.releases
            assert await engine.release() == 0
            aborted = asyncio.create_task(generate(engine, ask("late", prompt(7, 30))))
            await asyncio.sleep(0)
            await engine.abort("late")
            assert (await aborted).token_ids == ()
            if version:
                await engine.load(version, load_folder(folders[version])[1])
            await engine.resume()
            await asyncio.gather(*tasks)
            for request in requests:
                answer = join(received[request.request_id])
                assert len(answer.token_ids) == 90
                assert set(answer.versions) == {0, version}
                self.agree(reference, request, answer)

        self.serve(folders, scenario)

    def test_wrong_weights_change_nothing(
        self, folders: tuple[Path, Path], reference: Reference
    ) -> None:
        async def scenario(engine: Engine) -> None:
            _, tensors = load_folder(folders[1])
            name = "model.layers.1.self_attn.k_norm.weight"
            damaged: list[Tensors] = [
                {key: value for key, value in tensors.items() if key != name},
                {**tensors, "model.layers.9.mlp.up_proj.weight": torch.zeros(1)},
                {**tensors, name: torch.zeros(3)},
            ]
            for wrong in damaged:
                with pytest.raises(WeightsError, match=r"model\.layers"):
                    await engine.load(1, wrong)
            assert engine.version == 0
            request = ask("a", prompt(1, 30))
            self.agree(reference, request, await generate(engine, request))

        self.serve(folders, scenario)

    def test_close_aborts_what_is_in_flight(self, folders: tuple[Path, Path]) -> None:
        async def scenario(engine: Engine) -> None:
            request = ask("a", prompt(6, 20), Sampling(max_tokens=130))
            chunks = []
            async for chunk in engine.generate(request):
                chunks.append(chunk)
                if len(chunks) == 1:
                    await engine.close()
            assert join(chunks).finish_reason is FinishReason.ABORT
            with pytest.raises(EngineError, match="closed"):
                await generate(engine, ask("b", prompt(6, 20)))

        self.serve(folders, scenario)


def stream(engine: Engine, request: GenerationRequest) -> AsyncGenerator[Chunk]:
    """The engine's iterator, which has `aclose`."""
    return cast("AsyncGenerator[Chunk]", engine.generate(request))


def _kept_by_definition(row: torch.Tensor, sampling: Sampling) -> set[int]:
    """Top-k, then the fewest of the most likely tokens whose probabilities reach top-p."""
    ids = list(sampling.allowed_token_ids) or list(range(len(row)))
    ids.sort(key=lambda token: -float(row[token]))
    ids = ids[: sampling.top_k or len(ids)]
    probabilities = (row[ids] / sampling.temperature).softmax(-1).tolist()
    count, reached = 0, 0.0
    while count < len(ids) and (reached < sampling.top_p or sampling.top_p == 1.0):
        reached += probabilities[count]
        count += 1
    return set(ids[:count])
