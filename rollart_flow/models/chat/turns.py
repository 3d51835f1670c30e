"""The fast path: templates that only append to earlier turns.

A chat template usually renders a whole conversation; a trajectory is one append-only chain whose
generated tokens are never encoded again. `TurnFormat` therefore extracts the text that a template
puts around one turn: it renders two probe conversations and keeps the pieces.
"""

from dataclasses import dataclass

from rollart_flow.errors import SettingsError, TemplateRefusedError
from rollart_flow.models.chat.template import ChatTemplate

_PROBES = ("first-observation", "first-action", "second-observation")
_PROBE_TURNS = [
    {"role": role, "content": text}
    for role, text in zip(("user", "assistant", "user"), _PROBES, strict=True)
]


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """The text that a chat template puts around the turns of an append-only conversation."""

    opening: str
    """Text before the first observation."""
    invitation: str
    """Text after an observation, which prompts for the action."""
    between: str
    """Text between an action and the next observation; it begins with the end-of-turn marker."""
    appends: bool
    """Whether the pieces render any conversation; if not, the template rewrites earlier turns."""

    @staticmethod
    def from_template(template: ChatTemplate) -> "TurnFormat":
        """Extract the format of a chat template.

        Raises:
            SettingsError: the template fails, drops earlier turns or has no generation prompt.
        """
        first, action, second = _PROBES
        try:
            short, long = (template.render(_PROBE_TURNS[:n], prompt=True) for n in (1, 3))
            unprompted = template.render(_PROBE_TURNS[:1], prompt=False)
        except TemplateRefusedError as error:
            raise SettingsError(f"the chat template cannot be rendered: {error}") from error
        opening, found, invitation = short.partition(first)
        head, tail = short + action, second + invitation
        between = long[len(head) : len(long) - len(tail)]
        if found and invitation and between and long == head + between + tail:
            return TurnFormat(opening, invitation, between, appends=True)
        history, shown, rest = long.partition(action)
        between, follows, invitation = rest.partition(second)
        prompted = short != unprompted or not history.removeprefix(short).strip()
        if not (found and shown and follows and between and invitation and prompted):
            raise SettingsError(
                "the chat template drops earlier turns or lacks a generation prompt; "
                "use that of an instruction-tuned model, such as ChatML"
            )
        return TurnFormat(opening, invitation, between, appends=False)
