"""Turns of a conversation as a row of `trajectories` stores it.

A row has the messages that its policy saw, each with the number of its turn in the attempt. An
action that another branch has sampled comes before those of the row's own; where the chain holds
its sampled tokens, its message says so.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rollart_flow.types.images import Image
from rollart_flow.types.messages import NO_IMAGES, Action, Message, Role, message_from_json


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn of a stored conversation."""

    number: int
    """Number of the turn in its attempt."""
    shown: tuple[Message, ...]
    action: Action | None
    """None if the attempt ended before it."""
    tokens: tuple[int, int] | None = None
    """Start and end of the action's tokens in the row, if another branch has sampled them."""
    ended: bool = True
    """Whether that action ended without reaching its length limit."""


def turns_from_json(messages: str, known: Mapping[str, Image] = NO_IMAGES) -> list[StoredTurn]:
    """Return the turns of a stored conversation, those of other branches first.

    Args: `known` is that of `message_from_json`.
    """
    turns: list[StoredTurn] = []
    for form in json.loads(messages):
        message = message_from_json(form, known)
        if not turns or form["turn"] != turns[-1].number:
            turns.append(StoredTurn(form["turn"], (), None))
        if message.role is Role.ASSISTANT:
            place = form.get("tokens")
            tokens = None if place is None else (place[0], place[1])
            ended = form.get("ended", True)
            turns[-1] = replace(turns[-1], action=message.as_action(), tokens=tokens, ended=ended)
        else:
            turns[-1] = replace(turns[-1], shown=(*turns[-1].shown, message))
    return turns
