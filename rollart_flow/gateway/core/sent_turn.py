"""The tokens that went to the engine for a turn, and those that came back."""

from collections.abc import Sequence
from dataclasses import dataclass

from rollart_flow.control.rollout.chain_turn import ChainTurn
from rollart_flow.gateway.core.exchange import Exchange


@dataclass(frozen=True, slots=True)
class SentTurn:
    """Tokens that went to the engine for a turn and came back, to be compared with the chain."""

    turn: ChainTurn
    exchange: Exchange
    prompt_end: tuple[int, ...]
    """Tokens of the prompt from the start of the turn on."""
    returned: tuple[int, ...]

    def mismatches(self, token_ids: Sequence[int]) -> int:
        """Return the number of tokens that the chain has otherwise, or has not."""
        expected = (*self.prompt_end, *self.returned)
        found = token_ids[self.turn.start : self.turn.end]
        if expected == found and self.turn.action_start - self.turn.start == len(self.prompt_end):
            return 0
        differ = sum(a != b for a, b in zip(expected, found, strict=False))
        return max(differ + abs(len(expected) - len(found)), 1)
