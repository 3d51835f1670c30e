"""Requests to an engine, and the tokens that answer them."""

from dataclasses import dataclass

from rollart_flow.types.events import FinishReason


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled. Stored with each trajectory and applied again by the trainer.

    Defaults follow ROLL Flash A.1: temperature 1 and top-p 1, so that stored logprobs are those
    of the policy itself.
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    max_tokens: int = 64
    """Maximum number of tokens of one generation (one turn)."""
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    """Empty allows every token; otherwise all others have probability zero."""

    @property
    def truncates(self) -> bool:
        """Whether top-p or top-k cut the distribution, so that kept token ids are recorded."""
        return self.temperature > 0 and (self.top_p < 1.0 or self.top_k > 0)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The KV cache of a prompt, which a prefill worker holds until a decode worker fetches it."""

    version: int
    """Policy version that computed the cache, which is valid for no other version."""
    address: str
    """Location of the cache, in the form that engines of this kind exchange."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request to generate tokens.

    `prompt_ids` is the whole chain so far: observation and action tokens.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    trajectory_id: str = ""
    """Key of sticky placement, so that a prefix stays cached on one worker."""
    domain: str = "default"
    placement: int | None = None
    """Number of the group, if one worker decodes all requests of a group; None: placement follows
    trajectory and load."""
    prefill_only: bool = False
    """Compute the prompt's KV cache and hold it for a decode worker; sample no token."""
    prefix: Prefix | None = None
    """KV cache that another worker computed; None: this worker computes the whole prompt."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of the generated tokens of one request, with the policy version that sampled each.

    `offset` counts generated tokens of the request before this chunk, so that a chunk that
    arrives twice is recognized. The four lists are aligned, `kept` only where `Sampling.truncates`.
    """

    request_id: str
    offset: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    """Policy version that sampled each token."""
    finish_reason: FinishReason | None = None
    """None: more will follow."""
    kept: tuple[tuple[int, ...], ...] = ()
    """Per token, the ids that top-p or top-k left to sample from."""
    prefix: Prefix | None = None
    """The held KV cache, in reply to `GenerationRequest.prefill_only`; None if none is held."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation: its joined chunks and the worker that ran it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason
    hardware: str = ""
    worker: str = ""
    kept: tuple[tuple[int, ...], ...] = ()
    prefilled_by: str = ""
    """Worker that computed the KV cache of the prompt; empty: the one that sampled the tokens."""
