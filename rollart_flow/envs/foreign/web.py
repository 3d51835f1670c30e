"""Addresses of servers of environments, and their answers as JSON values."""

import json
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.secret import Secret, masked
from rollart_flow.text import one_line
from rollart_flow.types import Message
from rollart_flow.types.messages import message_from_json

MAX_ANSWER_BYTES = 16 << 20
"""Largest answer of a server that is read."""
_SHOWN_CHARACTERS = 200


def check_address(url: str, schemes: tuple[str, ...], where: str) -> None:
    """Refuse an address of another scheme, without a host, or with a password in it.

    Raises:
        SettingsError: says which form an address has; a password in it is not repeated.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise SettingsError(f"{where}: url holds a user or a password; take token=Secret.from_env")
    try:
        named = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named:
        forms = " or ".join(f"{scheme}://" for scheme in schemes)
        raise SettingsError(f"{where}: url is {url!r}; it must begin with {forms} and name a host")


def bearer(token: Secret | None) -> dict[str, str]:
    """Return the header of a token, read from its environment variable now."""
    return {} if token is None else {"Authorization": f"Bearer {token.reveal()}"}


@cache
def tls() -> ssl.SSLContext:
    """The settings of encrypted connections; made once, since reading certificates takes 20 ms."""
    return ssl.create_default_context()


def json_object(text: str | bytes, who: str) -> dict[str, Any]:
    """Return an answer that is a JSON object.

    Raises:
        EnvironmentFailedError: it is something else; shows how it begins.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise EnvironmentFailedError(f"{who} answered no JSON object: {beginning(text)}")
    return found


def beginning(text: str | bytes) -> str:
    """Return how an answer begins, for an error, without secrets that this process has read."""
    shown = text[: 4 * _SHOWN_CHARACTERS]
    if isinstance(shown, bytes):
        shown = shown.decode(errors="replace")
    return repr(one_line(masked(shown), _SHOWN_CHARACTERS))


def as_messages(forms: Any, who: str) -> list[Message]:
    """Return messages in the form of the chat completions API, without images.

    Raises:
        EnvironmentFailedError: they are no such messages, or show an image.
    """
    try:
        messages = [_message(form) for form in forms]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = one_line(f"{type(error).__name__}: {error}")
        raise EnvironmentFailedError(f"{who} gave no messages: {said}") from error
    if any(message.images for message in messages):
        raise EnvironmentFailedError(f"{who} shows an image, which this adapter does not take")
    return messages


_ROLES = {"developer": "system", "function": "tool"}


def _message(form: Mapping[str, Any]) -> Message:
    role = _ROLES.get(form["role"], form["role"])
    return message_from_json({**form, "role": role})
