"""One request inside vLLM: what was drawn, under which version, and who listens.

The invariant: a token is delivered once, in order, with the version that drew it. vLLM says with
the last token which version drew which; a stream that was told otherwise ends with an error.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rollart_flow.engines.vllm.sampling import drawn, kept
from rollart_flow.errors import EngineError
from rollart_flow.types import Chunk, FinishReason, GenerationRequest, Prefix

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput


class VllmStream:
    """A request in flight."""

    def __init__(self, request: GenerationRequest, chunk_tokens: int) -> None:
        """Args: `chunk_tokens` are delivered at once, fewer when it ends or is flushed."""
        self.request = request
        self.drawing = False
        """Whether vLLM has it."""
        self.ended = False
        self.fetching = False
        """Whether vLLM may be fetching its prompt: nothing was drawn since it has it."""
        self.unwanted = False
        """Whether it is to be aborted, also where vLLM has it not yet."""
        self.recalled = False
        """Whether vLLM was told to give it back, for it to be asked again."""
        self._chunk_tokens = chunk_tokens
        self._versions: list[int] = []
        """Of every token so far."""
        self._tokens: list[int] = []
        """Not delivered yet, as the next two."""
        self._logprobs: list[float] = []
        self._kept: list[tuple[int, ...]] = []
        self._inbox: asyncio.Queue[Chunk | EngineError] = asyncio.Queue()

    def take(self, output: CompletionOutput, version: int) -> None:
        """What vLLM has drawn since the last time, under a version."""
        self.fetching = False
        if output.token_ids:
            self._tokens += output.token_ids
            self._logprobs += drawn(output.logprobs)
            self._versions += [version] * len(output.token_ids)
            if self.request.sampling.truncates:
                self._kept += kept(output.logprobs)
        if output.finish_reason is not None:
            self._finish(output)
        elif len(self._tokens) >= self._chunk_tokens:
            self._send(None)

    def flush(self) -> None:
        """Deliver what was drawn so far."""
        if self._tokens:
            self._send(None)

    def end(self, reason: FinishReason) -> None:
        """End with the tokens that it has."""
        self._send(reason)

    def hand_over(self, prefix: Prefix | None) -> None:
        """End with what is held of the prompt; None if it was aborted."""
        self._send(FinishReason.ABORT if prefix is None else FinishReason.LENGTH, prefix)

    def fail(self, error: EngineError) -> None:
        """End with an error, unless it has ended."""
        if not self.ended:
            self.ended = True
            self._inbox.put_nowait(error)

    async def receive(self) -> Chunk:
        """The next chunk.

        Raises:
            EngineError: the engine failed.
        """
        item = await self._inbox.get()
        if isinstance(item, EngineError):
            raise item
        return item

    def _finish(self, output: CompletionOutput) -> None:
        spans = output.weight_versions or ()
        said = [int(span.version) for span in spans for _ in range(span.start, span.end)]
        if said != self._versions:
            self.fail(EngineError("vLLM drew a token under another version than was delivered"))
        elif output.finish_reason == "error":
            self.fail(EngineError(f"request {self.request.request_id!r}: vLLM has failed"))
        else:
            self._send(FinishReason(output.finish_reason))

    def _send(self, reason: FinishReason | None, prefix: Prefix | None = None) -> None:
        if self.ended:
            return
        self.ended = reason is not None
        offset = len(self._versions) - len(self._tokens)
        self._inbox.put_nowait(
            Chunk(
                request_id=self.request.request_id,
                offset=offset,
                token_ids=tuple(self._tokens),
                logprobs=tuple(self._logprobs),
                versions=tuple(self._versions[offset:]),
                finish_reason=reason,
                kept=tuple(self._kept),
                prefix=prefix,
            )
        )
        self._tokens, self._logprobs, self._kept = [], [], []
