"""A stored trajectory as its messages say, and as its tokens say."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rollart_flow.control.environment import Codec, Conversation
from rollart_flow.control.rollout.conversing import TextConversation, Transcript, converse
from rollart_flow.types import Action, FinishReason, Message, Observation, Tool, Trajectory, Turn
from rollart_flow.types.messages import messages_json, messages_of, tool_from_json
from rollart_flow.types.stored_turns import StoredTurn, turns_from_json


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """Observation and action of a turn as they were recorded."""

    number: int
    """Number of the turn in its attempt."""
    observation: Observation
    action: Action | None
    """None if the attempt ended before it."""


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """Tokens and action of a turn as they are computed again."""

    observation_ids: tuple[int, ...]
    action: Action


def recorded_turns(trajectory: Trajectory) -> list[RecordedTurn]:
    """Return the turns of a trajectory as its messages, or else its texts, say."""
    if trajectory.messages is None:
        turns = enumerate(trajectory.turns)
        return [RecordedTurn(n, turn.observation, Action(turn.action)) for n, turn in turns]
    _, own = _stored(trajectory)
    return [RecordedTurn(turn.number, turn.shown, turn.action) for turn in own]


def _stored(trajectory: Trajectory) -> tuple[list[StoredTurn], list[StoredTurn]]:
    """Return the turns that other branches have sampled, and those of the trajectory's own."""
    known = {image.image_id: image for image in trajectory.images or ()}
    stored = turns_from_json(trajectory.messages or "[]", known)
    others = len(stored) - len(trajectory.turns)
    return stored[:others], stored[others:]


def recorded_tools(trajectory: Trajectory) -> tuple[Tool, ...] | None:
    """Return the tools that the policy could call; None if the environment took text."""
    if trajectory.tools is None:
        return None
    return tuple(map(tool_from_json, json.loads(trajectory.tools)))


def shown_text(observation: Observation) -> str:
    """Return an observation as text by which two of them are compared."""
    return observation if isinstance(observation, str) else messages_json(observation)


def spoken_again(trajectory: Trajectory, codec: Codec) -> list[SpokenTurn]:
    """Return the tokens of all observations and the actions that the tokens spell."""
    tools = recorded_tools(trajectory)
    transcript = Transcript(tools)
    talk: Conversation = TextConversation(codec)
    shown: tuple[Message, ...] = ()
    before: tuple[int, ...] = ()
    ended = True
    if trajectory.messages is not None:
        talk = converse(codec, tools or ())
        shown, before, ended = _others_again(talk, trajectory)
    spoken: list[SpokenTurn] = []
    for turn, recorded in zip(trajectory.turns, recorded_turns(trajectory), strict=True):
        observation = recorded.observation
        if shown:
            observation, shown = (*shown, *messages_of(observation)), ()
        ids = talk.observe(observation, ended=ended)
        ids = (*before, *ids)[turn.start :] if not spoken else ids
        spoken.append(SpokenTurn(ids, transcript.checked(talk.act(_action_ids(trajectory, turn)))))
        ended = turn.finish_reason != FinishReason.LENGTH
    return spoken


def _others_again(
    talk: Conversation, trajectory: Trajectory
) -> tuple[tuple[Message, ...], tuple[int, ...], bool]:
    """Repeat the turns that other branches have sampled.

    Returns:
        (messages that the template renders with the next observation, tokens so far, whether the
        last action ended without reaching its length limit)
    """
    shown: tuple[Message, ...] = ()
    chain: tuple[int, ...] = ()
    ended = True
    for turn in _stored(trajectory)[0]:
        shown += turn.shown
        if turn.tokens is None:
            shown += () if turn.action is None else (turn.action.as_message(),)
            continue
        ids = trajectory.token_ids[slice(*turn.tokens)]
        chain += (*talk.observe(shown, ended=ended), *ids)
        talk.act(ids)
        shown, ended = (), turn.ended
    return shown, chain, ended


def _action_ids(trajectory: Trajectory, turn: Turn) -> Sequence[int]:
    places = range(turn.start, turn.end)
    return [trajectory.token_ids[at] for at in places if trajectory.action_mask[at]]
