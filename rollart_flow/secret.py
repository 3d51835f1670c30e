"""Secrets in settings: the name of an environment variable in place of its value.

Invariant: a secret is pickled, printed and stored without its value. The value is read where it is
used, and `masked` removes the values that this process has read from a text that leaves it.
"""

import json
import os
from dataclasses import dataclass

from rollart_flow.errors import SettingsError

_MASK = "***"
_SHORTEST_MASKED = 4
"""Length below which a value is not searched for: it would also be part of ordinary words."""
_read: set[str] = set()


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


def masked(text: str) -> str:
    """Return a text with `***` for every secret that this process has read."""
    for value in sorted(_read, key=len, reverse=True):
        text = text.replace(value, _MASK)
    return text
