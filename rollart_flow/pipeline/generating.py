"""The base of the nodes that make attempts: rollout and evaluate."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollart_flow.control.context.registry import named_context
from rollart_flow.envs.base import Domain
from rollart_flow.errors import SettingsError
from rollart_flow.fields import field_types
from rollart_flow.models.policy import Policy
from rollart_flow.pipeline.by_domain import ByDomain, check_domains, checked_by_domain
from rollart_flow.pipeline.keywords import Converted, nested, setting
from rollart_flow.pipeline.node import Node, node
from rollart_flow.types import AttemptLimits, Limits, Sampling

if TYPE_CHECKING:
    # A type checker takes the settings of nested values for fields of the node, and so knows them
    # as its keywords. At run time `Node` passes these keywords on to the nested values.
    class _Attempts(Sampling, Limits): ...

else:
    _Attempts = object


@node
class GeneratingNode(Node, _Attempts):
    """Base of the nodes that make attempts: how tokens are sampled, and the limits."""

    sampling: Sampling = nested(default_factory=Sampling)
    """How tokens are sampled."""
    limits: Limits = nested(default_factory=Limits)
    """Limits at which an attempt is cut off."""
    by_domain: Converted[Mapping[str, Mapping[str, Any]] | None, ByDomain] = setting(default=None)
    """Settings of `sampling` and `limits` that are others in some domains, by domain and name."""

    def for_domains(self) -> tuple[str, ...]:
        """Settings that may differ by domain."""
        return tuple(name for kind in (Sampling, Limits) for name in field_types(kind))

    def _check_by_domain(self, domains: Iterable[str]) -> None:
        check_domains(self.given.get("by_domain") or (), domains)
        given = self.given.get("by_domain")
        self._hold("by_domain", checked_by_domain(type(self), given, self.for_domains()))

    def _check_context(self, domains: Iterable[Domain]) -> None:
        for domain in domains:
            text = self.context_in(domain)
            context = named_context(text)
            if context is not None and context.tools and not domain.environment.converses:
                raise SettingsError(
                    f"context={text!r} has tools, which domain {domain.name!r} cannot take: its "
                    "environment takes text; choose cut or summarize"
                )

    def context_in(self, domain: Domain) -> str | None:
        """Name of the context policy in a domain."""
        context = self.limits_in(domain.name).context
        return domain.context if context is None else context

    def sampling_in(self, domain: str) -> Sampling:
        """How tokens are sampled in a domain."""
        return replace(self.sampling, **self._own(domain, Sampling))

    def limits_in(self, domain: str) -> Limits:
        """Limits of an attempt in a domain, as far as settings give them."""
        return replace(self.limits, **self._own(domain, Limits))

    def _own(self, domain: str, kind: type) -> dict[str, Any]:
        own = self.by_domain.get(domain, {})
        return {name: own[name] for name in field_types(kind) if name in own}

    def turns(self, domain: Domain) -> int:
        """Turns after which an attempt in a domain is truncated."""
        return self.limits_in(domain.name).max_turns or domain.max_turns

    def attempt_limits(self, domain: Domain, policy: Policy) -> AttemptLimits:
        limits = self.limits_in(domain.name)
        return AttemptLimits(
            max_turns=self.turns(domain),
            context_tokens=policy.max_context,
            step_timeout_s=limits.step_timeout_s,
            trajectory_timeout_s=limits.trajectory_timeout_s,
            context=self.context_in(domain),
            max_branches=limits.max_branches,
        )
