"""The node that scores trajectories: reward."""

from collections.abc import Mapping
from typing import Any, ClassVar

from rollart_flow.errors import SettingsError
from rollart_flow.fields import Count, Name, Positive
from rollart_flow.pipeline.by_domain import ByDomain, checked_by_domain
from rollart_flow.pipeline.keywords import Converted, part, setting
from rollart_flow.pipeline.node import node
from rollart_flow.pipeline.producing import Trajectories
from rollart_flow.pipeline.stored import Stored
from rollart_flow.rewards.base import RewardFunction, environment_reward
from rollart_flow.rewards.composition import PerDomain

TIMEOUT_S, MAX_CONCURRENT = 30.0, 64
"""Limits of a reward whose node, if there is one, says nothing."""


def reward_function(fn: object, timeout_s: float, max_concurrent: int) -> object:
    """Return a reward function; a URL becomes the reward that calls it."""
    if not isinstance(fn, str):
        return fn
    from rollart_flow.serverless import CallPolicy, ServerlessReward

    return ServerlessReward(fn, CallPolicy(deadline_s=timeout_s, max_concurrent=max_concurrent))


@node
class Reward(Trajectories):
    """Scores each finished trajectory by itself.

    Between `stored` and `train` it scores the episodes of `evaluate` alone, and the rows keep the
    rewards that they have, or those of `stored(..., rescored=NAME)`.

    Raises:
        PipelineError: a setting is wrong, or the trajectories are scored already.
    """

    kind: ClassVar[str] = "reward"
    takes: ClassVar[tuple[str, ...]] = ("rollout", "filter", "stored")

    up: Trajectories | Stored = part(kw_only=False)
    """The trajectories to score; or `stored`, in a pipeline that rolls out for `evaluate` alone."""
    fn: Converted[RewardFunction | str | None, RewardFunction | None] = part(
        default=None, kw_only=False
    )
    """A function of a `Trajectory` that returns the reward or (reward, parts), a
    `ServerlessReward`, or the URL of one, which is then called with this node's `timeout_s` as its
    deadline and `max_concurrent` as its limit; None: the environment's own reward, summed over
    turns."""
    timeout_s: Positive = TIMEOUT_S
    """Time limit of each call of `fn`, without the start of its process [s]."""
    max_concurrent: Count = MAX_CONCURRENT
    """Concurrent calls of the function; fewer if the schedule's reward stage has a lower limit."""
    environ: tuple[str, ...] = ()
    """Environment variables that the process of `fn` gets, besides the usual ones and those of its
    secrets."""
    by_domain: Converted[Mapping[str, Mapping[str, Any]] | None, ByDomain] = setting(default=None)
    """`fn` and `timeout_s` of some domains, by domain and name, for evaluation too."""
    name: Name = "reward"
    """Name of the node."""

    def _check(self) -> None:
        if isinstance(self.up, Trajectories) and self.up.scored:
            raise SettingsError("these trajectories are scored already; reward stands once")
        self._hold("fn", self._function(self.fn, self.timeout_s))
        given = checked_by_domain(type(self), self.given.get("by_domain"), self.for_domains())
        for own in given.values():
            fn = own.get("fn", self.given.get("fn"))
            if "fn" in own or (isinstance(fn, str) and "timeout_s" in own):
                own["fn"] = self._function(fn, own.get("timeout_s", self.timeout_s))
        self._hold("by_domain", given)

    def for_domains(self) -> tuple[str, ...]:
        """Settings that may differ by domain."""
        return "fn", "timeout_s"

    def _function(self, fn: object, timeout_s: float) -> object:
        return reward_function(fn, timeout_s, self.max_concurrent)

    @property
    def function(self) -> RewardFunction:
        """The reward function of all domains."""
        default = self.fn or environment_reward
        own = {name: each["fn"] or environment_reward
               for name, each in self.by_domain.items() if "fn" in each}  # fmt: skip
        return PerDomain(default, own) if own else default

    def timeout_in(self, domain: str) -> float:
        """Time limit of each call of the function for a domain's trajectory [s]."""
        return float(self.by_domain.get(domain, {}).get("timeout_s", self.timeout_s))

    @property
    def scored(self) -> bool:
        return True

    @property
    def drawn(self) -> bool:
        return isinstance(self.up, Stored)


reward = Reward
