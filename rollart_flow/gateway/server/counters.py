"""GatewayCounters: figures of a server, for metrics."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

from rollart_flow.gateway.core.calls import Refusal
from rollart_flow.gateway.server.keys import Answering


@dataclass(slots=True)
class GatewayCounters:
    """Figures since the start of a server."""

    calls: int = 0
    """Requests for an answer that reached a session, joins and replays included."""
    counts: int = 0
    """Requests for the number of tokens of a prompt."""
    under_way: int = 0
    """Requests for an answer that are under way now."""
    hang_ups: int = 0
    """Requests whose client left before its answer."""
    heartbeats: int = 0
    """Heartbeats in streams."""
    held_s: float = 0.0
    """Time that streams lived on heartbeats alone [s], mostly while engines were suspended."""
    refused: Counter[Refusal] = field(default_factory=Counter)
    """Requests without an answer by the reason; `Refusal.KEY` counts the unknown keys."""
    joins: int = 0
    """Requests that joined a call under way."""
    replays: int = 0
    """Requests that got a stored answer."""

    first_tokens: int = 0
    """Calls that got a token."""
    first_token_s: float = 0.0
    """Time from these calls to their first token, summed up [s]."""

    def add(self, session: Answering) -> None:
        """Add the figures that a session has itself."""
        for exchange in session.exchanges:
            if exchange.first_token is not None:
                self.first_tokens += 1
                self.first_token_s += exchange.first_token - exchange.arrived
            self.joins += exchange.joins
            self.replays += exchange.replays

    def with_open(self, sessions: Iterable[Answering]) -> "GatewayCounters":
        """Return the figures together with those of sessions that are open."""
        figures = replace(self, refused=self.refused.copy())
        for session in sessions:
            figures.add(session)
        return figures

    def as_json(self) -> dict[str, float]:
        """Return all figures by name; those of refusals are `refused_` and the reason."""
        figures = asdict(self)
        del figures["refused"]
        return figures | {f"refused_{reason}": self.refused[reason] for reason in Refusal}
