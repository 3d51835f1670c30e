"""Reading of the JSON that a client sends: every wrong type becomes one error that names its place.

Invariant: what is read raises CallRefusedError or nothing, whatever the bytes are. A field that
nobody reads is remembered by name, without the numbers of the lists on its way.
"""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

import msgspec

from rollart_flow.fields import shortened
from rollart_flow.gateway.core.calls import CallRefusedError, Refusal
from rollart_flow.text import one_line

_SNAKE = re.compile(r"_([a-z0-9])")
_INDEX = re.compile(r"\[\d+\]")


def refuse(message: str, refusal: Refusal = Refusal.INVALID) -> NoReturn:
    """Raise CallRefusedError with a message as one line."""
    raise CallRefusedError(refusal, one_line(message))


def decode_body(body: bytes) -> Any:
    """Return the value that a body is.

    Raises:
        CallRefusedError: the body is no JSON in UTF-8, or has half a surrogate pair.
    """
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        refuse(f"the body is no JSON in UTF-8: {error}")


def read_object(text: str) -> Mapping[str, Any] | str:
    """Return the JSON object that a text is, or why it is none; an empty text is an empty object.

    Numbers are read as a model's calls are, so that both compare equal.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # refuses half a surrogate pair
    except (ValueError, RecursionError) as error:
        return f"the arguments are no JSON: {one_line(error, 100)}"
    return value if isinstance(value, dict) else "the arguments are no JSON object"


def _finite(text: str) -> float:
    """Return a number, which a text such as 1e999 is not."""
    value = float(text)
    return value if math.isfinite(value) else _no_constant(text)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


class Fields:
    """The fields of one JSON object of a request.

    Args:
        value: the object.
        place: where it stands in the request, for error messages; empty for the request itself.
        dropped: gets the names of the fields that have no effect.
        camel: whether a key in snake_case stands for the one in camelCase.

    Raises:
        CallRefusedError: the value is no object.
    """

    __slots__ = ("_camel", "_dropped", "_read", "_value", "place")

    def __init__(
        self, value: object, place: str, dropped: set[str], *, camel: bool = False
    ) -> None:
        if not isinstance(value, Mapping):
            refuse(f"{place or 'the body'} should be an object, got {shortened(value)}")
        self._value = {camel_case(key): each for key, each in value.items()} if camel else value
        self._dropped, self._camel = dropped, camel
        self._read: set[str] = set()
        self.place = place

    def __contains__(self, name: str) -> bool:
        """Whether the object has a field that is not null."""
        return self._value.get(name) is not None

    def raw(self, name: str) -> Any:
        """Return the value of a field as it is; None if it is absent."""
        self._read.add(name)
        return self._value.get(name)

    def text(self, name: str) -> str | None:
        """Return a text, or None if it is absent."""
        value = self.raw(name)
        return value if value is None or isinstance(value, str) else self.wrong(name, "text")

    def need(self, name: str) -> str:
        """Return a text that the object has to have."""
        value = self.text(name)
        return self.wrong(name, "text") if value is None else value

    def flag(self, name: str) -> bool:
        """Return a boolean, false if it is absent."""
        value = self.raw(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        return self.wrong(name, "true or false")

    def count(self, name: str) -> int | None:
        """Return an integer of at least 1, or None if it is absent."""
        value = self.raw(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or (type(value) is int and value >= 1):
            return value
        return self.wrong(name, "an integer of at least 1")

    def number(self, name: str) -> float | None:
        """Return a number, or None if it is absent."""
        value = self.raw(name)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        return self.wrong(name, "a number")

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """Return an object as it is, or None if it is absent."""
        value = self.raw(name)
        if value is None or isinstance(value, Mapping):
            return value
        return self.wrong(name, "an object")

    def items(self, name: str) -> list[Any]:
        """Return a list as it is, empty if it is absent."""
        value = self.raw(name)
        if value is None or isinstance(value, list):
            return value or []
        return self.wrong(name, "a list")

    def child(self, name: str) -> "Fields | None":
        """Return the fields of an object, or None if it is absent."""
        value = self.raw(name)
        return None if value is None else self._inner(value, name)

    def children(self, name: str) -> "Iterator[Fields]":
        """Yield the fields of each object of a list."""
        for index, value in enumerate(self.items(name)):
            with self._inner(value, f"{name}[{index}]") as inner:
                yield inner

    def element(self, name: str, index: int, value: object, dropped: set[str]) -> "Fields":
        """Return the fields of an object in a list.

        Args:
            name: name of the list.
            index: index of the object in it.
            value: the object.
            dropped: gets the names of the object's fields that have no effect.
        """
        return Fields(value, self._at(f"{name}[{index}]"), dropped, camel=self._camel)

    def one_of(self, name: str, choices: Collection[str]) -> str:
        """Return a text that is one of the choices."""
        value = self.need(name)
        return value if value in choices else self.wrong(name, f"one of {', '.join(choices)}")

    def withhold(self, name: str) -> None:
        """Remember a field as one without effect."""
        self._read.discard(name)

    def unsupported(self, name: str, why: str) -> NoReturn:
        """Refuse the request because of a field."""
        refuse(f"{self._at(name)} {why}", Refusal.UNSUPPORTED)

    def __enter__(self) -> "Fields":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Remember the fields that nobody has read."""
        where = _INDEX.sub("", self.place)
        for name in self._value.keys() - self._read:
            self._dropped.add(f"{where}.{name}" if where else name)

    def _inner(self, value: object, name: str) -> "Fields":
        return Fields(value, self._at(name), self._dropped, camel=self._camel)

    def _at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

    def wrong(self, name: str, wanted: str) -> NoReturn:
        """Refuse the request because a field is not what is wanted."""
        value = self._value.get(name)
        got = "nothing" if value is None else shortened(value)
        refuse(f"{self._at(name)} should be {wanted}, got {got}")


def camel_case(key: str) -> str:
    """Return a key in camelCase, whichever of both forms it has."""
    return _SNAKE.sub(lambda found: found[1].upper(), key) if "_" in key else key
