"""CaptureLimits: what a session of the gateway allows, and how its calls become rows."""

from dataclasses import dataclass

from rollart_flow.gateway.core.exchange import CallKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureLimits:
    """Limits and choices of one session."""

    max_calls: int = 200
    """Calls after which the gateway ends the agent's turn itself, with a text of its own."""
    max_tokens: int = 1_000_000
    """Sampled tokens after which the gateway ends the agent's turn itself."""
    max_under_way: int = 32
    """Calls that may be under way at once."""
    repeats_lost: bool = False
    """Whether the client repeats a request only where its answer was lost, so that it gets the same
    answer once even if it ends its connection after each one."""
    per_request: bool = False
    """Whether each call is a trajectory of its own; otherwise calls that go on from one another
    are one (Polar's prefix merging)."""
    volatile: tuple[str, ...] = ()
    """Regular expressions of spans of the opening that change from call to call."""
    trained: frozenset[CallKind] = frozenset(
        {CallKind.MAIN, CallKind.SUB_AGENT, CallKind.COMPACTION}
    )
    """Kinds of calls whose tokens are trained on."""
