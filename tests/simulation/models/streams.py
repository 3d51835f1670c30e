"""Requests to simulated workers, and the streams that answer them."""

import asyncio
from collections.abc import AsyncIterator

from rollart_flow.simulation.hardware import H800, QWEN3_8B, Roofline
from rollart_flow.types import Chunk, GenerationRequest, Sampling

ROOFLINE = Roofline(QWEN3_8B, H800)


def request(*prompt: int, trajectory: str = "t", domain: str = "default") -> GenerationRequest:
    return GenerationRequest(
        "r", prompt or (500,), Sampling(), trajectory_id=trajectory, domain=domain
    )


async def gathered(stream: AsyncIterator[Chunk]) -> list[tuple[float, Chunk]]:
    """Chunks with the time at which they came."""
    return [(now(), chunk) async for chunk in stream]


def now() -> float:
    return asyncio.get_running_loop().time()


def tokens(chunks: list[Chunk]) -> int:
    """Number of tokens: an id stands for as many as its value."""
    return sum(sum(chunk.token_ids) for chunk in chunks)
