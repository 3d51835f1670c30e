"""A judge's model on an inference engine: one that runs already, or one made when it is asked.

Invariant: an answer is complete, up to its stop token or the limit of tokens; what an engine
aborted or refused is an error.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol, cast
from uuid import uuid4
from weakref import WeakKeyDictionary

from rollart_flow.control.inference.generation_builder import GenerationBuilder
from rollart_flow.control.protocols import Codec
from rollart_flow.errors import EngineError, RewardFailedError, SettingsError
from rollart_flow.models.policy import Policy, load_codec
from rollart_flow.types import Chunk, FinishReason, GenerationRequest, Sampling

GREEDY = Sampling(temperature=0.0, max_tokens=128)


class Generates(Protocol):
    """What draws tokens: `engines.base.Engine` and `control.protocols.Inference` both do."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream the tokens of one request; the last chunk has a finish reason."""
        ...


@dataclass(frozen=True, slots=True)
class EngineCompletions:
    """A model on an engine of the caller's; implements `Completes`.

    It goes to another process only as its engine does.
    """

    engine: Generates
    codec: Codec
    """Of that model, such as `models.policy.load_codec(folder)`."""
    model: str
    """Name of the weights that the engine serves: other weights, another name."""
    sampling: Sampling = GREEDY
    """With the stop tokens of the model."""

    async def complete(self, prompt: str) -> str:
        """The answer to a prompt, which is encoded as a first observation.

        Raises:
            RewardFailedError: the engine refused it, aborted it or died.
        """
        request = GenerationRequest(
            request_id=f"judge/{uuid4().hex}",
            prompt_ids=self.codec.encode_observation(prompt, first=True),
            sampling=self.sampling,
        )
        joined = GenerationBuilder(request)
        stream = cast("AsyncGenerator[Chunk, None]", self.engine.generate(request))
        try:
            async with aclosing(stream):
                async for chunk in stream:
                    joined.add(chunk)
        except EngineError as error:
            raise RewardFailedError(f"judge: {self.model}: {error}") from error
        generation = joined.generation()
        if generation.finish_reason is FinishReason.ABORT:
            raise RewardFailedError(f"judge: {self.model}: the engine aborted the answer")
        return self.codec.decode(generation.token_ids)


@dataclass(frozen=True, slots=True)
class PolicyCompletions:
    """A pretrained policy as a judge: settings alone, so that it travels; implements `Completes`.

    Each process and event loop that asks builds one engine of the policy's kind, at its first
    question, and keeps it. An embedded engine computes in that loop.

    Raises:
        SettingsError: the policy has no folder.
    """

    policy: Policy
    sampling: Sampling = GREEDY
    """The stop tokens of the policy are added."""

    def __post_init__(self) -> None:
        if self.policy.path is None:
            raise SettingsError(
                "judge: this policy is made from scratch and knows nothing; "
                "use Policy.from_pretrained(folder)"
            )

    @property
    def model(self) -> str:
        """The folder, and what the engine computes in: other weights need another folder."""
        return f"{self.policy.path} {self.policy.computes_in}"

    async def complete(self, prompt: str) -> str:
        """The answer to a prompt; see `EngineCompletions.complete`."""
        opened = _OPENED.setdefault(asyncio.get_running_loop(), {})
        if self not in opened:
            opened[self] = self._open()
        return await opened[self].complete(prompt)

    def _open(self) -> EngineCompletions:
        from rollart_flow.engines.registry import build_engine

        assert self.policy.path is not None
        codec = load_codec(self.policy.path)
        stops = (*self.sampling.stop_token_ids, *codec.stop_token_ids)
        engine = build_engine(self.policy, self.policy.path, seed=0)
        sampling = replace(self.sampling, stop_token_ids=stops)
        return EngineCompletions(engine, codec, self.model, sampling)


_OPENED: WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[PolicyCompletions, EngineCompletions]
] = WeakKeyDictionary()
