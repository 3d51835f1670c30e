"""Two classes of hardware on one machine: engines that take the time which their class would take.

Only waiting differs: prefill is quick on an H800, decoding on an H20 (ROLLART Table 2, stretched).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from rollart_flow.engines.base import Engine
from rollart_flow.types import Chunk, GenerationRequest

if TYPE_CHECKING:
    import torch

PREFILL_S = {"H800": 0.0002, "H20": 0.0014}
"""Per token of a prompt."""
DECODE_S = {"H800": 0.024, "H20": 0.006}
"""Per token that is drawn."""


class Slowed(Engine):
    """An engine that lets a class's time pass."""

    def __init__(self, engine: Engine, hardware: str) -> None:
        self._engine = engine
        self._hardware = hardware

    @property
    def version(self) -> int:
        return self._engine.version

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        await asyncio.sleep(PREFILL_S[self._hardware] * len(request.prompt_ids))
        async for chunk in self._engine.generate(request):
            await asyncio.sleep(DECODE_S[self._hardware] * len(chunk.token_ids))
            yield chunk

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    async def suspend(self) -> None:
        await self._engine.suspend()

    async def release(self) -> int:
        return await self._engine.release()

    async def load(self, version: int, tensors: "Mapping[str, torch.Tensor]") -> None:
        await self._engine.load(version, tensors)

    async def resume(self) -> None:
        await self._engine.resume()

    async def close(self) -> None:
        await self._engine.close()


def install() -> None:
    """In each process of Ray, before it has loaded what makes engines: they are those of the class
    that the process was granted."""
    import ray

    from rollart_flow.engines import registry

    build = registry.build_engine

    def slowed(*args: Any, **kwargs: Any) -> Engine:
        granted = ray.get_runtime_context().get_assigned_resources()
        (hardware,) = PREFILL_S.keys() & granted.keys()
        return Slowed(build(*args, **kwargs), hardware)

    registry.build_engine = slowed
