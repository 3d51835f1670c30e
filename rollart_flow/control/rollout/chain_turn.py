"""ChainTurn: one turn of a branch, while its attempt is recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rollart_flow.types import Action, FinishReason, Message, Observation, Reason, Turn
from rollart_flow.types.messages import text_of


@dataclass(frozen=True, slots=True)
class Withheld:
    """Why the sampled tokens of a row are not trained on, though their attempt may be.

    Their action mask is False; their logprobs and versions stay.
    """

    reason: Reason
    error: str | None = None


@dataclass(slots=True)
class ChainTurn:
    """A turn of a chain: observation, action, and the answer of the environment."""

    number: int
    """Number of the turn in the attempt."""
    start: int
    action_start: int
    """Index of the first generated token of the turn."""
    observation: Observation
    action: Action | None = None
    results: Mapping[str, Message] | None = None
    """Answers to calls of the action that the environment does not get, by id of the call."""
    rendered: bool = False
    """Whether the turn has no tokens of its own, since the chat template rendered it again as a
    part of the next observation."""
    generate_s: float = 0.0
    hardware: str = ""
    worker: str = ""
    prefilled_by: str = ""
    finish_reason: FinishReason = FinishReason.ABORT
    end: int = 0
    reward: float = 0.0
    step_s: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether the action ended without reaching its length limit."""
        return self.finish_reason != FinishReason.LENGTH

    def as_rendered(self, place: int = 0) -> "ChainTurn":
        """Return the turn as one that is rendered again, before the token at `place`."""
        if self.rendered and self.start == place:
            return self
        return replace(self, start=place, action_start=place, end=place, rendered=True)

    def turn(self) -> Turn:
        """Return the turn of the trajectory."""
        return Turn(
            start=self.start,
            end=self.end,
            observation=text_of(self.observation),
            action="" if self.action is None else self.action.text,
            reward=self.reward,
            generate_s=self.generate_s,
            step_s=self.step_s,
            hardware=self.hardware,
            worker=self.worker,
            finish_reason=self.finish_reason,
        )
