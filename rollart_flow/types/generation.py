"""Requests to an engine, and the tokens that answer them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rollart_flow.fields import Count, NotNegative, Within, check_fields
from rollart_flow.types.events import FinishReason
from rollart_flow.types.images import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings of sampling, stored with each trajectory and applied again by the trainer.

    Defaults follow ROLL Flash A.1: temperature 1 and top-p 1, so that stored logprobs are those
    of the policy itself.

    Raises:
        SettingsError: names the setting that is out of range.
    """

    temperature: Annotated[float, Within(0)] = 1.0
    """Temperature of the distribution; 0 is greedy."""
    top_p: Annotated[float, Within(0, 1, open_low=True)] = 1.0
    """Least probability that the most likely tokens, to which sampling is cut, have together."""
    top_k: NotNegative = 0
    """Number of most likely tokens to sample from; 0 keeps every token."""
    max_tokens: Count = 16
    """Maximum number of tokens of one generation, which is the action of one turn."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a generation; in a pipeline, empty takes those of the policy's tokenizer."""
    allowed_token_ids: tuple[int, ...] = ()
    """Tokens that may be sampled, all others have probability zero; empty allows every token."""

    def __post_init__(self) -> None:
        check_fields(self)

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
    prompt_ids: Sequence[int]
    """A tuple or `TokenIds`, which compare and hash alike."""
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
    images: tuple[Image, ...] = ()
    """Images whose placeholders the prompt has, in their order, with their files."""


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
