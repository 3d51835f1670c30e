"""A stored trajectory as its messages say, and as its tokens say."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rollart_flow.control.protocols import Codec, Conversation
from rollart_flow.control.rollout.conversing import TextConversation, Transcript, converse
from rollart_flow.types import Action, FinishReason, Observation, Tool, Trajectory, Turn
from rollart_flow.types.messages import messages_json, tool_from_json, turns_from_json


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """Observation and action of a turn as they were recorded."""

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
        return [RecordedTurn(turn.observation, Action(turn.action)) for turn in trajectory.turns]
    known = {image.image_id: image for image in trajectory.images or ()}
    return [RecordedTurn(*turn) for turn in turns_from_json(trajectory.messages, known)]


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
    if trajectory.messages is not None:
        talk = converse(codec, tools or ())
    spoken: list[SpokenTurn] = []
    ended = True
    for turn, recorded in zip(trajectory.turns, recorded_turns(trajectory), strict=True):
        ids = talk.observe(recorded.observation, ended=ended)
        spoken.append(SpokenTurn(ids, transcript.checked(talk.act(_action_ids(trajectory, turn)))))
        ended = turn.finish_reason != FinishReason.LENGTH
    return spoken


def _action_ids(trajectory: Trajectory, turn: Turn) -> Sequence[int]:
    places = range(turn.start, turn.end)
    return [trajectory.token_ids[at] for at in places if trajectory.action_mask[at]]
