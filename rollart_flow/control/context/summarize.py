"""Let the policy summarize: its summary stands for all turns but the last ones.

The summary is an action like any other: its tokens are trained, with the reward of the attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rollart_flow.control.context.base import ContextPolicy, Share, with_text
from rollart_flow.types import Observation


@dataclass(frozen=True)
class SummarizedContext(ContextPolicy):
    """Ask the policy for a summary, and go on with the first messages, it and the last turn."""

    keep: Share = 0.0

    request: ClassVar[str | None] = (
        "The conversation gets too long and goes on without its earlier turns. Summarize what was "
        "found and done, and what is left to do. Answer with the summary only."
    )

    def opening(self, first: Observation, said: str | None, notes: Sequence[str]) -> Observation:
        """Return the first messages and the summary."""
        return with_text(first, f"Summary of the earlier turns:\n{said}") if said else first
