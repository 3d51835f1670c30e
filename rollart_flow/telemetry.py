"""Progress messages from the runner to a display, sent while a run goes on.

A message repeats data that the tables hold or are about to hold, so a lost message loses no data.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self


class ProgressKind(StrEnum):
    """Kinds of progress messages."""

    PHASE = "phase"
    """A longer phase has begun."""
    STEP = "step"
    """A training step has ended."""
    EVALUATION = "evaluation"
    """A policy version was evaluated."""
    BEGUN = "begun"
    """The run has tables, which can be read while it goes on."""
    NOTE = "note"
    """A remark of one line, such as a fallback."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One message. The kind determines the fields that are set; see the constructors."""

    kind: ProgressKind
    total_steps: int = 0
    """Steps that the run will have; 0 if the number is not known yet."""
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
        """Report that a longer phase has begun, e.g. "starting the engines"."""
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
        """Report that a training step has ended; `row` has the columns of `steps`."""
        return cls(
            ProgressKind.STEP,
            total_steps,
            row=row,
            rewards=dict(rewards or {}),
            committed=committed,
        )

    @classmethod
    def evaluation(cls, rows: Sequence[Mapping[str, Any]], *, total_steps: int = 0) -> Self:
        """Report that a version was evaluated; `rows` have the columns of `evaluations`."""
        return cls(ProgressKind.EVALUATION, total_steps, rows=tuple(rows))

    @classmethod
    def begun(cls, uri: str) -> Self:
        """Report that the run at an address has tables."""
        return cls(ProgressKind.BEGUN, text=uri)

    @classmethod
    def note(cls, text: str) -> Self:
        """Report a remark of one line."""
        return cls(ProgressKind.NOTE, text=text)


OnProgress = Callable[[Progress], None]
"""Callback that shows a message. Called in the driver, one message at a time; must not block."""


def one_at_a_time(on_progress: OnProgress) -> OnProgress:
    """Return a callback that several threads may call; one message is shown at a time."""
    lock = threading.Lock()

    def show(progress: Progress) -> None:
        with lock:
            on_progress(progress)

    return show


def ignore_progress(progress: Progress) -> None:
    """Discard a progress message."""
