"""Registry of reward transports by URL scheme; a transport is imported when it is opened."""

from collections.abc import Callable
from urllib.parse import urlsplit

from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.registry import Registry, load_attribute
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports.base import Transport, TransportVariant

REWARD_TRANSPORTS: Registry[TransportVariant] = Registry(
    "reward_transports",
    {
        scheme: f"rollart_flow.serverless.transports.variants:{scheme.upper()}"
        for scheme in ("http", "https", "fc", "lambda", "serve", "local")
    },
    setting="the scheme of a reward's URL",
    kind=TransportVariant,
)


def check_url(url: str) -> None:
    """Reject a URL that no transport can open.

    Raises:
        SettingsError: the scheme is unknown, or the rest of the URL is empty.
    """
    scheme, separator, rest = url.partition("://")
    if separator and rest.strip("/") and scheme in REWARD_TRANSPORTS.names():
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

    Raises:
        SettingsError: no transport can open the URL.
        MissingExtraError: the library of the transport is not installed.
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
