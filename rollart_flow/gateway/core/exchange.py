"""The record of one call: a row of the table `exchanges` before it is committed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Evidence(StrEnum):
    """Kinds of evidence for the parent of a call, the strongest first."""

    ROOT = "root"
    """The conversation is new: nothing in it came from this session."""
    ECHO = "echo"
    """The client sent back an id that the gateway minted."""
    STRUCTURE = "structure"
    """The messages are those of a branch, by their structure."""
    TOKENS = "tokens"
    """The rendered prompt begins with the tokens of a branch."""
    AMBIGUOUS = "ambiguous"
    """Several branches fit equally well, so that the call began a root."""


class CallKind(StrEnum):
    """Purpose of a call, as far as its session can tell."""

    MAIN = "main"
    SUB_AGENT = "sub_agent"
    COMPACTION = "compaction"
    SIDE = "side"


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One call, from its arrival to its answer. Times are those of the running loop [s]."""

    number: int
    """Number of the call in its session, from 0, in the order of arrival."""
    wire: str
    client: str
    model: str
    lineage: str
    stream: bool
    digest: str
    request: str
    """Messages and tools of the call as JSON, without what its parent has (`reused_messages`); of a
    call without a place, the last messages and the number of those before (`left_out`)."""
    reused_messages: int = 0
    """Leading messages that are those of the exchange `parent`, its answer included."""
    parent: int | None = None
    """Number of the exchange that this one goes on from; None for a root."""
    evidence: Evidence = Evidence.ROOT
    kind: CallKind = CallKind.MAIN
    branch: int | None = None
    """Number of the branch that has the answer; None if nothing was sampled."""
    start: int = 0
    """Index in the branch of the first token of the prompt that no earlier turn has."""
    answer_start: int = 0
    """Index in the branch of the first sampled token, which is the length of the prompt."""
    end: int = 0
    """Index in the branch after the last sampled token."""
    requested: Mapping[str, object] = field(default_factory=dict)
    """Sampling that the client asked for, with max_tokens."""
    max_tokens: int = 0
    """Most tokens that the answer could have; all other sampling is that of the assignment."""
    dropped: tuple[str, ...] = ()
    arrived: float = 0.0
    generating: float | None = None
    """When the request went to the engine; None if it never did."""
    first_token: float | None = None
    """When the first token of the answer was sampled; None if none was."""
    ended: float = 0.0
    answer: str | None = None
    """The answer as JSON; None if there was none."""
    answer_id: str | None = None
    control: bool = False
    refusal: str | None = None
    """Kind of the refusal; None for a call that was answered."""
    error: str | None = None
    joins: int = 0
    """Requests that joined this one while it was under way."""
    replays: int = 0
    """Requests that got the stored answer of this one."""
    mismatches: int = 0
    """Tokens at which the chain differs from what was sent and returned; 0 unless there is a
    defect."""
    prompt_ids: tuple[int, ...] | None = None
    """Tokens of the whole prompt as they were sent; None where they are those of the branch."""
    answer_ids: tuple[int, ...] | None = None
    """Tokens of the answer as they were returned; None where they are those of the branch."""
    hung_up: bool = False
    """Whether the client left before its answer."""

    @property
    def fruitless(self) -> bool:
        """Whether the call has ended without a sampled token."""
        ended = self.answer is not None or self.refusal is not None
        return ended and self.answer_start == self.end
