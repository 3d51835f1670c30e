"""Settings of a node that differ by domain: a mapping from domain to some of its own settings.

    rollout(prompts, policy, max_tokens=16, by_domain={"frozenlake": {"max_tokens": 4}})

The method `for_domains` of a node names the settings that may differ. Domains and settings that are
left away have the node's own value. The invariant: a value by domain passed the checks of the
setting that it replaces.
"""

from collections.abc import Iterable, Mapping
from math import isinf
from typing import Any, TypeAlias

from rollart_flow.errors import SettingsError
from rollart_flow.fields import fitted
from rollart_flow.pipeline.keywords import keywords
from rollart_flow.pipeline.node import unknown_key

ByDomain: TypeAlias = dict[str, dict[str, Any]]
"""Values by domain and name of the setting."""


def checked_by_domain(kind: type, given: object, names: Iterable[str]) -> ByDomain:
    """Return the settings by domain in the form in which a node holds them.

    Args:
        kind: class of the node.
        given: the argument.
        names: settings of the node that may differ by domain.

    Raises:
        SettingsError: names the domain, the setting, its value, and what is permitted.
    """
    known = tuple(names)
    held: ByDomain = {}
    for domain, settings in fitted("by_domain", Mapping[str, Any], given or {}).items():
        own: dict[str, Any] = {}
        for name, value in fitted(f"by_domain.{domain}", Mapping[str, Any], settings).items():
            if name not in known:
                raise SettingsError(f"by_domain.{domain}: no setting {unknown_key(name, known)}")
            where = f"by_domain.{domain}.{name}"
            own[name] = fitted(where, keywords(kind)[name].hint, value)
            if isinstance(own[name], float) and isinf(own[name]):
                raise SettingsError(f"{where} should be a finite number, got {own[name]}")
        held[domain] = own
    return held


def check_domains(given: Iterable[str], known: Iterable[str], setting: str = "by_domain") -> None:
    """Refuse names of a setting that are not domains.

    Raises:
        SettingsError: names the setting and the domains.
    """
    names = dict.fromkeys(known)
    for name in given:
        if name not in names:
            raise SettingsError(
                f"{setting} names an unknown domain {name!r}; the domains are {', '.join(names)}"
            )
