"""Conversion of sampling settings to vLLM's, and of vLLM's logprobs to this library's.

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

from rollart_flow.engines.requests import check_request, refused
from rollart_flow.types import GenerationRequest

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.logprobs import FlatLogprobs

_COLDEST, _HOTTEST = 0.01, 2.0
"""Limits of the temperature; vLLM accepts lower values but samples with the first, and accepts no
higher ones.
"""


def check(
    request: GenerationRequest, *, context: int, vocabulary: int, prefills: bool = False
) -> None:
    """Reject a request that vLLM cannot serve exactly; the arguments are those of `check_request`.

    Raises:
        EngineError: the request is invalid; the message names it and the fault.
    """
    check_request(request, context=context, vocabulary=vocabulary, prefills=prefills)
    temperature = request.sampling.temperature
    if temperature != 0 and not _COLDEST <= temperature <= _HOTTEST:
        raise refused(
            request,
            f"vLLM takes temperature 0 or from {_COLDEST:g} to {_HOTTEST:g}, not {temperature:g}",
        )


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


def drawn(logprobs: FlatLogprobs) -> list[float]:
    """Return the logprob of each sampled token, which is the first entry of its position."""
    return [logprobs.logprobs[start] for start in logprobs.start_indices]


def kept(logprobs: FlatLogprobs) -> Iterator[tuple[int, ...]]:
    """Yield, for each token, the ids that remained after truncation, in ascending order."""
    for start, end in zip(logprobs.start_indices, logprobs.end_indices, strict=True):
        pairs = zip(logprobs.token_ids[start:end], logprobs.logprobs[start:end], strict=True)
        yield tuple(sorted({token for token, value in pairs if value > -inf}))
