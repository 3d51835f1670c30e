"""Parser of names with arguments in settings, such as "window(8, alpha=2)"; runs no code."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from rollart_flow.errors import SettingsError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed name with its arguments."""

    kind: str
    """Kind of the named object, for error messages."""
    text: str
    name: str
    arguments: tuple[object, ...] = ()
    keywords: Mapping[str, object] = field(default_factory=dict)

    def of(self, makers: Mapping[str, Callable[..., T]]) -> Callable[..., T]:
        """Return the maker that the call names.

        Raises:
            SettingsError: no maker has that name.
        """
        if self.name not in makers:
            raise SettingsError(f"{self.kind} {self.text!r} is none of {', '.join(makers)}")
        return makers[self.name]


def parse_call(kind: str, text: str, example: str) -> Call:
    """Parse a name with literal arguments.

    Args:
        kind: kind of the named object, for error messages.
        text: a text such as "one_off" or "window(8, alpha=2)".
        example: valid texts, for error messages.

    Raises:
        SettingsError: the text is not a name with literal arguments.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
        function = call.func if isinstance(call, ast.Call) else call
        if not isinstance(function, ast.Name):
            raise ValueError
        arguments = call.args if isinstance(call, ast.Call) else []
        keywords = call.keywords if isinstance(call, ast.Call) else []
        given = tuple(ast.literal_eval(argument) for argument in arguments)
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
    except (SyntaxError, ValueError):
        raise SettingsError(f"{kind} {text!r} is no name like {example}") from None
    return Call(kind, text, function.id, given, named)
