"""Decode speed of the embedded engine on a GPU, beside transformers' generate in the same run.

`python -m tests.benchmarks.gpu.decode`; models of random weights, prompts of 32 tokens, everything
sampled at temperature 1, as many tokens for every request, all requests at once. One round of each
size warms up; CUDA graphs are captured in it.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import torch

from rollart_flow.engines.embedded import EmbeddedEngine
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.types import GenerationRequest, Sampling
from tests.benchmarks.gpu.shapes import Setting, main, random_weights
from tests.benchmarks.plain import plain_tokens
from tests.benchmarks.records import Record, record
from tests.models.reference import reference_qwen3

PROMPT_TOKENS = 32
Prompts = Sequence[tuple[int, ...]]


def measure(setting: Setting) -> Iterator[Record]:
    """Rates by model and batch."""
    new = 8 if setting.tiny else 256
    for name, config in setting.models.items():
        tensors = random_weights(config)
        model = reference_qwen3(config, tensors)
        model.to(setting.device, getattr(torch, setting.dtype))
        model.generation_config.eos_token_id = None  # exactly as many tokens as asked for
        for batch in (1, 4) if setting.tiny else (1, 16, 64):
            prompts = _prompts(config, batch)
            theirs = _generated(setting, model, prompts, new)
            told = f"transformers generate, {theirs:.0f} tokens/s"
            for eager in (False, True):
                ours = _embedded(setting, config, tensors, prompts, new, eager=eager)
                how = ", without graphs" if eager else ""
                what = f"engine: decode of {name} at {batch}{how}"
                yield record(what, ours, "tokens/s", peer=told)


def _prompts(config: ModelConfig, count: int) -> Prompts:
    random = Random(0)
    return [
        tuple(random.randrange(config.vocab_size) for _ in range(PROMPT_TOKENS))
        for _ in range(count)
    ]


def _embedded(
    setting: Setting,
    config: ModelConfig,
    tensors: dict[str, torch.Tensor],
    prompts: Prompts,
    new: int,
    *,
    eager: bool,
) -> float:
    """Tokens/s of the second of two rounds."""

    async def consume(engine: EmbeddedEngine, request: GenerationRequest) -> int:
        return sum([len(chunk.token_ids) async for chunk in engine.generate(request)])

    async def rounds() -> float:
        engine = EmbeddedEngine(
            config,
            tensors,
            dtype=setting.dtype,
            device=setting.device.type,
            eager=eager,
            max_context=512,
            max_batch=len(prompts),
            cached_rows=0,
        )
        seconds = 0.0
        for turn in range(2):
            requests = [
                GenerationRequest(f"{turn} {index}", prompt, Sampling(max_tokens=new))
                for index, prompt in enumerate(prompts)
            ]
            start = time.perf_counter()
            counts = await asyncio.gather(*(consume(engine, request) for request in requests))
            seconds = time.perf_counter() - start
            assert counts == [new] * len(prompts)
        await engine.close()
        return len(prompts) * new / seconds

    return asyncio.run(rounds())


def _generated(setting: Setting, model: Any, prompts: Prompts, new: int) -> float:
    """Tokens/s of the second of two rounds."""
    seconds = 0.0
    for _ in range(2):
        setting.wait()
        start = time.perf_counter()
        plain_tokens(model, prompts, new)
        setting.wait()
        seconds = time.perf_counter() - start
    return len(prompts) * new / seconds


if __name__ == "__main__":
    sys.exit(main(measure, __doc__))
