"""An engine that answers every request at once with the same tokens."""

from collections.abc import AsyncIterator, Mapping

import torch

from rollart_flow import Policy
from rollart_flow.engines.base import Engine
from rollart_flow.engines.embedded_variant import EmbeddedVariant
from rollart_flow.engines.registry import EngineOptions
from rollart_flow.types import Chunk, FinishReason, GenerationRequest


class IdleEngine(Engine):
    """Samples nothing."""

    def __init__(self) -> None:
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        count = request.sampling.max_tokens
        yield Chunk(
            request.request_id,
            0,
            token_ids=(5,) * count,
            logprobs=(-1.0,) * count,
            versions=(self._version,) * count,
            finish_reason=FinishReason.LENGTH,
        )

    async def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self._version = version

    async def abort(self, request_id: str) -> None: ...

    async def suspend(self) -> None: ...

    async def resume(self) -> None: ...

    async def release(self) -> int:
        return 0

    async def close(self) -> None: ...


class IdleVariant(EmbeddedVariant):
    """The engine that does nothing."""

    def build(self, policy: Policy, folder: str, options: EngineOptions) -> Engine:
        return IdleEngine()


VARIANT = IdleVariant()
