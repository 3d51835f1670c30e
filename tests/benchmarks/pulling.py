"""Processes that pull weights while they decode, for `bench_weights`: an engine in each."""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from rollart_flow.control.protocols import PullStats
from rollart_flow.engines.embedded import EmbeddedEngine
from rollart_flow.engines.weight_prefetcher import WeightPrefetcher
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.types import GenerationRequest, Sampling
from rollart_flow.weights.mooncake.store import MooncakeWeightStore

CONFIG = ModelConfig(
    vocab_size=8192,
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=12,
    num_key_value_heads=12,
    head_dim=64,
    max_position_embeddings=512,
)
_MARK = "model.norm.weight"
"""A tensor whose elements tell its version."""
_CHAINS = 4
_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Swap:
    """One version's way into one engine."""

    decode_s: float
    """The rollout between the announcement and the swap."""
    pull: PullStats
    load_s: float
    """Copy from host memory into the engine."""


def weights_of(version: int) -> dict[str, torch.Tensor]:
    """Half a gigabyte of float32 whose elements tell its version."""
    torch.manual_seed(0)
    tensors = {name: tensor.detach() for name, tensor in Qwen3(CONFIG).named_parameters()}
    return {**tensors, _MARK: torch.full_like(tensors[_MARK], float(version))}


@contextmanager
def readers(address: str, run: str, count: int) -> Iterator[Sequence[Connection]]:
    """Processes that answer each version that they are sent with its `Swap`."""
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(count)]
    processes = [context.Process(target=_read, args=(far, address, run)) for _, far in ends]
    for process in processes:
        process.start()
    for near, _ in ends:
        near.recv()
    try:
        yield [near for near, _ in ends]
    finally:
        for near, _ in ends:
            near.send(None)
        for process in processes:
            process.join()


def _read(end: Connection, address: str, run: str) -> None:
    asyncio.run(_serve(end, address, run))


async def _serve(end: Connection, address: str, run: str) -> None:
    torch.set_num_threads(1)
    engine = EmbeddedEngine(CONFIG, weights_of(0), max_batch=_CHAINS, cached_rows=0)
    store = MooncakeWeightStore(address, run)
    pulls = WeightPrefetcher(store)
    await engine.resume()
    await _decode(engine, 0)
    end.send("ready")
    while (version := await asyncio.to_thread(end.recv)) is not None:
        pulls.begin(version)
        started = time.perf_counter()
        await _decode(engine, version)
        decode_s = time.perf_counter() - started
        await engine.suspend()
        tensors, pull = await pulls.take(version)
        assert (tensors[_MARK] == version).all()
        started = time.perf_counter()
        await engine.load(version, tensors)
        load_s = time.perf_counter() - started
        del tensors
        await engine.resume()
        end.send(Swap(decode_s, pull, load_s))
    await engine.close()
    store.close()


async def _decode(engine: EmbeddedEngine, round_number: int) -> None:
    async def chain(number: int) -> None:
        name, prompt = f"{round_number}-{number}", tuple(range(1, 33))
        request = GenerationRequest(name, prompt, Sampling(max_tokens=_TOKENS))
        async for _ in engine.generate(request):
            pass

    await asyncio.gather(*(chain(number) for number in range(_CHAINS)))
