"""A context policy that keeps as few turns as possible."""

from collections.abc import Sequence
from dataclasses import dataclass

from rollart_flow.control.context.base import ContextPolicy
from rollart_tiny import used


@dataclass(frozen=True)
class TinyContext(ContextPolicy):
    """Keeps one turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        used("context")

    def kept(self, turns: Sequence[int], context_tokens: int) -> int:
        """Keep the last turn."""
        return 1
