"""Bodies of requests, each of which repeats the history before it: only what is new is read.

A client sends its whole conversation with every call. `KnownBodies` keeps the last bodies of a
session with the place at which each element of the history ends, and what a wire had read up to
there. `BodyReader` compares a new body with them, cuts out the elements that are known, leaves a
sign in their place, and has the wire read the rest. What remains linear in the length of the body
is to compare bytes.

The invariant: a request that is read with known elements gives what reading all of it gives, the
error included. A text between two places that JSON separates has one meaning wherever it stands;
the sign, which no client knows, proves that it stands in the history; a cut body that is refused in
any way is read again as a whole.
"""

import re
import secrets
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from typing import Any, TypeVar, cast

import msgspec

from rollart_flow.gateway.wires.conversation import ConversationBuilder, HistoryPlace
from rollart_flow.gateway.wires.known_bodies import (
    MARKS,
    HistoryMark,
    KnownBodies,
    KnownBody,
    KnownStart,
    places,
)
from rollart_flow.gateway.wires.reading import Fields, decode_body, refuse

H = TypeVar("H", bound=ConversationBuilder)

_COMMA = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
_SIGN = f"known elements {secrets.token_hex(16)}"
"""Text that stands for known elements; no client knows it."""
_SIGN_JSON = f'"{_SIGN}"'.encode()


class BodyReader:
    """The body of one request.

    Args:
        body: the body.
        wire: name of the wire.
        history: name of the field that has the history.
        bodies: gets the body once it is read; None if nothing is kept.
        start: known elements.
    """

    def __init__(
        self,
        body: bytes,
        *,
        wire: str = "",
        history: str = "",
        bodies: KnownBodies | None = None,
        start: KnownStart | None = None,
    ) -> None:
        self.body = body
        self._wire, self._name, self._bodies = wire, history, bodies
        self._start = start
        self._text = body
        if start is not None:
            self._text = body[: start.place] + _SIGN_JSON + body[start.end :]
        self._read: tuple[ConversationBuilder, list[tuple[int, HistoryPlace]]] | None = None

    @property
    def unread(self) -> int:
        """Number of bytes that are to be read."""
        return len(self._text)

    def whole(self) -> "BodyReader | None":
        """Return a reader of the whole body; None if this one is."""
        if self._start is None:
            return None
        return BodyReader(self.body, wire=self._wire, history=self._name, bodies=self._bodies)

    def fields(self, dropped: set[str], *, camel: bool = False) -> Fields:
        """Return the object that the body is; see `reading.decode_body`.

        Args:
            dropped: gets the names of the fields that have no effect.
            camel: whether a key in snake_case stands for the one in camelCase.
        """
        value = decode_body(self._text)
        if self._start is not None:
            history = value.get(self._name) if isinstance(value, dict) else None
            if not isinstance(history, list) or history[:1] != [_SIGN]:
                refuse("the known elements are not in the history")
        return Fields(value, "", dropped, camel=camel)

    def history(
        self, fields: Fields, name: str, begin: Callable[[], H], step: Callable[[Fields, H], None]
    ) -> H:
        """Return the conversation that the elements of a history are.

        Args:
            fields: the object that has the history.
            name: name of the history in it.
            begin: makes a conversation without messages.
            step: adds an element, which depends on nothing but the elements before it.
        """
        items, start, known = fields.items(name), self._start, 0
        history = begin()
        marks: list[tuple[int, HistoryPlace]] = []
        if start is not None and items[:1] == [_SIGN]:
            known = start.mark.count
            before = cast("H", start.known.history)  # since the wire is the same
            history, items = before.at(start.mark.place), items[1:]
            marks = [(each.count, each.place) for each in start.known.marks if each.count <= known]
        dropped: set[str] = set()
        for count, value in enumerate(items, known + 1):
            with fields.element(name, count - 1, value, dropped) as element:
                step(element, history)
            history.drop(dropped)
            if count > known + len(items) - MARKS:
                marks.append((count, history.place()))
        if items and not fields.place:
            self._read = history, marks[-MARKS:]
        return history

    def digest(self, path: str) -> str:
        """Return the SHA-256 of a path and the body, and keep the body once it is read."""
        start = self._start
        ends = self._ends() if self._read is not None and self._bodies is not None else None
        state, at = sha256(path.encode("utf-8", "replace") + b"\n"), 0
        view = memoryview(self.body)
        marks: list[HistoryMark] = []
        if start is not None and self._same_begin(start, path):
            state, at = start.mark.digest.copy(), start.end
            marks = [each for each in start.known.marks if each.count <= start.mark.count]
        if ends is not None and self._read is not None:
            first, lengths = ends
            for count, place in self._read[1]:
                if marks and count <= marks[-1].count:
                    continue
                end = first + lengths[count - 1]
                state.update(view[at:end])
                marks.append(HistoryMark(count, place, state.copy()))
                at = end
            self._keep(path, ends, marks[-MARKS:])
        state.update(view[at:])
        return state.hexdigest()

    def _keep(self, path: str, ends: tuple[int, Sequence[int]], marks: list[HistoryMark]) -> None:
        assert self._read is not None
        assert self._bodies is not None
        first, lengths = ends
        history = self._read[0]
        self._bodies.add(KnownBody(self._wire, path, self.body, first, lengths, history, marks))

    def _same_begin(self, start: KnownStart, path: str) -> bool:
        """Return whether the body is the known one up to the end of the known elements."""
        known = start.known
        if known.path != path or known.start != start.place:
            return False
        return self.body.startswith(memoryview(known.body)[: known.start])

    def _ends(self) -> tuple[int, Sequence[int]] | None:
        """Return the index of the first element, and lengths from there to each element's end.

        None if the history is not found in the bytes, as where its name is escaped.
        """
        start = self._start
        try:
            elements: Any = _decoder(self._name).decode(self._text)
        except msgspec.MsgspecError:
            return None
        begins = [start.place] if start is not None else places(self._name, self.body)
        for place in begins:
            found = _walked(self._text, place, elements.history)
            if found and start is None:
                return place, found
            if found and start is not None:
                before = start.known.ends[: start.mark.count]
                moved = before[-1] - found[0]
                return place, [*before, *(each + moved for each in found[1:])]
        return None


@cache
def _decoder(name: str) -> "msgspec.json.Decoder[msgspec.Struct]":
    """Return the decoder of the texts of a history's elements."""
    fields: list[Any] = [
        ("history", list[msgspec.Raw], msgspec.field(name=name, default_factory=list))
    ]
    return msgspec.json.Decoder(msgspec.defstruct("Elements", fields))


def _walked(text: bytes, place: int, raws: Sequence[msgspec.Raw]) -> list[int]:
    """Return the lengths from a place to the ends of the elements; none if they are elsewhere."""
    ends: list[int] = []
    at = place
    for raw in raws:
        comma = _COMMA.match(text, at) if ends else None
        at = at if comma is None else comma.end()
        piece = memoryview(raw)
        if (ends and comma is None) or not text.startswith(piece, at):
            return []
        at += len(piece)
        ends.append(at - place)
    return ends
