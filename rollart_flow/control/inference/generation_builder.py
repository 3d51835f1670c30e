"""GenerationBuilder: joins the chunks of one or more requests to one generation.

The invariant: tokens are appended once and in order. Duplicate tokens are recognized by their
offset; a gap raises an error. Every appended token can be trained on: its id is in the vocabulary
and its logprob is a finite number of at most 0.
"""

import math
from dataclasses import replace
from typing import SupportsIndex

from rollart_flow.errors import EngineError
from rollart_flow.types import Chunk, FinishReason, Generation, GenerationRequest


class ChunkGapError(EngineError):
    """Raised when a chunk was lost in transit; the worker is healthy, the request continues."""


class InvalidChunkError(EngineError):
    """Raised for tokens that no policy can have sampled; the request fails, its worker goes on."""


_ROUNDING = 1e-3
"""Largest logprob, which rounding may put above 0."""


class GenerationFailedError(EngineError):
    """Raised when no worker can continue a generation; its tokens so far stay valid."""

    def __init__(self, message: str, partial: Generation | None = None) -> None:
        super().__init__(message)
        self.partial = partial


class GenerationBuilder:
    """Builder of one request's generation, with the tokens so far.

    Args:
        request: the request.
        vocabulary: number of token ids; None if any id is valid, as in a simulation.
    """

    __slots__ = (
        "_base", "_hardware", "_prefilled_by", "_request", "_vocabulary", "_worker",
        "finish_reason", "kept", "logprobs", "token_ids", "versions",
    )  # fmt: skip

    def __init__(self, request: GenerationRequest, vocabulary: int | None = None) -> None:
        self._request = request
        self._vocabulary = math.inf if vocabulary is None else vocabulary
        self._base = 0
        """Number of tokens from earlier parts."""
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.kept: list[tuple[int, ...]] = []
        self.finish_reason: FinishReason | None = None
        self._hardware = ""
        self._worker = ""
        self._prefilled_by = ""

    def __len__(self) -> int:
        """Number of generated tokens so far."""
        return len(self.token_ids)

    def rest(self, part: int) -> GenerationRequest:
        """Return the request for the missing tokens; part 0 is the original request."""
        if part == 0:
            return self._request
        sampling = self._request.sampling
        return replace(
            self._request,
            request_id=f"{self._request.request_id}~{part}",
            prompt_ids=(*self._request.prompt_ids, *self.token_ids),
            sampling=replace(sampling, max_tokens=sampling.max_tokens - len(self)),
        )

    def begin_part(self, hardware: str, worker: str, prefilled_by: str = "") -> None:
        """Begin the chunks of a new request to this worker, whose offsets restart at 0."""
        self._base = len(self)
        self._hardware = hardware
        self._worker = worker
        self._prefilled_by = prefilled_by

    def add(self, chunk: Chunk) -> None:
        """Append the new tokens of a chunk.

        Raises:
            ChunkGapError: tokens before the chunk are missing.
            InvalidChunkError: the lists of the chunk are not aligned, or hold an impossible value.
        """
        try:
            self._check(chunk)
        except (TypeError, OverflowError) as error:
            raise InvalidChunkError(f"{chunk.request_id}: a chunk is malformed: {error}") from error
        skip = len(self) - self._base - chunk.offset
        if skip < 0:
            raise ChunkGapError(
                f"{chunk.request_id}: tokens {len(self) - self._base} to {chunk.offset} are missing"
            )
        self.token_ids += chunk.token_ids[skip:]
        self.logprobs += chunk.logprobs[skip:]
        self.versions += chunk.versions[skip:]
        self.kept += chunk.kept[skip:]
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason

    def _check(self, chunk: Chunk) -> None:
        count = len(chunk.token_ids)
        kept = count if self._request.sampling.truncates else 0
        if not len(chunk.logprobs) == len(chunk.versions) == count or len(chunk.kept) != kept:
            raise InvalidChunkError(
                f"{chunk.request_id}: a chunk of {count} tokens has {len(chunk.logprobs)} "
                f"logprobs, {len(chunk.versions)} versions and {len(chunk.kept)} kept sets"
            )
        if count:
            self._check_values(chunk)
        if self._base + chunk.offset + count > self._request.sampling.max_tokens:
            raise InvalidChunkError(
                f"{chunk.request_id}: more than {self._request.sampling.max_tokens} tokens, the "
                "most that were asked for"
            )

    def _check_values(self, chunk: Chunk) -> None:
        kinds = {*map(type, chunk.token_ids), *map(type, chunk.versions)}
        if not all(issubclass(kind, SupportsIndex) for kind in kinds) or min(chunk.versions) < 0:
            raise InvalidChunkError(
                f"{chunk.request_id}: a chunk is malformed: ids and versions must be integers"
            )
        least, most = min(chunk.token_ids), max(chunk.token_ids)
        if not 0 <= least <= most < self._vocabulary:
            raise InvalidChunkError(
                f"{chunk.request_id}: token ids from {least} to {most} are not in the vocabulary "
                f"of {self._vocabulary}"
            )
        # The sum is finite only if every logprob is.
        if not math.isfinite(sum(chunk.logprobs)) or max(chunk.logprobs) > _ROUNDING:
            possible = (-math.inf < logprob <= _ROUNDING for logprob in chunk.logprobs)
            wrong = dict(zip(possible, chunk.logprobs, strict=True)).get(False, "-inf in all")
            raise InvalidChunkError(
                f"{chunk.request_id}: a token has the logprob {wrong}; it must be finite and at "
                "most 0"
            )

    def finish_if_full(self) -> None:
        """Set the finish reason if the tokens show that the generation is complete."""
        sampling = self._request.sampling
        if self.token_ids and self.token_ids[-1] in sampling.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif len(self) >= sampling.max_tokens:
            self.finish_reason = FinishReason.LENGTH

    def generation(self) -> Generation:
        """Return the finished generation."""
        return Generation(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            finish_reason=self.finish_reason or FinishReason.ABORT,
            hardware=self._hardware,
            worker=self._worker,
            kept=tuple(self.kept),
            prefilled_by=self._prefilled_by,
        )
