"""The validated graph of all nodes of a pipeline.

Invariant: exactly one tasks, rollout, reward, buffer and train node, any number of filters
between rollout and buffer, at most one evaluate, one policy, and no name twice. The policy is the
feedback edge from train to rollout: a value that they share, so that the graph has no cycle. An
offline pipeline trains on what is stored alone, and has none of tasks, rollout and buffer; its
reward, if there is one, scores its evaluation.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rollart_flow.engines.registry import check_images
from rollart_flow.envs.base import Domain
from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.metrics.alarms import Alarms
from rollart_flow.models.policy import Policy
from rollart_flow.pipeline.buffering import Buffer
from rollart_flow.pipeline.by_domain import check_domains
from rollart_flow.pipeline.filters import Filter
from rollart_flow.pipeline.generating import GeneratingNode
from rollart_flow.pipeline.learning import Evaluate, Train
from rollart_flow.pipeline.node import Node
from rollart_flow.pipeline.prices import checked_prices
from rollart_flow.pipeline.producing import Rollout, Tasks
from rollart_flow.pipeline.sandboxes import SandboxSettings
from rollart_flow.pipeline.scoring import TIMEOUT_S, Reward
from rollart_flow.pipeline.stored import Stored
from rollart_flow.rewards.base import RewardFunction, environment_reward
from rollart_flow.trackers.base import Tracker
from rollart_flow.trackers.registry import named_trackers

N = TypeVar("N", bound=Node)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, eq=False, init=False)
class Graph:
    """The output nodes of a pipeline and all nodes upstream of them."""

    name: str
    outputs: tuple[Node, ...]
    seed: int
    """Seed of environments and sampling, which no node seeds."""
    trackers: tuple[Tracker, ...]
    """Where the figures of a run are shown; they have no effect on it."""
    alarms: Alarms
    """Thresholds of the alarms of a run."""
    prices: Mapping[str, float]
    """Price of an hour of one device by resource class, for `rollart show --accounting`."""
    nodes: tuple[Node, ...]
    """Every node, upstream before downstream."""

    def __init__(
        self,
        name: str,
        *outputs: Node,
        seed: int = 0,
        trackers: Iterable[Tracker | str] = (),
        alarms: Alarms | None = None,
        prices: Mapping[str, float] | None = None,
    ) -> None:
        """Build and check the graph of what `train` and `evaluate` returned.

        Args:
            name: name of the pipeline.
            outputs: what `train` and `evaluate` returned.
            seed: seed of environments and sampling.
            trackers: where runs are shown, such as "tensorboard" or "wandb(project='lakes')".
            alarms: thresholds of alarms; None for the defaults.
            prices: price of an hour of one device (a GPU, or a CPU of workers without GPUs) by
                resource class, such as {"H800": 2.5, "CPU": 0.04}.

        Raises PipelineError if an output is of another kind, or the graph is not a valid pipeline.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise PipelineError(
                f"Pipeline: name {name!r} must be letters, digits, '.', '-' and '_' "
                "and start with a letter or digit"
            )
        if not isinstance(seed, int):
            raise PipelineError(f"{name}: seed must be an integer, got {seed!r}")
        for output in outputs:
            if not isinstance(output, Train | Evaluate):
                got = f"{output.kind}(...)" if isinstance(output, Node) else repr(output)
                raise PipelineError(
                    f"{name}: an output is what train(...) or evaluate(...) returned, got {got}"
                )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "outputs", outputs)
        object.__setattr__(self, "seed", seed)
        try:
            object.__setattr__(self, "trackers", named_trackers(trackers))
            object.__setattr__(self, "prices", checked_prices(prices or {}))
        except SettingsError as error:
            raise PipelineError(f"{name}: {error}") from error
        object.__setattr__(self, "alarms", Alarms() if alarms is None else alarms)
        object.__setattr__(self, "nodes", _upstream_first(outputs))
        self._check()

    def _check(self) -> None:
        kinds = [node.kind for node in self.nodes]
        for kind in ("train", "evaluate"):
            if kinds.count(kind) > 1:
                raise PipelineError(f"{self.name}: two {kind} nodes; a pipeline has one")
        if "train" not in kinds:
            raise PipelineError(f"{self.name}: no train(...) among the outputs, so nothing learns")
        names = [node.name for node in self.nodes]
        owners = {"policy", "pipeline", *(domain.name for domain in self.task_domains)}
        for name in names:
            if names.count(name) > 1:
                raise PipelineError(f"{name}: two nodes have this name; give one another name=")
            if name in owners:
                raise PipelineError(f"{name}: a node cannot have this name; give another name=")
        if self.policy.warm_start and not self.taught_domains:
            raise PipelineError(
                f"{self.name}: a warm start of the policy teaches the format of a domain, and "
                "there is none; add evaluate(...), or leave warm_start out"
            )
        scored = (*self.task_domains, *(self.evaluate.domains if self.evaluate else ()))
        if self.reward is not None:
            self._check_reward(self.reward, [domain.name for domain in scored])
        for domain in scored:
            if domain.shows_images:
                try:
                    check_images(self.policy)
                except SettingsError as error:
                    raise PipelineError(f"{domain.name} shows images, but {error}") from error
        self._check_pools()
        for node in self.nodes:
            if getattr(node, "policy", self.policy) != self.policy:
                raise PipelineError(
                    f"{node.name}: its policy differs from that of {self.train.name}; "
                    "give both the same"
                )

    def _check_reward(self, node: Reward, domains: Iterable[str]) -> None:
        if self.offline and self.evaluate is None:
            raise PipelineError(
                f"{node.name}: it scores the evaluation of a pipeline that trains on what is "
                "stored, and there is none; add evaluate(...), or give the rows other rewards with "
                "`rollart rescore` and stored(..., rescored=NAME)"
            )
        try:
            check_domains(node.by_domain, domains)
        except SettingsError as error:
            raise PipelineError(f"{node.name}: {error}") from error
        if self.evaluate is not None and self.evaluate.reward is not None:
            raise PipelineError(
                f"{self.evaluate.name}: {node.name}(...) scores evaluation too; leave out reward "
                "here, which is for a pipeline without that node"
            )

    def _check_pools(self) -> None:
        agents = [
            domain.name
            for node, domains in self._generating()
            for domain in domains
            if node.agent_in(domain.name) is not None
        ]
        try:
            self.sandboxes.check_pools(self.pooled_domains, agents)
        except SettingsError as error:
            owner = "pipeline" if self.offline else self.rollout.name
            raise PipelineError(f"{owner}: {error}") from error

    def _generating(self) -> Iterator[tuple[GeneratingNode, Sequence[Domain]]]:
        if not self.offline:
            yield self.rollout, self.tasks.domains
        if self.evaluate is not None:
            yield self.evaluate, self.evaluate.domains

    def _only(self, kind: type[N]) -> N:
        (node,) = (node for node in self.nodes if isinstance(node, kind))
        return node

    @property
    def offline(self) -> bool:
        """Whether batches are drawn from what is stored alone; then there is no tasks, rollout or
        buffer node to ask for."""
        return self.train.buffer is None

    @property
    def stored(self) -> tuple[Stored, ...]:
        """The sources of stored trajectories; there may be none."""
        return self.train.stored

    @property
    def task_domains(self) -> tuple[Domain, ...]:
        """Domains of the tasks that are trained on; none in an offline pipeline."""
        return () if self.offline else self.tasks.domains

    @property
    def taught_domains(self) -> tuple[Domain, ...]:
        """Domains whose format a warm start teaches; those of evaluation if none is trained on."""
        evaluated = () if self.evaluate is None else self.evaluate.domains
        return evaluated if self.offline else self.tasks.domains

    @property
    def sandboxes(self) -> SandboxSettings:
        """The boxes of environments; the defaults in an offline pipeline."""
        return SandboxSettings() if self.offline else self.rollout.sandboxes

    def reward_in(self, domain: str) -> tuple[RewardFunction, float]:
        """Return the reward of a domain's trajectories, and the time limit of each call [s].

        Without a reward node, it is that of `evaluate`, which alone scores then.
        """
        if self.reward is None:
            own = None if self.evaluate is None else self.evaluate.reward
            return own or environment_reward, TIMEOUT_S
        return self.reward.function, self.reward.timeout_in(domain)

    @property
    def tasks(self) -> Tasks:
        return self._only(Tasks)

    @property
    def rollout(self) -> Rollout:
        return self._only(Rollout)

    @property
    def filters(self) -> tuple[Filter, ...]:
        """Filters in the order in which trajectories pass them; `scored` if one is after reward."""
        return tuple(node for node in self.nodes if isinstance(node, Filter))

    @property
    def reward(self) -> Reward | None:
        """The node that scores trajectories; an offline pipeline may have none."""
        return next((node for node in self.nodes if isinstance(node, Reward)), None)

    @property
    def buffer(self) -> Buffer:
        return self._only(Buffer)

    @property
    def train(self) -> Train:
        return self._only(Train)

    @property
    def evaluate(self) -> Evaluate | None:
        return next((node for node in self.nodes if isinstance(node, Evaluate)), None)

    @property
    def pooled_domains(self) -> tuple[str, ...]:
        """Names of the domains of rollout and evaluation whose boxes come from pools."""
        pooled = [d.name for node, domains in self._generating() for d in node.pooled(domains)]
        return tuple(dict.fromkeys(pooled))

    @property
    def policy(self) -> Policy:
        return self.train.policy


def _upstream_first(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    ordered: dict[int, Node] = {}

    def visit(node: Node) -> None:
        for up in node.upstream:
            visit(up)
        ordered.setdefault(id(node), node)

    for output in outputs:
        visit(output)
    return tuple(ordered.values())
