"""The base of the nodes that make attempts: rollout and evaluate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from rollart_flow.control.context.registry import named_context
from rollart_flow.envs.base import Domain, opens_boxes
from rollart_flow.errors import SettingsError
from rollart_flow.fields import field_types
from rollart_flow.harness.harness import Harness, named_harness
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


_OF_ENVIRONMENTS = ("max_turns", "step_timeout_s", "trajectory_timeout_s", "context")
"""Limits that say nothing of an agent that is a program."""


@node
class GeneratingNode(Node, _Attempts):
    """Base of the nodes that make attempts: how tokens are sampled, and the limits."""

    sampling: Sampling = nested(default_factory=Sampling)
    """Sampling of tokens."""
    limits: Limits = nested(default_factory=Limits)
    """Limits at which an attempt is cut off."""
    agent: Converted[Harness | str | None, Harness | None] = setting(
        default=None, read=named_harness
    )
    """Program that works at the tasks in place of an environment's own tools, as a `Harness` or its
    name such as "claude-code"; the policy answers its calls. None: the environment."""
    by_domain: Converted[Mapping[str, Mapping[str, Any]] | None, ByDomain] = setting(default=None)
    """Settings of `sampling` and `limits`, and `agent`, that are others in some domains, by domain
    and name."""

    def for_domains(self) -> tuple[str, ...]:
        """Settings that may differ by domain."""
        return (*(name for kind in (Sampling, Limits) for name in field_types(kind)), "agent")

    def _check_by_domain(self, domains: Sequence[Domain]) -> None:
        names = [domain.name for domain in domains]
        check_domains(self.given.get("by_domain") or (), names)
        held = checked_by_domain(type(self), self.given.get("by_domain"), self.for_domains())
        for own in held.values():
            if isinstance(agent := own.get("agent"), str):
                own["agent"] = named_harness(agent)
        self._hold("by_domain", held)
        self._check_agents(domains)

    def _check_agents(self, domains: Sequence[Domain]) -> None:
        """Refuse an agent in a domain without a workspace, and limits that are of environments."""
        agents = {domain.name: self.agent_in(domain.name) for domain in domains}
        for domain in domains:
            if agents[domain.name] is not None:
                domain.workspace()  # refuses a domain that has none
                self._check_limits(self.by_domain.get(domain.name, ()))
        if all(agents.values()):
            self._check_limits(self.given)

    def _check_limits(self, given: Iterable[str]) -> None:
        for name in _OF_ENVIRONMENTS:
            if name in given:
                raise SettingsError(
                    f"{name} is a limit of environments; with an agent, set timeout_s, "
                    "init_timeout_s, judge_timeout_s or max_calls of Harness"
                )

    def agent_in(self, domain: str) -> Harness | None:
        """Program that works at the tasks of a domain; None: its environment."""
        agent: Harness | None = self.by_domain.get(domain, {}).get("agent", self.agent)
        return agent

    def pooled(self, domains: Iterable[Domain]) -> tuple[Domain, ...]:
        """Return the domains whose boxes come from pools.

        The box of a program has to be on the node of the gateway, so no pool makes it.
        """
        return tuple(d for d in domains if opens_boxes(d) and self.agent_in(d.name) is None)

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
        """Return the sampling of tokens in a domain."""
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
        if (agent := self.agent_in(domain.name)) is not None:
            return AttemptLimits(
                context_tokens=policy.max_context,
                step_timeout_s=agent.init_timeout_s,
                trajectory_timeout_s=inf,  # its stages have limits of their own
                max_branches=limits.max_branches,
            )
        return AttemptLimits(
            max_turns=self.turns(domain),
            context_tokens=policy.max_context,
            step_timeout_s=limits.step_timeout_s,
            trajectory_timeout_s=limits.trajectory_timeout_s,
            context=self.context_in(domain),
            max_branches=limits.max_branches,
        )
