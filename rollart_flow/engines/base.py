"""The protocol of inference engines. One variant, one short file beside this one.

Every engine passes `tests/engines/conformance.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

from rollart_flow.types import Chunk, GenerationRequest


class EnginePhase(StrEnum):
    """What an engine does where prompts are computed on workers of their own (ROLLART 6.3); the
    role of workers for prefill alone has its name."""

    PREFILL = "prefill"
    """It computes the KV cache of prompts, and holds it until it is fetched."""
    DECODE = "decode"
    """It fetches that and draws the tokens; what it cannot fetch it computes itself."""


class Engine(ABC):
    """Token-in-token-out generation under exactly one policy version at a time.

    An engine lives in one asyncio loop. Between two engine steps it obeys commands; a request that
    is in flight when the weights change keeps its tokens, and its KV cache is rebuilt.
    """

    @property
    @abstractmethod
    def version(self) -> int:
        """Policy version that draws the next token."""

    @property
    def failed(self) -> str:
        """Why this engine can draw nothing any more, so that it must be replaced; empty if not."""
        return ""

    @abstractmethod
    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream a request's tokens, each with its behavior logprob and policy version.

        Logprobs are of the distribution that was drawn from: after temperature, top-p, top-k and
        allowed tokens, in natural log. Greedy (temperature 0) reports those of temperature 1.
        Closing the iterator aborts the request.

        A request with `prefill_only` is answered with one chunk without tokens, whose `prefix` says
        where the KV cache of its prompt is held; aborting it later gives that up. One with a
        `prefix` is decoded from there, unless that is of another version or cannot be fetched.

        Raises:
            EngineError: the request cannot be served (longer than the context, bad token id,
                `prefill_only` where the engine does not do that).
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """End a request: its stream ends with `FinishReason.ABORT` and the tokens it has."""

    @abstractmethod
    async def suspend(self) -> None:
        """Return once no token will be drawn until `resume`. New requests are held."""

    @abstractmethod
    async def release(self) -> int:
        """Give back the memory that only generation needs until `resume`; bytes, 0 if none is held.

        Only while suspended. Weights may be loaded meanwhile; requests in flight keep their tokens.
        """

    @abstractmethod
    async def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Swap all weights (Hugging Face names) and set the version; drops every cached KV.

        Raises:
            WeightsError: a tensor is missing, unknown or of a wrong shape; nothing was changed.
        """

    async def receive(self, version: int) -> bool:
        """Swap to a version that the trainer sends, as `load` does; False if it is not sent here,
        or not any more, so that it has to be read and loaded.

        Raises:
            EngineError: it was cut off in the middle; the engine has failed.
        """
        return False

    @abstractmethod
    async def resume(self) -> None:
        """Go on with held and paused requests."""

    @abstractmethod
    async def close(self) -> None:
        """Abort what is in flight and release everything."""
