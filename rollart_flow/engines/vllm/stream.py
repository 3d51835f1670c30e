"""One request inside vLLM: its sampled tokens, their versions and its reader.

The invariant: each token is delivered once, in order, with the version under which it was sampled.
With the last token, vLLM reports the version of every token; a stream whose record differs ends
with an error.
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
        """Args: `chunk_tokens` is the chunk size; a chunk is smaller if the request ends or is
        flushed.
        """
        self.request = request
        self.drawing = False
        """Whether vLLM has the request."""
        self.ended = False
        self.fetching = False
        """Whether vLLM may be fetching the prompt: no token was sampled since vLLM received the
        request.
        """
        self.unwanted = False
        """Whether the request is to be aborted, even if vLLM does not have it yet."""
        self.recalled = False
        """Whether vLLM was told to return the request, so that it can be submitted again."""
        self._chunk_tokens = chunk_tokens
        self._versions: list[int] = []
        """Version of every token so far."""
        self._tokens: list[int] = []
        """Sampled tokens that were not delivered yet, like the next two fields."""
        self._logprobs: list[float] = []
        self._kept: list[tuple[int, ...]] = []
        self._inbox: asyncio.Queue[Chunk | EngineError] = asyncio.Queue()

    def take(self, output: CompletionOutput, version: int) -> None:
        """Take the tokens that vLLM has sampled since the last call, under a version."""
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
        """Deliver the tokens sampled so far."""
        if self._tokens:
            self._send(None)

    def end(self, reason: FinishReason) -> None:
        """End the request with the tokens sampled so far."""
        self._send(reason)

    def hand_over(self, prefix: Prefix | None) -> None:
        """End the request with the held prefix of the prompt, or None if the request was
        aborted.
        """
        self._send(FinishReason.ABORT if prefix is None else FinishReason.LENGTH, prefix)

    def fail(self, error: EngineError) -> None:
        """End the request with an error, unless it has already ended."""
        if not self.ended:
            self.ended = True
            self._inbox.put_nowait(error)

    async def receive(self) -> Chunk:
        """Return the next chunk.

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
