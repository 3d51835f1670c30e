"""Requests: what no engine can serve is rejected, and the embedded engine's record of one.

The invariant: an accepted request contains only token ids of the model, and asks for at least one
token from a valid distribution.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from rollart_flow.control.loop.inbox import Inbox
from rollart_flow.errors import EngineError, RequestRefusedError
from rollart_flow.models.cached_model import Int64Array
from rollart_flow.types import Chunk, FinishReason, GenerationRequest
from rollart_flow.types.token_ids import TokenIds


def check_request(
    request: GenerationRequest, *, context: int, vocabulary: int, prefills: bool = False
) -> None:
    """Reject a request that a model cannot serve.

    Args:
        request: the request to check.
        context: longest chain in tokens, prompt and answer.
        vocabulary: number of token ids.
        prefills: whether the engine computes prompts for others, and does nothing else.

    Raises:
        RequestRefusedError: the request is invalid; the message names it and the fault.
    """
    prompt, allowed = request.prompt_ids, request.sampling.allowed_token_ids
    if request.prefill_only and not prefills:
        raise refused(request, "the engine computes no prompts for others")
    if prefills and not request.prefill_only:
        raise refused(request, "the engine computes prompts only")
    if not prompt:
        raise refused(request, "the prompt is empty")
    if len(prompt) > context:
        raise refused(request, f"the prompt has {len(prompt)} tokens, the context {context}")
    if not _within(prompt, vocabulary):
        raise refused(request, f"the prompt holds a token id that is not below {vocabulary}")
    if allowed and not _within(allowed, vocabulary):
        raise refused(request, f"allowed_token_ids holds an id that is not below {vocabulary}")


def _within(token_ids: Sequence[int], vocabulary: int) -> bool:
    """Return whether all ids are of the vocabulary."""
    if isinstance(token_ids, TokenIds):  # whose buffer NumPy takes as it is
        # Taken as unsigned, a negative id is above all of a vocabulary.
        return bool(np.asarray(token_ids).view(np.uint32).max() < vocabulary)
    return 0 <= min(token_ids) <= max(token_ids) < vocabulary


def refused(request: GenerationRequest, message: str) -> RequestRefusedError:
    """Build the error for a request that is not served, by an engine that goes on to work."""
    return RequestRefusedError(f"request {request.request_id!r}: {message}")


class EmbeddedStream:
    """A request in flight. `row` is None while it waits for a place in the batch.

    Positions count from the start of the chain: `sent` is the number of delivered tokens (the
    prompt counts as delivered), and the request ends at `limit` tokens.
    """

    def __init__(self, request: GenerationRequest, limit: int) -> None:
        self.request = request
        self.limit = limit
        self.tokens: Int64Array = np.array(request.prompt_ids, np.int64)
        """The token chain at the time when the request last waited."""
        self.row: int | None = None
        self.sent = len(request.prompt_ids)
        self.kept: deque[tuple[int, ...]] = deque()
        """Remaining token ids after truncation, for sampled tokens that were not sent yet."""
        self._inbox: Inbox[Chunk | EngineError] = Inbox()

    def send(
        self, tokens: list[int], logprobs: list[float], version: int, reason: FinishReason | None
    ) -> None:
        """Deliver tokens sampled under one version; a reason marks the last tokens."""
        kept = tuple(self.kept)
        self.kept.clear()
        self._inbox.put(
            Chunk(
                request_id=self.request.request_id,
                offset=self.sent - len(self.request.prompt_ids),
                token_ids=tuple(tokens),
                logprobs=tuple(logprobs),
                versions=(version,) * len(tokens),
                finish_reason=reason,
                kept=kept,
            )
        )
        self.sent += len(tokens)

    def fail(self, error: EngineError) -> None:
        """End the request with an error."""
        self._inbox.put(error)

    async def receive(self) -> Chunk:
        """Return the next chunk.

        Raises:
            EngineError: the engine failed.
        """
        item = await self._inbox.get()
        if isinstance(item, EngineError):
            raise item
        return item
