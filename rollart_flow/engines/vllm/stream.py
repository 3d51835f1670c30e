"""One request inside vLLM: its settings, its sampled tokens, their versions and its reader.

The invariant: each token is delivered once, in order, with the version under which it was sampled.
With the last token, vLLM reports the version of every token; a stream whose record differs ends
with an error.

Requests have no individual seeds. With a seed, vLLM 0.32 rewinds its generator wherever a prefill
is split, which CPU generators cannot do, so its process dies. On GPUs it would then sample each
request separately, which costs more than it gains, since the last bits of logits depend on the
batch anyway. The sampled tokens therefore depend on the engine's seed and on all previous requests:
the same requests, one at a time and in the same order, give the same tokens; concurrent requests
may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from rollart_flow.control.loop.inbox import Inbox
from rollart_flow.engines.requests import check_request, refused
from rollart_flow.errors import EngineError
from rollart_flow.types import Chunk, FinishReason, GenerationRequest, Prefix

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import CompletionOutput


_COLDEST, _HOTTEST = 0.01, 2.0
"""Limits of the temperature; vLLM accepts lower values but samples with the first, and accepts no
higher ones."""


def check(
    request: GenerationRequest, *, context: int, vocabulary: int, prefills: bool = False
) -> None:
    """Raise EngineError for a request that vLLM cannot serve exactly; see `check_request`."""
    check_request(request, context=context, vocabulary=vocabulary, prefills=prefills)
    temperature = request.sampling.temperature
    if temperature != 0 and not _COLDEST <= temperature <= _HOTTEST:
        takes = f"vLLM takes temperature 0 or from {_COLDEST:g} to {_HOTTEST:g}"
        raise refused(request, f"{takes}, not {temperature:g}")


def parameters(request: GenerationRequest, *, context: int, vocabulary: int) -> SamplingParams:
    """Return vLLM's settings for a checked request.

    If top-p or top-k truncates the distribution, the logprobs of all tokens that may remain are
    requested. Top-p alone may keep any token, which is expensive for a large vocabulary.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    may_be_kept = min(sampling.top_k or vocabulary, vocabulary)
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=min(sampling.top_k, vocabulary),
        max_tokens=min(sampling.max_tokens, context - len(request.prompt_ids)),
        stop_token_ids=list(sampling.stop_token_ids),
        allowed_token_ids=list(sampling.allowed_token_ids) or None,
        ignore_eos=True,
        logprobs=may_be_kept if sampling.truncates else 0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def sampled_logprobs(logprobs: FlatLogprobs) -> list[float]:
    """Return the logprob of each sampled token, which is the first entry of its position."""
    return [logprobs.logprobs[start] for start in logprobs.start_indices]


def kept(logprobs: FlatLogprobs) -> Iterator[tuple[int, ...]]:
    """Yield, for each token, the ids that remained after truncation, in ascending order."""
    for start, end in zip(logprobs.start_indices, logprobs.end_indices, strict=True):
        pairs = zip(logprobs.token_ids[start:end], logprobs.logprobs[start:end], strict=True)
        yield tuple(sorted({token for token, value in pairs if value > -inf}))


class VllmStream:
    """A request in flight."""

    def __init__(self, request: GenerationRequest, chunk_tokens: int) -> None:
        """Args: `chunk_tokens` is the chunk size; the last or a flushed chunk may be smaller."""
        self.request = request
        self.generating = False
        """Whether vLLM has the request."""
        self.ended = False
        self.fetching = False
        """Whether vLLM may be fetching the prompt: it has sampled no token since."""
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
        self._inbox: Inbox[Chunk | EngineError] = Inbox()

    def take(self, output: CompletionOutput, version: int) -> None:
        self.fetching = False
        if output.token_ids:
            self._tokens += output.token_ids
            self._logprobs += sampled_logprobs(output.logprobs)
            self._versions += [version] * len(output.token_ids)
            if self.request.sampling.truncates:
                self._kept += kept(output.logprobs)
        if output.finish_reason is not None:
            self._finish(output)
        elif len(self._tokens) >= self._chunk_tokens:
            self._send(None)

    def flush(self) -> None:
        if self._tokens:
            self._send(None)

    def end(self, reason: FinishReason) -> None:
        """End the request with the tokens sampled so far."""
        self._send(reason)

    def hand_over(self, prefix: Prefix | None) -> None:
        """End the request with the held prefix of the prompt, or None if it was aborted."""
        self._send(FinishReason.ABORT if prefix is None else FinishReason.LENGTH, prefix)

    def fail(self, error: EngineError) -> None:
        """End the request with an error, unless it has already ended."""
        if not self.ended:
            self.ended = True
            self._inbox.put(error)

    async def receive(self) -> Chunk:
        """Return the next chunk; EngineError if the engine failed."""
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
        self._inbox.put(
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
