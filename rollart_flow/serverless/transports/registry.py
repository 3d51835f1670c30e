"""Registry of transports by URL scheme. Each is imported, with its library, when it is opened."""

from collections.abc import Callable
from importlib import import_module
from typing import cast
from urllib.parse import urlsplit

from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports.base import Transport

_HOMES = {
    "http": "http",
    "https": "http",
    "fc": "http",
    "lambda": "aws",
    "serve": "serve",
    "local": "local",
}
"""Module that defines `open_transport(url, policy)`, by scheme."""

_EXAMPLES = (
    "http://host:port/path, https://..., fc://..., lambda://name?region=..., serve://app "
    "or local://module:function"
)


def check_url(url: str) -> None:
    """Reject a URL that no transport can open.

    Raises:
        SettingsError: the scheme is unknown, or the rest of the URL is empty.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _HOMES or not rest.strip("/"):
        raise SettingsError(
            f"{public_address(url)!r} is no address of a reward endpoint; give {_EXAMPLES}"
        )


def public_address(url: str) -> str:
    """Return a URL without user, password and query, which may hold secrets."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


def open_transport(url: str, policy: CallPolicy) -> Transport:
    """Create the transport to a URL, which connects at first use.

    Raises:
        SettingsError: no transport can open the URL.
        MissingExtraError: the library of the transport is not installed.
    """
    check_url(url)
    home = _HOMES[url.partition("://")[0]]
    try:
        module = import_module(f"rollart_flow.serverless.transports.{home}")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{public_address(url)} needs {error.name}; pip install rollart-flow[serverless]"
        ) from error
    opener = cast(Callable[[str, CallPolicy], Transport], module.open_transport)
    return opener(url, policy)
