"""Values that an environment returns in place of an observation, so that its attempt branches.

Each has a JSON form, which crosses processes: an object whose key `branch` names the kind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, Union

from rollart_flow.types.messages import Message, Observation, Tool, messages_of

MessageForm: TypeAlias = Callable[[Message], dict[str, object]]
"""JSON form of a message."""


@dataclass(frozen=True, slots=True)
class SubAgent:
    """Begin a sub-agent: a branch with messages and tools of its own.

    Its actions come to `step` until the environment returns `Return`.
    """

    messages: Observation
    """First messages of the sub-agent, its own message of the system included."""
    tools: tuple[Tool, ...] = ()
    """Tools that the sub-agent may call."""

    def as_json(self, form: MessageForm = Message.as_json) -> dict[str, object]:
        """Return the JSON form."""
        tools = [tool.as_json() for tool in self.tools]
        return {
            "branch": "sub_agent",
            "messages": observation_json(self.messages, form),
            "tools": tools,
        }


@dataclass(frozen=True, slots=True)
class Return:
    """End the current sub-agent; the branch that began it goes on with this observation."""

    observation: "StepObservation"

    def as_json(self, form: MessageForm = Message.as_json) -> dict[str, object]:
        """Return the JSON form."""
        return {"branch": "return", "observation": step_observation_json(self.observation, form)}


@dataclass(frozen=True, slots=True)
class Retry:
    """Go on from before a turn of the current branch, with another observation in its place."""

    turn: int
    """Number of the turn in the branch, from 0; negative numbers count from its last turn, -1."""
    observation: Observation

    def as_json(self, form: MessageForm = Message.as_json) -> dict[str, object]:
        """Return the JSON form."""
        shown = observation_json(self.observation, form)
        return {"branch": "retry", "turn": self.turn, "observation": shown}


Branching: TypeAlias = SubAgent | Return | Retry
"""Observations that make an attempt branch."""
StepObservation: TypeAlias = Union[Observation, Branching]  # noqa: UP007  named in a string above
"""Observation that `step` returns."""


def observation_json(observation: Observation, form: MessageForm = Message.as_json) -> object:
    """Return an observation as a JSON value: text, or a list of messages, each in its `form`."""
    if isinstance(observation, str):
        return observation
    return [form(message) for message in messages_of(observation)]


def step_observation_json(
    observation: StepObservation, form: MessageForm = Message.as_json
) -> object:
    """Return what `step` returns as its observation as a JSON value."""
    if isinstance(observation, Branching):
        return observation.as_json(form)
    return observation_json(observation, form)


def messages_in(observation: StepObservation) -> tuple[Message, ...]:
    """Return the messages of what `step` returns as its observation; text is none."""
    match observation:
        case str():
            return ()
        case SubAgent(messages, _):
            return messages_in(messages)
        case Return(inner) | Retry(_, inner):
            return messages_in(inner)
        case _:
            return tuple(observation)
