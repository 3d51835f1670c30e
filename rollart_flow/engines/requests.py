"""Validation of requests: rejects, before any computation, requests that no engine can serve.

The invariant: an accepted request contains only token ids of the model, and asks for at least one
token from a valid distribution.
"""

from rollart_flow.errors import EngineError
from rollart_flow.types import GenerationRequest


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
        EngineError: the request is invalid; the message names it and the fault.
    """
    prompt, allowed = request.prompt_ids, request.sampling.allowed_token_ids
    for wrong, message in (
        (request.prefill_only and not prefills, "the engine computes no prompts for others"),
        (prefills and not request.prefill_only, "the engine computes prompts only"),
        (not prompt, "the prompt is empty"),
        (len(prompt) > context, f"the prompt has {len(prompt)} tokens, the context {context}"),
        (
            bool(prompt) and not 0 <= min(prompt) <= max(prompt) < vocabulary,
            f"the prompt holds a token id that is not below {vocabulary}",
        ),
        (
            bool(allowed) and not 0 <= min(allowed) <= max(allowed) < vocabulary,
            f"allowed_token_ids holds an id that is not below {vocabulary}",
        ),
    ):
        if wrong:
            raise refused(request, message)


def refused(request: GenerationRequest, message: str) -> EngineError:
    """Build the error for a request that is not served."""
    return EngineError(f"request {request.request_id!r}: {message}")
