"""Completions of a judge model on an inference engine, either a running one or one created on
demand.

Invariant: an answer is complete, up to its stop token or the token limit; a request that the engine
aborts or refuses raises an error.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol, cast
from uuid import uuid4
from weakref import WeakKeyDictionary

from rollart_flow.control.environment import Codec, takes_messages
from rollart_flow.control.inference.generation_builder import GenerationBuilder
from rollart_flow.control.rollout.conversing import TextConversation, converse
from rollart_flow.errors import (
    EngineError,
    RewardFailedError,
    SettingsError,
    TemplateRefusedError,
)
from rollart_flow.models.chat.settings import AUTO_FORMAT
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import policy_codec
from rollart_flow.types import Chunk, FinishReason, GenerationRequest, Sampling

GREEDY = Sampling(temperature=0.0, max_tokens=128)


class Generates(Protocol):
    """A token generator, such as `engines.base.Engine` or `control.protocols.Inference`."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream the tokens of one request; the last chunk has a finish reason."""
        ...


@dataclass(frozen=True, slots=True)
class EngineCompletions:
    """A model on an engine that the caller provides; implements `Completes`.

    An instance can be sent to another process only if its engine can.
    """

    engine: Generates
    codec: Codec
    """The codec of the model, such as `models.version_zero.load_codec(folder)`."""
    model: str
    """Name of the weights that the engine serves; other weights need another name."""
    sampling: Sampling = GREEDY
    """Sampling settings, including the stop tokens of the model."""

    async def complete(self, prompt: str) -> str:
        """Return the answer to a prompt, which is a first observation, without what it thinks.

        The codec's chat format tells the answer from the thinking before it.

        Raises:
            RewardFailedError: the engine refused or aborted the request, or died, or the chat
                template refuses the prompt.
        """
        talks = takes_messages(self.codec)
        conversation = converse(self.codec, ()) if talks else TextConversation(self.codec)
        try:
            prompt_ids = conversation.observe(prompt)
        except TemplateRefusedError as error:
            raise RewardFailedError(f"judge: {self.model}: {error}") from error
        request = GenerationRequest(f"judge/{uuid4().hex}", prompt_ids, self.sampling)
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
        return conversation.act(generation.token_ids).text


@dataclass(frozen=True, slots=True)
class PolicyCompletions:
    """A pretrained policy as a judge; implements `Completes`. It holds only settings, so it can be
    sent to other processes.

    Each process and event loop builds one engine of the policy's kind at its first call and keeps
    it. An embedded engine runs in that loop.

    Raises:
        SettingsError: the policy has no folder.
    """

    policy: Policy
    sampling: Sampling = GREEDY
    """Sampling settings; the stop tokens of the policy are added."""

    def __post_init__(self) -> None:
        if self.policy.path is None:
            raise SettingsError(
                "judge: this policy is made from scratch and knows nothing; "
                "use Policy.from_pretrained(folder)"
            )
        object.__setattr__(self, "policy", self.policy.located())

    @property
    def model(self) -> str:
        """The folder, the dtype and the chat settings; other weights need another folder."""
        policy = self.policy
        chat = (policy.chat_format, json.dumps(policy.template_options, sort_keys=True))
        said = "" if chat == (AUTO_FORMAT, "{}") else f" {' '.join(chat)}"
        return f"{policy.path} {policy.computes_in}{said}"

    async def complete(self, prompt: str) -> str:
        """Return the answer to a prompt; see `EngineCompletions.complete`."""
        opened = _OPENED.setdefault(asyncio.get_running_loop(), {})
        if self not in opened:
            opened[self] = self._open()
        return await opened[self].complete(prompt)

    def _open(self) -> EngineCompletions:
        from rollart_flow.engines.registry import EngineOptions, build_engine

        assert self.policy.path is not None
        codec = policy_codec(self.policy)
        stops = (*self.sampling.stop_token_ids, *codec.stop_token_ids)
        engine = build_engine(self.policy, self.policy.path, EngineOptions(seed=0))
        sampling = replace(self.sampling, stop_token_ids=stops)
        return EngineCompletions(engine, codec, self.model, sampling)


_OPENED: WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[PolicyCompletions, EngineCompletions]
] = WeakKeyDictionary()
