"""The base class of inference engines; each variant has a module beside this one.

Every engine passes the tests in `tests/engines/conformance.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from rollart_flow.errors import EngineError, WeightsError
from rollart_flow.types import Chunk, GenerationRequest

if TYPE_CHECKING:
    import torch

    from rollart_flow.weights.base import AdapterEntry


class EnginePhase(StrEnum):
    """The role of an engine when separate workers compute prompts (ROLLART section 6.3).

    The role of prefill-only workers has the same name.
    """

    PREFILL = "prefill"
    """The engine computes the KV cache of prompts and holds it until it is fetched."""
    DECODE = "decode"
    """The engine fetches that KV cache, or computes it if it cannot, and samples the tokens."""


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """The failure of a request that ended without a finish reason."""

    request_id: str
    error: EngineError


Delivery = Chunk | EngineFailure
"""Message from an engine worker to a client, about one of its requests."""


class Engine(ABC):
    """Token-in-token-out generation under exactly one policy version at a time.

    An engine belongs to one asyncio loop. Commands take effect between two engine steps. When the
    weights change, a request in flight keeps its tokens and its KV cache is rebuilt.
    """

    @property
    @abstractmethod
    def version(self) -> int:
        """The policy version that samples the next token."""

    @property
    def failed(self) -> str:
        """Why this engine cannot sample any more and must be replaced; empty if it is healthy."""
        return ""

    @abstractmethod
    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream a request's tokens, each with its behavior logprob and policy version.

        Logprobs refer to the distribution used for sampling: after temperature, top-p, top-k and
        allowed tokens, in natural log. Greedy decoding (temperature 0) reports logprobs at
        temperature 1. Closing the iterator aborts the request.

        A request with `prefill_only` is answered with one chunk without tokens, whose `prefix` says
        where the KV cache of its prompt is held; aborting the request later frees it. A request
        with a `prefix` is decoded from that KV cache, unless the cache belongs to another version
        or cannot be fetched.

        Raises:
            RequestRefusedError: the request cannot be served (longer than the context, bad token
                id, `prefill_only` on an engine that does not compute prompts for others); the
                engine goes on to serve others.
            EngineError: the engine is closed, or a step failed.
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """End a request: its stream ends with `FinishReason.ABORT` and the tokens so far."""

    @abstractmethod
    async def suspend(self) -> None:
        """Hold all requests until `resume`, and return once no further token will be sampled."""

    @abstractmethod
    async def release(self) -> int:
        """Free the memory that only generation needs, until `resume`, and return the number of
        bytes.

        The result is 0 if no such memory is held. Call this only while suspended. Weights may be
        loaded meanwhile; requests in flight keep their tokens.
        """

    @abstractmethod
    async def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Swap all weights (Hugging Face names), set the version and drop every cached KV.

        Raises:
            WeightsError: a tensor is missing, unknown or of a wrong shape; nothing was changed.
        """

    @property
    def base(self) -> int | None:
        """Version of the whole weights over which the engine serves adapters; None if it serves
        none, so that every version has to be loaded whole."""
        return None

    async def adapt(
        self, version: int, tensors: Mapping[str, torch.Tensor], adapter: AdapterEntry
    ) -> None:
        """Swap to an adapter over `base`, in place of an earlier one, as `load` does.

        Args:
            version: version of the policy with the adapter.
            tensors: matrices of the adapter in PEFT's names.
            adapter: rank and scale; its base is the engine's.

        Raises:
            WeightsError: the engine serves no adapters, or not over that base; nothing was changed.
            EngineError: the engine cannot adapt a layer, and has failed.
        """
        raise WeightsError(f"version {version} is an adapter, which this engine does not serve")

    async def receive(self, version: int) -> bool:
        """Swap to a version that the trainer sends, as `load` does.

        Return False if the trainer does not send it to this engine, or no longer sends it; the
        version then has to be read and loaded.

        Raises:
            EngineError: the transfer was interrupted; the engine has failed.
        """
        return False

    @abstractmethod
    async def resume(self) -> None:
        """Continue with held and paused requests."""

    @abstractmethod
    async def close(self) -> None:
        """Abort all requests in flight and release all resources."""
