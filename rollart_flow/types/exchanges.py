"""Calls of captured agents: rows of the table `exchanges` before they are committed.

The gateway answers the calls of one attempt. Those that sampled something refer to the tokens of a
branch; the other fields say what the client asked for, what it got, and when.
"""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredExchange:
    """One call of a captured agent, after its end. Fields are columns of the same name."""

    number: int
    """Number of the call in its attempt, from 0, in the order of arrival."""
    wire: str
    kind: str
    """Purpose of the call, as `gateway.core.exchange.CallKind`."""
    evidence: str
    """How the parent was found, as `gateway.core.exchange.Evidence`."""
    parent: int | None
    """Number of the call that this one goes on from; None for a root."""
    request: str
    """Messages and tools of the call as JSON, without what its parent has."""
    reused_messages: int
    """Leading messages that are those of the parent, its answer included."""
    arrived_at: datetime
    generating_at: datetime | None
    """When the request went to the engine; None if it never did."""
    ended_at: datetime
    trajectory_id: str | None = None
    """Branch that has the answer; None if nothing was sampled."""
    start: int | None = None
    """Index in the branch of the first token of the prompt that no earlier call has."""
    answer_start: int | None = None
    """Index in the branch of the first sampled token."""
    answer_end: int | None = None
    """Index in the branch after the last sampled token."""
    trained_tokens: int = 0
    """Sampled tokens that are action tokens of the branch."""
    prompt_ids: tuple[int, ...] | None = None
    """Tokens of the whole prompt as they were sent; None where they are those of the branch."""
    answer_ids: tuple[int, ...] | None = None
    """Tokens of the answer as they were returned; None where they are those of the branch."""
    answer: str | None = None
    """Answer as JSON; None if there was none."""
    answer_id: str | None = None
    control: bool = False
    """Whether the text of the answer is the gateway's own."""
    refusal: str | None = None
    error: str | None = None
    client: str = ""
    model: str = ""
    lineage: str = ""
    stream: bool = False
    digest: str = ""
    requested: str = "{}"
    """Sampling that the client asked for, as JSON."""
    effective: str = "{}"
    """Sampling that was used, as JSON."""
    dropped: tuple[str, ...] = ()
    joins: int = 0
    replays: int = 0
    mismatches: int = 0
    hung_up: bool = False
    parser: str | None = None
    template: str | None = None
    first_token_at: datetime | None = None
    """When the first token of the answer was sampled; None if none was, or for a call of a run of
    an earlier schema version."""

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that were sampled for the answer."""
        if self.answer_start is None or self.answer_end is None:
            return 0
        return self.answer_end - self.answer_start

    @property
    def queue_s(self) -> float | None:
        """Seconds from the arrival to the request to the engine; None if there was none."""
        began = self.generating_at
        return None if began is None else (began - self.arrived_at).total_seconds()

    @property
    def call_s(self) -> float:
        """Seconds from the arrival to the end."""
        return (self.ended_at - self.arrived_at).total_seconds()
