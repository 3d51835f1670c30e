"""Values and messages that cross between the judge of a test and the process of the answer.

A value is a letter for its kind, followed by its length and its bytes, or by its items; whatever is
no data is the number that its owner gave it. The judge trusts nothing that it decodes: what it gets
are exact built-in types, made here.

This file and its two neighbours run in a box, one after the other as a single program, without the
library (`judging`). They import only what starts fast.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LARGEST_BYTES = 64 << 20
"""Largest message that crosses."""
_COLLECTIONS = ((list, b"l"), (tuple, b"t"), (set, b"s"), (frozenset, b"z"))
_MAKERS = {kind: make for make, kind in _COLLECTIONS}


class AnswerGone(BaseException):
    """The answer's process ended, or sent what is no message; no test may catch it."""


def encode(value: Any, refer: Callable[[Any], int]) -> bytes:
    """Return the bytes of a value; `refer` numbers objects that are no data."""
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"T", False: b"F"}[value]
    if isinstance(value, int):
        return _text(b"i", hex(int(value)))
    if isinstance(value, float):
        return b"f" + struct.pack("!d", value)
    if isinstance(value, str):
        return _text(b"u", str(value))
    for make, kind in _COLLECTIONS:
        if isinstance(value, make):
            items = [encode(item, refer) for item in value]
            return b"".join([kind, struct.pack("!I", len(items)), *items])
    if isinstance(value, dict):
        pairs = [encode(key, refer) + encode(value[key], refer) for key in value]
        return b"".join([b"d", struct.pack("!I", len(pairs)), *pairs])
    if isinstance(value, bytes | bytearray):
        return b"b" + struct.pack("!I", len(value)) + bytes(value)
    if isinstance(value, complex):
        return b"c" + struct.pack("!dd", value.real, value.imag)
    name = f"{type(value).__module__}.{type(value).__name__}"
    if name in ("fractions.Fraction", "decimal.Decimal"):
        return _text(b"q" if name[0] == "f" else b"m", str(value))
    return b"o" + struct.pack("!I", refer(value))


def _text(kind: bytes, text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return kind + struct.pack("!I", len(data)) + data


class Decoder:
    """Reads values from bytes; `object_of` finds objects that are no data."""

    def __init__(self, data: bytes, object_of: Callable[[int], Any]) -> None:
        self._data = data
        self._place = 0
        self._object_of = object_of

    def value(self) -> Any:
        """Return the next value.

        Raises:
            ValueError: the bytes are none, or hold more than a value.
        """
        kind = self._take(1)
        if kind in b"NTF":
            return {b"N": None, b"T": True, b"F": False}[kind]
        if kind == b"f":
            return struct.unpack("!d", self._take(8))[0]
        if kind == b"c":
            return complex(*struct.unpack("!dd", self._take(16)))
        (size,) = struct.unpack("!I", self._take(4))
        if kind == b"o":
            return self._object_of(size)
        if kind == b"d":
            return {self.value(): self.value() for _ in range(size)}
        if kind in _MAKERS:
            return _MAKERS[kind](self.value() for _ in range(size))
        data = self._take(size)
        return data if kind == b"b" else self._number(kind, data.decode("utf-8", "surrogatepass"))

    def _number(self, kind: bytes, text: str) -> Any:
        if kind == b"u":
            return text
        if kind == b"i":
            return int(text, 16)
        if kind == b"q":
            from fractions import Fraction

            return Fraction(text)
        if kind == b"m":
            from decimal import Decimal

            return Decimal(text)
        raise ValueError(f"unknown kind of value {kind!r}")

    def _take(self, size: int) -> bytes:
        part = self._data[self._place : self._place + size]
        if len(part) < size:
            raise ValueError("a value is cut off")
        self._place += size
        return part


def send(descriptor: int, data: bytes) -> None:
    """Write one message."""
    data = struct.pack("!I", len(data)) + data
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor: int) -> bytes:
    """Read one message; AnswerGone if there is none, or if it is too large."""
    (size,) = struct.unpack("!I", _exactly(descriptor, 4))
    if size > LARGEST_BYTES:
        raise AnswerGone("the answer returned too much")
    return _exactly(descriptor, size)


def _exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise AnswerGone("the answer ended its process")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
