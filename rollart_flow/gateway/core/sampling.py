"""The engine's side of calls: requests by the sampling of the attempt, and what they return."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from rollart_flow.control.inference.generation_builder import GenerationFailedError
from rollart_flow.control.inference.llm_proxy import FirstToken, LLMProxy
from rollart_flow.errors import EngineError
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.text import one_line
from rollart_flow.types import Assignment, FinishReason, Generation, GenerationRequest, Image

_NOTHING = Generation((), (), (), FinishReason.ABORT)


class EngineCalls:
    """Samples the answers to the calls of one session.

    Args:
        assignment: the attempt.
        proxy: generates the tokens.
        name: unique name of the session.
        on_first: called once, with the version of the first sampled token.
        placement: as `GenerationRequest.placement`.
    """

    def __init__(
        self,
        assignment: Assignment,
        proxy: LLMProxy,
        name: str,
        on_first: FirstToken | None,
        placement: int | None = None,
    ) -> None:
        self._assignment = assignment
        self._proxy = proxy
        self._name = name
        self._on_first = on_first
        self._placement = placement
        self.tokens = 0
        """Tokens that were sampled."""
        self.over = False
        """Whether nothing more is sampled."""

    def request(
        self,
        exchange: Exchange,
        prompt_ids: Sequence[int],
        images: tuple[Image, ...],
        most: int,
    ) -> GenerationRequest:
        """Return the request for an answer, by the sampling of the assignment.

        Args:
            exchange: the call.
            prompt_ids: the prompt.
            images: images of the prompt.
            most: most tokens of the answer, if the assignment allows as many.
        """
        assignment = self._assignment
        sampling = assignment.sampling
        if most < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=most)
        exchange.max_tokens = sampling.max_tokens
        return GenerationRequest(
            request_id=self._id(exchange.number),
            prompt_ids=prompt_ids,
            sampling=sampling,
            trajectory_id=assignment.trajectory_id,
            domain=assignment.task.domain,
            placement=self._placement,
            images=images,
        )

    async def generate(
        self, request: GenerationRequest, exchange: Exchange
    ) -> tuple[Generation, str | None]:
        """Return the tokens of a request, and why it failed if it did."""
        if self.over:  # the attempt ended before the request could begin
            return _NOTHING, None
        exchange.generating = asyncio.get_running_loop().time()

        def first_token(version: int) -> None:
            exchange.first_token = asyncio.get_running_loop().time()
            self._first_token(version)

        try:
            generation = await self._proxy.generate(request, first_token)
        except EngineError as error:
            partial = error.partial if isinstance(error, GenerationFailedError) else None
            self.tokens += len(partial.token_ids) if partial else 0
            return partial or _NOTHING, one_line(error)
        self.tokens += len(generation.token_ids)
        if generation.finish_reason is FinishReason.ABORT:
            return generation, "the engine aborted the generation on its own"
        return generation, None

    def abort(self, number: int) -> None:
        """Abort the generation for a call."""
        self._proxy.abort(self._id(number))

    def _id(self, number: int) -> str:
        return f"{self._name}/{number}"

    def _first_token(self, version: int) -> None:
        on_first, self._on_first = self._on_first, None
        if on_first is not None:
            on_first(version)
