"""What a run tells while it goes on. Frozen messages from the runner to whoever shows them.

A message repeats what is in the tables, or will be in a moment; who misses one misses nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self


class ProgressKind(StrEnum):
    """What a progress message says."""

    PHASE = "phase"
    """Something that takes a while has begun."""
    STEP = "step"
    """A training step has ended."""
    EVALUATION = "evaluation"
    """A version was evaluated."""
    NOTE = "note"
    """Something worth a line, such as a fallback."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One message. Which fields are set depends on the kind; see the constructors."""

    kind: ProgressKind
    total_steps: int = 0
    """Steps that the run will have; 0 where it is not known yet."""
    text: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The row of `steps`."""
    rows: tuple[Mapping[str, Any], ...] = ()
    """Rows of `evaluations`."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Mean reward of the batch by domain."""
    committed: int = 0
    """Trajectories that the run has committed so far, whatever their outcome."""

    @classmethod
    def phase(cls, text: str, *, total_steps: int = 0) -> Self:
        """Something that takes a while has begun, e.g. "starting the engines"."""
        return cls(ProgressKind.PHASE, total_steps, text)

    @classmethod
    def step(
        cls,
        row: Mapping[str, Any],
        *,
        total_steps: int,
        rewards: Mapping[str, float] | None = None,
        committed: int = 0,
    ) -> Self:
        """A training step has ended; `row` has the columns of `steps`."""
        return cls(
            ProgressKind.STEP,
            total_steps,
            row=row,
            rewards=dict(rewards or {}),
            committed=committed,
        )

    @classmethod
    def evaluation(cls, rows: Sequence[Mapping[str, Any]], *, total_steps: int = 0) -> Self:
        """A version was evaluated; `rows` have the columns of `evaluations`."""
        return cls(ProgressKind.EVALUATION, total_steps, rows=tuple(rows))

    @classmethod
    def note(cls, text: str) -> Self:
        """Something worth a line."""
        return cls(ProgressKind.NOTE, text=text)


OnProgress = Callable[[Progress], None]
"""Who shows it. Called in the driver, one message after the other; must not block."""


def ignore_progress(progress: Progress) -> None:
    """Show nothing."""
