"""Text that comes from users' code or from a model, made safe to store and short enough to read.

Everything of theirs that reaches a table, an event or a message passes through this module: an
error becomes one bounded line, and lone surrogates, which no file can hold, are replaced.
"""

import re
import traceback
from collections.abc import Mapping
from typing import Any

ERROR_CHARACTERS = 500
"""Maximum length of an error in a table or an event."""
_TRACE_CHARACTERS = 10_000
"""Maximum length of a traceback in a log, and of the message in it."""
_SURROGATES = range(0xD800, 0xE000)
_NUMBER = re.compile(r"[0-9a-f]*\d[0-9a-f]*")


def storable(text: str) -> str:
    """Return text with U+FFFD in place of each surrogate, which UTF-8 cannot encode."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if ord(letter) in _SURROGATES else letter for letter in text)
    return text


def storable_values(value: Any) -> Any:
    """Return a value of JSON with texts and keys that can be stored as UTF-8, at any depth."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return {storable(str(name)): storable_values(inner) for name, inner in value.items()}
    return [storable_values(inner) for inner in value] if isinstance(value, list | tuple) else value


def one_line(text: object, limit: int = ERROR_CHARACTERS) -> str:
    """Return a text as one line that can be stored, cut to a number of characters."""
    try:
        said = str(text)
    except Exception as error:  # noqa: BLE001  a user's `__str__` may raise anything
        said = f"{type(text).__name__}, whose text raised {type(error).__name__}"
    # No more is split than the line may need: a message may have millions of characters.
    line = storable(" ".join(said[: 4 * limit].split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def trace(error: BaseException) -> str:
    """Return the traceback of an error, with its causes, as text that a log can hold.

    Of a long one, the beginning is left out: its end says what was raised where.
    """
    parts = (part[:_TRACE_CHARACTERS] for part in traceback.format_exception(error))
    said = storable("".join(parts).rstrip())
    return said if len(said) <= _TRACE_CHARACTERS else f"…{said[1 - _TRACE_CHARACTERS :]}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, which is in the plural unless the count is 1: "1 run"."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


class NewTexts:
    """Tells which texts are new, numbers aside, so that a repeated error is logged once.

    Args:
        most: number of texts that are new at most; all others count as known.
    """

    def __init__(self, most: int = 100) -> None:
        self._most = most
        self._seen: set[str] = set()

    def __call__(self, text: str) -> bool:
        """Return whether no text like this was asked for before."""
        kind = _NUMBER.sub("0", text)
        if kind in self._seen or len(self._seen) >= self._most:
            return False
        self._seen.add(kind)
        return True
