"""Base of the context policies.

A chain of tokens that gets too long is not changed: the attempt goes on in a new branch, which
begins with the first messages and holds the last turns, whose actions keep their sampled tokens.
"""

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from rollart_flow.fields import Within, check_fields
from rollart_flow.types import Message, Observation, Role, Tool, ToolCall

Share = Annotated[float, Within(0, 1)]
"""Share of the policy's `max_context`."""


@dataclass(frozen=True)
class ContextPolicy(ABC):  # noqa: B024  each method has a meaning of its own without a subclass
    """Settings of a policy of the context; each method is a function of its arguments.

    Raises:
        SettingsError: names the setting that is no share.
    """

    at: Share = 0.75
    """Share of `max_context` that a chain may have before it is shortened."""
    keep: Share = 0.5
    """Largest share of `max_context` that the kept turns have; the last turn is always kept."""

    tools: ClassVar[tuple[Tool, ...]] = ()
    """Tools that the policy is offered beside those of the environment."""
    request: ClassVar[str | None] = None
    """Request to the policy before its context is shortened; None: there is none."""

    def __post_init__(self) -> None:
        check_fields(self)

    def kept(self, turns: Sequence[int], context_tokens: int) -> int:
        """Return how many of the last turns stay.

        Args:
            turns: tokens of each turn, in order.
            context_tokens: most tokens of a chain.
        """
        left = self.keep * context_tokens
        for count, tokens in enumerate(reversed(turns)):
            left -= tokens
            if left < 0:
                return max(count, 1)
        return len(turns)

    def opening(self, first: Observation, said: str | None, notes: Sequence[str]) -> Observation:
        """Return the messages that the new branch begins with.

        Args:
            first: those of the chain that is shortened, without what was added to them.
            said: answer of the policy to `request`.
            notes: what `called` has noted so far in the attempt.
        """
        return first

    def called(self, call: ToolCall, notes: list[str]) -> str:
        """Return the answer to a call of one of `tools`.

        Args:
            call: a call that fits the tool.
            notes: notes of the attempt, which the call may change.
        """
        raise ValueError(f"{call.name} is no tool of this context policy")


def with_text(observation: Observation, text: str) -> Observation:
    """Return an observation with a paragraph at its end, in the last message of the user."""
    if isinstance(observation, str):
        return f"{observation}\n\n{text}" if observation else text
    *before, last = observation
    if last.role is not Role.USER:
        return (*observation, Message(Role.USER, text))
    parts = (*last.parts, f"\n\n{text}") if last.parts else ()
    return (*before, replace(last, text=f"{last.text}\n\n{text}", parts=parts))
