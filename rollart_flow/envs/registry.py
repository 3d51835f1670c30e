"""Registry of task domains by the name that a pipeline and the column `domain` use.

    tasks("frozenlake(slippery=True)", "arithmetic", group_size=8)

A domain is a frozen dataclass with an environment. To add one inside the library: its module, and
its name below. A pipeline may use any `Domain` without a name; a package adds a name through an
entry point of the group `rollart_flow.environments`.
"""

from collections.abc import Iterable
from typing import TypeVar

from rollart_flow.calls import parse_call
from rollart_flow.envs.base import Domain
from rollart_flow.errors import SettingsError
from rollart_flow.registry import Registry

T = TypeVar("T")

ENVIRONMENTS: Registry[type[Domain]] = Registry(
    "environments",
    {
        "arithmetic": "rollart_flow.envs.arithmetic:Arithmetic",
        "frozenlake": "rollart_flow.envs.frozen_lake:FrozenLake",
    },
    setting="environment",
    kind=type,
)


def named_domain(text: str) -> Domain:
    """The domain of a text, e.g. "frozenlake(slippery=True)"; SettingsError if it is wrong."""
    call = parse_call("environment", text, "frozenlake or frozenlake(slippery=True)")
    make = ENVIRONMENTS.load(call.name)
    try:
        domain = make(*call.arguments, **call.keywords)
    except TypeError as error:
        raise SettingsError(f"environment {text!r}: {error}") from None
    if not isinstance(domain, Domain):
        raise SettingsError(f"environment {text!r}: {make.__name__} is no Domain")
    return domain


def domains_of(values: Iterable[T | str]) -> tuple[T | Domain, ...]:
    """Return the values with each text replaced by the domain that it names."""
    return tuple(named_domain(value) if isinstance(value, str) else value for value in values)
