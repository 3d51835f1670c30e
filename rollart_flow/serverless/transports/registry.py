"""Registry of reward transports by URL scheme; a transport is imported when it is opened."""

from collections.abc import Callable
from urllib.parse import urlsplit

from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.registry import Registry, Requirement, load_attribute
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports.base import Transport, TransportVariant

_PACKAGE = "rollart_flow.serverless.transports"
_HTTP = (Requirement("httpx2", ("httpx2",), "serverless"),)

HTTP = TransportVariant(f"{_PACKAGE}.http:open_transport", "http://host:port/path", _HTTP)
HTTPS = TransportVariant(f"{_PACKAGE}.http:open_transport", "https://...", _HTTP)
FC = TransportVariant(f"{_PACKAGE}.http:open_transport", "fc://...", _HTTP)
LAMBDA = TransportVariant(
    f"{_PACKAGE}.aws:open_transport",
    "lambda://name?region=...",
    (Requirement("boto3", ("boto3",), "serverless"),),
)
SERVE = TransportVariant(f"{_PACKAGE}.serve:open_transport", "serve://app")
LOCAL = TransportVariant(f"{_PACKAGE}.local:open_transport", "local://module:function")


REWARD_TRANSPORTS: Registry[TransportVariant] = Registry(
    "reward_transports",
    {
        scheme: f"rollart_flow.serverless.transports.registry:{scheme.upper()}"
        for scheme in ("http", "https", "fc", "lambda", "serve", "local")
    },
    setting="the scheme of a reward's URL",
    kind=TransportVariant,
)


def check_url(url: str) -> None:
    """Raise SettingsError for a URL of an unknown scheme, or without anything after it."""
    scheme, separator, rest = url.partition("://")
    if separator and rest.strip("/") and scheme in REWARD_TRANSPORTS:
        return
    *others, last = (variant.example for _, variant in REWARD_TRANSPORTS.variants())
    raise SettingsError(
        f"{public_address(url)!r} is no address of a reward endpoint; "
        f"give {', '.join(others)} or {last}"
    )


def public_address(url: str) -> str:
    """Return a URL without user, password and query, which may hold secrets."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


def open_transport(url: str, policy: CallPolicy) -> Transport:
    """Create the transport to a URL, which connects at first use.

    Raises SettingsError for a wrong URL, MissingExtraError if the transport's library is missing.
    """
    check_url(url)
    variant = REWARD_TRANSPORTS.load(url.partition("://")[0])
    try:
        opener: Callable[[str, CallPolicy], Transport] = load_attribute(variant.opener)
    except ModuleNotFoundError as error:
        extras = {requirement.extra for requirement in variant.requirements} or {"serverless"}
        raise MissingExtraError(
            f"{public_address(url)} needs {error.name}; "
            f"pip install rollart-flow[{','.join(sorted(extras))}]"
        ) from error
    return opener(url, policy)
