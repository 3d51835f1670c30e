"""A few attempts of a record, as the rows of a table of samples."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SampledAttempt:
    """One attempt of a table of samples."""

    trajectory_id: str
    domain: str
    outcome: str
    reward: float | None
    turns: int
    messages: tuple[tuple[str, str], ...]
    """Role and text of each message, from the first, as far as `samples.LONGEST_TEXT` goes."""

    @property
    def text(self) -> str:
        """The conversation as one text."""
        return "\n".join(f"{role}: {said}" for role, said in self.messages)


COLUMNS = ("trajectory", "domain", "outcome", "reward", "turns", "conversation")
"""Columns of a table of samples."""


def sample_rows(samples: tuple[SampledAttempt, ...]) -> list[tuple[Any, ...]]:
    """Return the rows of a table of samples, in the order of `COLUMNS`."""
    return [(s.trajectory_id, s.domain, s.outcome, s.reward, s.turns, s.text) for s in samples]
