"""Protocols of an environment, and of the conversion between what it says and a policy's tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

from rollart_flow.types import Action, Observation, Tool
from rollart_flow.types.branching import StepObservation
from rollart_flow.types.token_ids import TokenBuffer, TokenIds


class AsyncEnvironment(Protocol):
    """An asynchronous environment with Gymnasium's five step values."""

    async def reset(self, seed: int, task: str) -> tuple[Observation, Mapping[str, object]]:
        """Start an episode of the task (JSON payload) and return (observation, info)."""

    async def step(
        self, action: Any
    ) -> tuple[StepObservation, float, bool, bool, Mapping[str, object]]:
        """Apply an action and return (observation, reward, terminated, truncated, info).

        The action is an `Action` if the environment converses, and else its text.
        """

    async def close(self) -> None:
        """Release the environment's resources; may be called at any moment, and twice."""


class SlowStart(Protocol):
    """An environment that starts a process first, which may take long and is no step of its own."""

    async def start(self) -> None:
        """Return once `reset` can be called; without effect if it can be called already."""


class Conversing(Protocol):
    """An environment that may take actions with tool calls instead of their text."""

    @property
    def tools(self) -> Sequence[Tool] | None:
        """Tools of the episode, after its reset; None if the environment takes text."""


class Conversation(Protocol):
    """The chain of one attempt: its messages become tokens, and its generated tokens actions."""

    def observe(self, observation: Observation, *, ended: bool = True) -> tuple[int, ...]:
        """Return the tokens that follow the chain: an observation, and the prompt for an action.

        Args:
            observation: text or messages, none of them of the assistant.
            ended: whether the previous action ended with a stop token; if not, the end-of-turn
                marker precedes the observation. Ignored for the first observation.

        Raises:
            TemplateRefusedError: the chat template refuses the messages.
        """

    def act(self, token_ids: Sequence[int]) -> Action:
        """Return the action that generated tokens are; malformed calls have an error."""

    def retold(self, observation: Observation, token_ids: TokenIds) -> "Retold | None":
        """Return all messages as they are rendered now; None if they begin with the chain.

        Args:
            observation: the next observation, which this conversation does not get.
            token_ids: the whole chain.

        Raises:
            TemplateRefusedError: the chat template refuses the messages.
        """

    def rewritten_at(self, token_ids: Sequence[int]) -> int | None:
        """Return the first position at which rendering all messages again gives another token.

        Args:
            token_ids: the whole chain.

        Returns:
            The position; 0 if the chat template refuses the conversation as a whole, None if the
            rendering begins with the chain.
        """


class Retold(NamedTuple):
    """Messages of a conversation, and an observation after them, as they are rendered now."""

    conversation: Conversation
    """Conversation of these messages."""
    tokens: TokenBuffer
    """Chain of the conversation, which is the caller's to extend."""
    shared: int
    """Number of leading tokens that are those of the former chain."""


class Codec(Protocol):
    """Conversion between text and tokens. Generated tokens are never encoded again."""

    def encode_observation(self, text: str, *, first: bool, ended: bool = True) -> tuple[int, ...]:
        """Return the tokens of one observation, with the template tokens before and after it.

        Args:
            text: text of the observation.
            first: whether the observation opens the trajectory.
            ended: whether the previous action ended with a stop token; if not, the end-of-turn
                marker precedes the observation. Ignored for the first observation.
        """

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of generated tokens, without stop tokens."""


class ChatCodec(Codec, Protocol):
    """A codec that also converts messages, by the chat template of a model."""

    branches_history: bool
    """Whether a turn before which the chat template changes or drops earlier tokens begins a
    branch; otherwise the chain keeps them."""

    def converse(self, tools: Sequence[Tool] = ()) -> Conversation:
        """Begin the conversation of an attempt that may call these tools.

        Raises:
            SettingsError: the chat template has no place for tools.
        """


class VersionedCodec(Codec, Protocol):
    """A codec that names what it converts with, so that a stored call can be compared with it."""

    parser_version: str
    """Format and version of the parser of actions."""
    template_version: str
    """Digest of the chat template and its variables."""


# An `isinstance` of a protocol takes microseconds for each attempt; these ask for a name.
def starts_slowly(environment: AsyncEnvironment) -> TypeGuard[SlowStart]:
    """Return whether an environment is a `SlowStart`."""
    return hasattr(environment, "start")


def may_converse(environment: object) -> TypeGuard[Conversing]:
    """Return whether an environment is `Conversing`."""
    return hasattr(environment, "tools")


def takes_messages(codec: Codec) -> TypeGuard[ChatCodec]:
    """Return whether a codec is a `ChatCodec`."""
    return hasattr(codec, "converse")


def has_versions(codec: Codec) -> TypeGuard[VersionedCodec]:
    """Return whether a codec is a `VersionedCodec`."""
    return hasattr(codec, "parser_version")
