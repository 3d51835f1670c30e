"""Decode speed of the embedded engine against transformers' batched generate, in one run.

Same model (0.15M parameters, float32), same prompts, one thread each, everything sampled at
temperature 1, measured in turns; the median of the ratios counts. Time is the process's CPU time:
with one thread it is the wall time of a free machine, and other work on the machine has no effect.
transformers decodes 64 requests as one batch up to its longest answer, so that with varying lengths
only the requested tokens are useful.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from rollart_flow.engines.embedded import EmbeddedEngine
from rollart_flow.models.folder import load_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.qwen3 import ModelConfig, own_shape
from rollart_flow.models.version_zero import materialize
from rollart_flow.types import GenerationRequest, Sampling
from tests.benchmarks.plain import plain_tokens
from tests.benchmarks.records import Record, record

CONCURRENT = 64
PROMPT_TOKENS = 32
EQUAL_TOKENS = 128
REQUESTS = 256
SHORT_TOKENS = 8
"""Length of an answer in the demo; a request costs more than its tokens there."""
ROUNDS = 7


def run() -> list[Record]:
    """Decode rates of both, and their ratios."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with TemporaryDirectory() as folder:
            path = f"{folder}/policy"
            materialize(Policy.tiny(), path)
            config, tensors = load_folder(path)
            quiet: Any = disable_progress_bar  # untyped
            quiet()
            model: Any = AutoModelForCausalLM.from_pretrained(path)
            model.generation_config.eos_token_id = None  # exactly as many tokens as asked for
            return _compare(own_shape(config, "benchmark"), tensors, model)
    finally:
        torch.set_num_threads(threads)


def _compare(config: ModelConfig, tensors: dict[str, torch.Tensor], model: Any) -> list[Record]:
    random = Random(0)
    prompts = [
        tuple(random.randrange(5, config.vocab_size) for _ in range(PROMPT_TOKENS))
        for _ in range(REQUESTS)
    ]
    equal = [EQUAL_TOKENS] * CONCURRENT
    varied = _varied_lengths(random)
    records = []
    for name, lengths, goal in (("equal lengths", equal, 1.5), ("varied lengths", varied, 3.0)):
        ours, theirs, ratio = _rates(
            lengths,
            lambda lengths=lengths: _embedded(config, tensors, prompts, lengths),  # type: ignore[misc]
            lambda lengths=lengths: _transformers(model, prompts, lengths),  # type: ignore[misc]
        )
        peer = f"transformers generate, {theirs:.0f} tokens/CPU-s"
        records += [
            record(f"engine: decode at {CONCURRENT}, {name}", ours, "tokens/CPU-s", peer=peer),
            record(f"engine: over transformers, {name}", ratio, "x", at_least=goal, peer=peer),
        ]
    short = [SHORT_TOKENS] * REQUESTS
    short_s = statistics.median(_embedded(config, tensors, prompts, short) for _ in range(ROUNDS))
    name = f"engine: a request of {SHORT_TOKENS} tokens at {CONCURRENT}"
    return [*records, record(name, 1e6 * short_s / REQUESTS, "CPU us")]


def _varied_lengths(random: Random) -> list[int]:
    """Answer lengths with a long tail: the longest of each batch of 64 is over 4 x its mean."""
    lengths = []
    for _ in range(REQUESTS // CONCURRENT):
        batch = [random.randint(8, 64) for _ in range(CONCURRENT - 2)] + [192, 192]
        random.shuffle(batch)
        assert max(batch) >= 4 * statistics.mean(batch)
        lengths += batch
    return lengths


def _rates(
    lengths: Sequence[int], ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[float, float, float]:
    """Useful tokens/CPU-s of both, and their ratio: medians over rounds in turns, after one of each
    to warm up."""
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(ROUNDS)]
    total = sum(lengths)
    return (
        total / statistics.median(pair[0] for pair in pairs),
        total / statistics.median(pair[1] for pair in pairs),
        statistics.median(pair[1] / pair[0] for pair in pairs),
    )


def _embedded(
    config: ModelConfig,
    tensors: dict[str, torch.Tensor],
    prompts: Sequence[tuple[int, ...]],
    lengths: Sequence[int],
) -> float:
    """CPU seconds until all requests are answered, after as many other ones."""

    async def consume(engine: EmbeddedEngine, request: GenerationRequest) -> int:
        return sum([len(chunk.token_ids) async for chunk in engine.generate(request)])

    async def answer(engine: EmbeddedEngine, prompts: Sequence[tuple[int, ...]]) -> float:
        requests = [
            GenerationRequest(str(index), prompt, Sampling(max_tokens=length))
            for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=False))
        ]
        start = time.process_time()
        counts = await asyncio.gather(*(consume(engine, request) for request in requests))
        assert counts == list(lengths)
        return time.process_time() - start

    async def measure() -> float:
        engine = EmbeddedEngine(config, tensors, max_batch=CONCURRENT)
        await answer(engine, [prompt[::-1] for prompt in prompts])
        seconds = await answer(engine, prompts)
        await engine.close()
        return seconds

    return asyncio.run(measure())


def _transformers(model: Any, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> float:
    """CPU seconds for all requests in static batches of 64, each as long as its longest."""
    start = time.process_time()
    for first in range(0, len(lengths), CONCURRENT):
        longest = max(lengths[first : first + CONCURRENT])
        plain_tokens(model, prompts[first : first + CONCURRENT], longest)
    return time.process_time() - start
