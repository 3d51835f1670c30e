"""Cut the oldest turns: the first messages stay, with the last turns that fit."""

from dataclasses import dataclass

from rollart_flow.control.context.base import ContextPolicy


@dataclass(frozen=True)
class CutContext(ContextPolicy):
    """Drop the oldest turns, but not what the environment showed first."""
