"""Our sampling settings as vLLM's, and its logprobs as ours.

No request has a seed of its own. With one, vLLM 0.32 winds its generator back wherever a prefill is
cut in two, which generators on CPUs cannot do: its process dies. On GPUs it draws for each request
by itself then, which costs more than it brings, since logits differ with the batch in the last bits
anyway. So what is drawn depends on the engine's seed and on all that it has served before: the same
requests, one at a time and in the same order, give the same tokens; concurrent ones need not.
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
"""vLLM takes lower temperatures, but draws with the first; it takes no higher ones."""


def check(
    request: GenerationRequest, *, context: int, vocabulary: int, prefills: bool = False
) -> None:
    """Refuse what vLLM cannot serve exactly; arguments as of `check_request`.

    Raises:
        EngineError: names the request and says what is wrong.
    """
    check_request(request, context=context, vocabulary=vocabulary, prefills=prefills)
    temperature = request.sampling.temperature
    if temperature != 0 and not _COLDEST <= temperature <= _HOTTEST:
        raise refused(
            request,
            f"vLLM takes temperature 0 or from {_COLDEST:g} to {_HOTTEST:g}, not {temperature:g}",
        )


def parameters(request: GenerationRequest, *, context: int, vocabulary: int) -> SamplingParams:
    """vLLM's settings for a request that was checked.

    Where top-p or top-k cut the distribution, the logprobs of all tokens that may be left are
    asked for: top-p alone may leave any, which is dear for a large vocabulary.
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
    """Logprob of each token that was drawn: the first of its position."""
    return [logprobs.logprobs[start] for start in logprobs.start_indices]


def kept(logprobs: FlatLogprobs) -> Iterator[tuple[int, ...]]:
    """For each token the ids that were left to draw from, ascending."""
    for start, end in zip(logprobs.start_indices, logprobs.end_indices, strict=True):
        pairs = zip(logprobs.token_ids[start:end], logprobs.logprobs[start:end], strict=True)
        yield tuple(sorted({token for token, value in pairs if value > -inf}))
