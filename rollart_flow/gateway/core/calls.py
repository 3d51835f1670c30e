"""Calls of clients and their answers, in the form that is common to all wires."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rollart_flow.errors import RollartError
from rollart_flow.types import Action, Message, Tool
from rollart_flow.types.messages import message_from_json

_PLAIN = (
    "answer_id", "prompt_tokens", "cached_tokens", "answer_tokens", "thinking_tokens", "signature",
    "control",
)  # fmt: skip
"""Fields of an answer that are JSON values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One request of a client for an answer."""

    wire: str
    """Wire of the client: chat, responses, messages or google."""
    messages: tuple[Message, ...]
    """The whole conversation as the client sends it, with ids of calls as on the wire. The message
    of the system, if any, is the first."""
    tools: tuple[Tool, ...] = ()
    echoes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Ids, beside those of tool calls, that the client sends back with a message of the assistant,
    by the index of the message: ids of items, signatures of thinking."""
    model: str = ""
    """Model that the client names, which has no effect."""
    max_tokens: int | None = None
    """Most tokens of the answer that the client asks for; None if it names no limit."""
    sampling: Mapping[str, object] = field(default_factory=dict)
    """Settings of sampling that the client asks for, as JSON values, such as temperature and
    stop."""
    dropped: tuple[str, ...] = ()
    """Names of the fields of the request that have no effect."""
    digest: str = ""
    """SHA-256 of the request's body and path, by which a retry is known."""
    retry: bool = False
    """Whether the client says that it sends the request again."""
    stream: bool = False
    """Whether the client takes the answer as a stream."""
    client: str = ""
    """Client as it names itself."""
    lineage: str = ""
    """Session of the client's own, if it names one: a hint, never evidence."""
    created: int = 0
    """UNIX time at which the server took the request [s], for clients that show it; else 0."""
    reply: Mapping[str, object] = field(default_factory=dict)
    """Choices of the client for the form of its answer, which only its wire reads."""


class AnswerEnd(StrEnum):
    """Why an answer ends."""

    STOP = "stop"
    """The policy ended its turn, or a stop text of the client's did."""
    TOOL_CALLS = "tool_calls"
    """The policy called tools."""
    LENGTH = "length"
    """The limit of tokens was reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """The answer to a call."""

    answer_id: str
    """Id that the gateway minted, unique among its sessions; letters and digits."""
    action: Action
    """Action of the policy, with the ids of calls as the client gets them."""
    end: AnswerEnd
    prompt_tokens: int
    """Tokens of the prompt, those that were known before included."""
    cached_tokens: int
    """Leading tokens of the prompt that an earlier call had."""
    answer_tokens: int
    """Sampled tokens, markers included."""
    thinking_tokens: int = 0
    """Sampled tokens up to the end of the thinking; 0 without thinking."""
    signature: str = ""
    """Minted signature of the thinking, which clients send back; empty without thinking."""
    control: bool = False
    """Whether the text is the gateway's own, such as the answer at the end of a budget: none of it
    was sampled."""


def answer_json(answer: ModelAnswer) -> str:
    """Return an answer as JSON, with all that a client gets."""
    form = {name: getattr(answer, name) for name in _PLAIN}
    form |= {"end": answer.end, "message": answer.action.as_message().as_json()}
    return json.dumps(form, ensure_ascii=False, separators=(",", ":"))


def answer_from_json(text: str) -> ModelAnswer:
    """Return an answer from its JSON.

    Raises:
        ValueError, KeyError, TypeError: it is not an answer.
    """
    form = json.loads(text)
    return ModelAnswer(
        action=message_from_json(form["message"]).as_action(),
        end=AnswerEnd(form["end"]),
        **{name: form[name] for name in _PLAIN},
    )


class Refusal(StrEnum):
    """Why a call gets no answer; each wire has its own form for each."""

    KEY = "key"
    """No session has the key."""
    SEALED = "sealed"
    """The session has ended."""
    INVALID = "invalid"
    """The request cannot be read."""
    UNSUPPORTED = "unsupported"
    """The request asks for what would change the policy's distribution, or is not here."""
    TOO_LARGE = "too_large"
    """The body is longer than the limit."""
    OVERFLOW = "overflow"
    """The prompt leaves no room in the context."""
    BUSY = "busy"
    """Too many calls are under way; the client may try again."""
    ENGINE = "engine"
    """The engine failed; the client may try again."""


class CallRefusedError(RollartError):
    """A call that gets no answer.

    Args:
        refusal: the kind.
        message: what is wrong, in one line.
        tokens: tokens of the prompt, for `Refusal.OVERFLOW`.
        limit: most tokens or bytes, where there is a limit.
    """

    def __init__(
        self, refusal: Refusal, message: str, *, tokens: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.tokens = tokens
        self.limit = limit
