"""ConversationBuilder: a client's history, item by item, becomes messages with their echoes."""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Self, TypeAlias, cast

from rollart_flow.errors import EnvironmentFailedError, MissingExtraError
from rollart_flow.gateway.core.calls import Refusal
from rollart_flow.gateway.wires.events import MALFORMED
from rollart_flow.gateway.wires.reading import refuse
from rollart_flow.types import Action, Image, Message, Role, ToolCall
from rollart_flow.types.messages import Part, tool_result, user

PREFIXES = ("call_", "toolu_")
"""Prefixes that a wire puts before the id of a call."""
HistoryPlace: TypeAlias = tuple[object, ...]
"""Place in the history of a conversation; only its builder reads it."""


class ConversationBuilder:
    """The messages of a request.

    Leading messages of the system become one. A later one becomes a message of the user in its
    place, since templates know a message of the system only at the begin.

    All that the items of a history leave here is only added to, so that another history with the
    same first items begins as a copy up to a place.
    """

    def __init__(self) -> None:
        self._opening: list[str] = []
        self._messages: list[Message] = []
        self._system: list[str] = []
        self._echoes: list[tuple[int, tuple[str, ...]]] = []
        self._named: list[tuple[str, str]] = []
        self._names: dict[str, str] = {}
        """The last names of `_named`."""
        self._dropped: dict[str, None] = {}

    def place(self) -> HistoryPlace:
        """Return the place after the items so far."""
        told = len(self._messages), len(self._system)
        return (*told, len(self._echoes), len(self._named), len(self._dropped))

    def at(self, place: HistoryPlace) -> Self:
        """Return a conversation that is this one up to a place, without its opening."""
        messages, system, echoes, named, dropped = cast("tuple[int, ...]", place[:5])
        made = type(self)()
        made._messages = self._messages[:messages]
        made._system = self._system[:system]
        made._echoes = self._echoes[:echoes]
        made._named = self._named[:named]
        all_names = len(made._named) == len(self._named)
        made._names = self._names.copy() if all_names else dict(made._named)
        made._dropped = dict.fromkeys(islice(self._dropped, dropped))
        return made

    def open(self, text: str) -> None:
        """Set the message of the system that stands beside the history, before those in it."""
        self._opening = [text] if text else []

    def drop(self, names: set[str]) -> None:
        """Remember the names of fields without effect, and empty the set."""
        if names:
            self._dropped |= dict.fromkeys(sorted(names))
            names.clear()

    def dropped(self, others: Iterable[str]) -> tuple[str, ...]:
        """Return the names of all fields without effect, those beside the history included."""
        return tuple(sorted({*self._dropped, *others}))

    def system(self, text: str) -> None:
        """Add a message of the system."""
        if self._messages:
            self._messages.append(user(text))
        elif text:
            self._system.append(text)

    def user(self, parts: Sequence[Part]) -> None:
        """Add a message of the user."""
        self._messages.append(user(*parts))

    def assistant(self, action: Action, echoes: Iterable[str] = ()) -> None:
        """Add a message of the assistant with the minted ids that came with it."""
        if kept := tuple(dict.fromkeys(each for each in echoes if each)):
            self._echoes.append((len(self._messages), kept))
        for call in action.tool_calls:
            self._named.append((call.call_id, call.name))
            self._names[call.call_id] = call.name
        self._messages.append(action.as_message())

    def result(self, call_id: str, parts: Sequence[Part], name: str | None = None) -> None:
        """Add the answer of a tool; the name of its call stands for a missing one."""
        call_id = bare_id(call_id)
        name = name or self._names.get(call_id)
        message = tool_result(ToolCall(call_id, name or "", {}), *parts)
        self._messages.append(message if name else replace(message, name=None))

    def messages(self) -> tuple[Message, ...]:
        """Return the messages; the one of the system, if any, is the first."""
        texts = [*self._opening, *self._system]
        opening = [Message(Role.SYSTEM, "\n\n".join(texts))] if texts else []
        if not (opening or self._messages):
            refuse("the request has no messages")
        return (*opening, *self._messages)

    def echoes(self) -> Mapping[int, tuple[str, ...]]:
        """Return the minted ids that came with messages of the assistant, by their index."""
        first = 1 if self._opening or self._system else 0
        return {index + first: ids for index, ids in self._echoes}


def call_from(call_id: str, name: str, arguments: Mapping[str, object] | str) -> ToolCall:
    """Return a call that a client sends back.

    Args:
        call_id: id on the wire.
        name: name of the tool.
        arguments: the arguments, or a text, which a call that is not well-formed has.
    """
    called = "" if name == MALFORMED else name
    if not isinstance(arguments, str) and [*arguments] == [MALFORMED]:
        arguments = str(arguments[MALFORMED])
    if isinstance(arguments, str):
        error = "the call is not well-formed"
        return ToolCall(bare_id(call_id), called, {}, error, arguments)
    return ToolCall(bare_id(call_id), called, arguments)


def bare_id(call_id: str) -> str:
    """Return the id of a call without the prefix of a wire."""
    for prefix in PREFIXES:
        call_id = call_id.removeprefix(prefix)
    return call_id


def image_of_url(url: str, place: str) -> Image:
    """Return the image of a data URL; the address of a remote one is refused."""
    if not url.startswith("data:"):
        refuse(
            f"{place} is the address of a remote image; send a data URL with its file",
            Refusal.UNSUPPORTED,
        )
    head, _, data = url.partition(",")
    if not head.endswith(";base64"):
        refuse(f"{place} should be a data URL in base64")
    return image_of_base64(data, place)


def image_of_base64(data: str, place: str) -> Image:
    """Return the image of a file in base64, also in the form for URLs."""
    text = data.replace("-", "+").replace("_", "/")
    try:
        return Image.from_file(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        refuse(f"{place} is no base64: {error}")
    except EnvironmentFailedError as error:
        refuse(f"{place}: {error}")
    except MissingExtraError as error:
        refuse(f"{place}: {error}", Refusal.UNSUPPORTED)
