"""Secrets in settings: the name of an environment variable in place of its value.

Invariant: a secret is pickled, printed and stored without its value. The value is read where it is
used, and `masked` removes the values that this process has read from a text that leaves it.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass

from rollart_flow.errors import SettingsError

_MASK = "***"
_SHORTEST_MASKED = 4
"""Length below which a value is not searched for: it would also be part of ordinary words."""
_SHORTEST_KEY = 8
"""Length below which the value of a variable that is named like a key is no key."""
_read: set[str] = set()
_KEY_NAME = re.compile(
    r"(?:^|_)(?:api_?key|access_?key|secret|token|passw(?:or)?d|passphrase|credentials?|private_key"
    r"|auth)(?:_key|_id)?$",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"_(?:variable|var|env|file|path|name|id)$", re.IGNORECASE)


def check_no_key(setting: str, value: object) -> None:
    """Refuse a text in a setting that is named like a key; numbers and names of tokens pass.

    Raises:
        SettingsError: names the setting, but not its value.
    """
    name = setting.rpartition(".")[2]
    plain = isinstance(value, str) and value != ""
    if plain and _KEY_NAME.search(name) and not _REFERENCE.search(name):
        raise SettingsError(
            f"{setting} is plain text, and a run stores and shows its settings; "
            'use rollart_flow.Secret.from_env("NAME of a variable")'
        )


@dataclass(frozen=True, slots=True)
class Secret:
    """A reference to a secret, such as `Secret.from_env("JUDGE_API_KEY")`.

    It prints as `***`. A run stores the variable's name only.
    """

    variable: str
    """Name of the environment variable that holds the value, in every process that uses it."""

    @classmethod
    def from_env(cls, variable: str) -> "Secret":
        """Refer to an environment variable, which need not be set in this process.

        Raises:
            SettingsError: the text is not the name of a variable.
        """
        if not (isinstance(variable, str) and variable.isascii() and variable.isidentifier()):
            # The text may be the secret itself, so the message does not repeat it.
            raise SettingsError("Secret.from_env takes the name of an environment variable")
        return cls(variable)

    def reveal(self) -> str:
        """Return the value.

        Raises:
            SettingsError: the variable is not set in this process, or holds blanks or line ends.
        """
        value = os.environ.get(self.variable, "").strip()
        if not value or not value.isprintable() or " " in value:
            wrong = "is not set" if not value else "holds no key: a key is printable without blanks"
            raise SettingsError(f"secret: the environment variable {self.variable} {wrong}")
        if len(value) >= _SHORTEST_MASKED:
            _read.update((value, json.dumps(value)[1:-1]))
        return value

    def __repr__(self) -> str:
        return _MASK

    __str__ = __repr__


def variables_in(value: object) -> frozenset[str]:
    """Return the variables of all secrets in a settings object, and in what it holds."""
    if isinstance(value, Secret):
        return frozenset({value.variable})
    held: Iterable[object] = ()
    if isinstance(value, tuple | list):
        held = value
    elif isinstance(value, Mapping):
        held = value.values()
    elif is_dataclass(value) and not isinstance(value, type):
        held = (getattr(value, field.name, None) for field in fields(value))
    return frozenset().union(*map(variables_in, held))


def masked(text: str) -> str:
    """Return a text with `***` for every secret that this process has read."""
    for value in sorted(_read, key=len, reverse=True):
        text = text.replace(value, _MASK)
    return text


def masked_in_log(text: str) -> str:
    """Return a text with `***` for the secrets of `masked`, and for keys in the environment.

    A variable whose name is that of a key may hold one that no setting mentions, such as the key of
    a library that prints its requests.
    """
    held = {
        value
        for name, value in os.environ.items()
        if len(value) >= _SHORTEST_KEY and _KEY_NAME.search(name)
    }
    for value in sorted(held, key=len, reverse=True):
        text = text.replace(value, _MASK)
    return masked(text)
