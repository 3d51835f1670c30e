"""The log of a simulated run, in order and with virtual times.

The invariant: a log entry uses no randomness and awaits nothing, so that it changes no run.
"""

import asyncio
from dataclasses import dataclass, field

from rollart_flow.types import Event


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log."""

    time_s: float
    """Virtual seconds since the run began, over all its resumptions."""
    kind: str
    subject: str
    reason: str = ""
    detail: str = ""

    def __str__(self) -> str:
        line = f"{self.time_s:9.3f}  {self.kind:11} {self.subject:18} {self.reason:19} "
        return (line + self.detail).rstrip()


@dataclass
class Log:
    """Entries, and the clock of the run."""

    entries: list[Entry] = field(default_factory=list)
    began_s: float = 0.0
    """Time at which the current life began: each life has a loop whose clock starts at 0."""

    _ended_s: float | None = None

    @property
    def now_s(self) -> float:
        """Virtual seconds since the run began."""
        if self._ended_s is not None:
            return self._ended_s
        return self.began_s + asyncio.get_running_loop().time()

    def begin_life(self) -> None:
        """Continue the clock in a new loop, whose own clock starts at 0."""
        self.began_s = self._ended_s or 0.0
        self._ended_s = None

    def end_life(self) -> None:
        """Stop the clock before the loop is closed."""
        self._ended_s = self.now_s

    def write(self, kind: str, subject: str, reason: str = "", detail: str = "") -> None:
        """Append an entry."""
        self.entries.append(Entry(self.now_s, kind, subject, reason, detail))

    def event(self, event: Event) -> None:
        """Append an event of the control plane."""
        said = [] if event.step is None else [f"step {event.step}"]
        if event.policy_version is not None:
            said.append(f"version {event.policy_version}")
        said += [f"{name} {value}" for name, value in event.detail.items() if name != "payload"]
        self.write(event.kind, event.subject, event.reason or "", ", ".join(said))


class EventLog:
    """An `Emit` for tests, which collects events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Append an event."""
        self.events.append(event)

    def of(self, kind: str) -> list[Event]:
        """Events of one kind."""
        return [event for event in self.events if event.kind == kind]
