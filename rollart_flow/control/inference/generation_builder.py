"""Chunks joined to one generation, over as many requests as it takes.

The invariant: tokens are appended once and in order. What arrives twice is recognized by its
offset; a gap is an error and never a hole.
"""

from dataclasses import replace

from rollart_flow.errors import EngineError
from rollart_flow.types import Chunk, FinishReason, Generation, GenerationRequest


class ChunkGapError(EngineError):
    """A chunk was lost on the way; the worker is well, and the request is continued."""


class GenerationFailedError(EngineError):
    """A generation cannot go on anywhere. Its tokens so far stay valid."""

    def __init__(self, message: str, partial: Generation | None = None) -> None:
        super().__init__(message)
        self.partial = partial


class GenerationBuilder:
    """The tokens of one request so far."""

    __slots__ = (
        "_base", "_hardware", "_prefilled_by", "_request", "_worker", "finish_reason", "kept",
        "logprobs", "token_ids", "versions",
    )  # fmt: skip

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._base = 0
        """Tokens that earlier parts brought."""
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.kept: list[tuple[int, ...]] = []
        self.finish_reason: FinishReason | None = None
        self._hardware = ""
        self._worker = ""
        self._prefilled_by = ""

    def __len__(self) -> int:
        """Generated tokens so far."""
        return len(self.token_ids)

    def rest(self, part: int) -> GenerationRequest:
        """The request for what is missing; the first part is the request itself."""
        if part == 0:
            return self._request
        sampling = self._request.sampling
        return replace(
            self._request,
            request_id=f"{self._request.request_id}~{part}",
            prompt_ids=self._request.prompt_ids + tuple(self.token_ids),
            sampling=replace(sampling, max_tokens=sampling.max_tokens - len(self)),
        )

    def begin_part(self, hardware: str, worker: str, prefilled_by: str = "") -> None:
        """Chunks of a new request follow, from this worker; their offsets start at 0 again."""
        self._base = len(self)
        self._hardware = hardware
        self._worker = worker
        self._prefilled_by = prefilled_by

    def add(self, chunk: Chunk) -> None:
        """Append what is new of a chunk.

        Raises:
            ChunkGapError: tokens before it are missing.
            EngineError: its lists are not aligned.
        """
        self._check(chunk)
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
            raise EngineError(
                f"{chunk.request_id}: a chunk of {count} tokens has {len(chunk.logprobs)} "
                f"logprobs, {len(chunk.versions)} versions and {len(chunk.kept)} kept sets"
            )

    def finish_if_full(self) -> None:
        """Set the finish reason where the tokens themselves say that nothing is missing."""
        sampling = self._request.sampling
        if self.token_ids and self.token_ids[-1] in sampling.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif len(self) >= sampling.max_tokens:
            self.finish_reason = FinishReason.LENGTH

    def generation(self) -> Generation:
        """The finished generation."""
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
