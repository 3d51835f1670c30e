"""The nodes of a pipeline: frozen, validated settings, linked to the nodes upstream of them.

A node computes nothing and holds no handle; the runner reads its fields. Invariant: every node is
valid by itself and fits the nodes upstream of it, so that its readers need no checks. The functions
in `producing` and `learning` make the nodes.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass as stdlib_dataclass
from inspect import BoundArguments, signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import ConfigDict, Field, InstanceOf
from pydantic.dataclasses import dataclass

from rollart_flow.envs.base import Domain
from rollart_flow.pipeline.fields import (
    Count,
    Name,
    NotNegative,
    OfAdapter,
    OfAlgorithm,
    OfCurriculum,
    OfDomain,
    OfOptimizer,
    OfPolicy,
    OfSchedule,
    Seconds,
    Share,
)
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.trainers.layout import COLLECTIVE_TIMEOUT_S

if TYPE_CHECKING:
    import polars as pl

_CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class Node:
    """Base of all nodes: a name, unique in its pipeline, and the nodes upstream."""

    kind: ClassVar[str]
    """The function that builds it."""

    name: str
    recipe: "Recipe"

    @property
    def upstream(self) -> tuple["Node", ...]:
        """Nodes that feed this one; the policy is a separate edge."""
        up = getattr(self, "up", None)
        return () if up is None else (up,)


@stdlib_dataclass(frozen=True)
class Recipe:
    """The call that built a node, so that it can be built again with other arguments."""

    build: Callable[..., Node]
    arguments: Mapping[str, Any]
    """The given arguments only, as in `inspect.BoundArguments.arguments`."""

    def rebuild(self, **changes: Any) -> Node:
        """Build the node again with some arguments replaced, and repeat all checks."""
        shape = signature(self.build)
        bound = BoundArguments(shape, OrderedDict({**self.arguments, **changes}))
        return self.build(*bound.args, **bound.kwargs)


class Trajectories(Node):
    """Base of the nodes that output trajectories."""

    @property
    def scored(self) -> bool:
        """Whether the trajectories have passed reward."""
        return False

    @property
    def tasks(self) -> "Tasks":
        """The tasks that the trajectories are attempts at."""
        (up,) = self.upstream
        return up if isinstance(up, Tasks) else cast("Trajectories", up).tasks


@dataclass(frozen=True, eq=False, config=_CONFIG, kw_only=True)
class Tasks(Node):
    """Groups of attempts at tasks, which are taken from sources."""

    kind: ClassVar[str] = "tasks"

    sources: tuple[Any, ...]
    """Sources: `Domain`, tuple of `Task`, or `ray.data.Dataset` of task_id, domain, payload."""
    domains: tuple[OfDomain, ...]
    """Domains that run the tasks: the sources that are domains, then the additional ones."""
    group_size: Count = 8
    """Attempts at one task whose rewards are compared."""
    seed: int = 0
    weights: dict[str, Share] | None = None
    """Relative share of the groups by domain; None: equal shares."""
    curriculum: OfCurriculum | None = None
    """Admits tasks by their recent solve rate; None: all tasks are admitted."""
    name: Name = "tasks"

    @property
    def domain_names(self) -> tuple[str, ...]:
        return tuple(domain.name for domain in self.domains)


@dataclass(frozen=True, eq=False, config=_CONFIG, kw_only=True)
class GeneratingNode(Node):
    """Settings of nodes that generate: sampling, and the limits of an attempt."""

    policy: OfPolicy
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: NotNegative = 0
    """0 keeps every token."""
    max_tokens: Count = 16
    """Maximum number of tokens of one turn's action."""
    max_turns: Count | None = None
    """Limit of turns; None: the limit of the domain."""
    step_timeout_s: Seconds = 10.0
    """Time limit of one reset or step of an environment."""
    trajectory_timeout_s: Seconds = 300.0

    def turns(self, domain: Domain) -> int:
        """Turns after which an attempt in this domain is truncated."""
        return domain.max_turns if self.max_turns is None else self.max_turns


@dataclass(frozen=True, eq=False, config=_CONFIG, kw_only=True)
class Rollout(GeneratingNode, Trajectories):
    """Makes attempts at tasks and outputs each trajectory as soon as it ends."""

    kind: ClassVar[str] = "rollout"

    up: InstanceOf[Tasks]
    hw_affinity: dict[str, Name | tuple[Name, ...]] | Literal["auto"] = Field(default_factory=dict)
    """Resource class by domain, `default` for the others (ROLLART section 3, R1). If several are
    given, the first is used, and the others replace it when it is full or gone. "auto": engine
    workers on every class that the cluster has, and a profiler binds domains to them."""
    redundancy: NotNegative = 0
    """Attempts per group beyond `group_size`; surplus is cancelled (ROLL Flash 5.2)."""
    extra_groups: NotNegative = 0
    """Groups in flight beyond what the batch needs."""
    max_replacements: NotNegative
    """Failed attempts per group that are replaced."""
    workers: Count = 1
    """Processes that drive environments."""
    max_concurrent: Count | None = None
    """Attempts in flight in one worker; None: as many as are admitted."""
    engine_workers: Count = 1
    """Engine workers for each resource class."""
    sliding_workers: NotNegative = 0
    """Additional engine workers on the trainer's devices, which serve while training waits for a
    batch and release their memory while it computes (train-rollout multiplexing)."""
    prefill_workers: NotNegative = 0
    """Additional engine workers that compute the prompts, so that those of `hw_affinity` fetch KV
    caches and decode (PD disaggregation, ROLLART section 6.3); 0: each worker computes its own."""
    prefill_affinity: Name | None = None
    """Resource class of the prefill workers; None: the one best suited to compute."""
    engine_units: Count = 1
    """Units of its resource class that one engine worker gets, over which vLLM splits the model."""
    engine_timeout_s: Seconds = 60.0
    """An engine worker that does not respond for this long is restarted, then removed."""
    name: Name = "rollout"

    def resource_class(self, domain: str) -> str:
        """Resource class that generation for a domain is bound to.

        The class is CPU if none is named, and "auto" if the profiler chooses it.
        """
        if isinstance(self.hw_affinity, str):
            return self.hw_affinity
        classes = self.hw_affinity.get(domain, self.hw_affinity.get("default", "CPU"))
        return classes if isinstance(classes, str) else classes[0]


@dataclass(frozen=True, eq=False, config=_CONFIG, kw_only=True)
class Filter(Trajectories):
    """Keeps trajectories or groups for which an expression is true; each refusal is recorded."""

    kind: ClassVar[str] = "filter"

    up: InstanceOf[Trajectories]
    expression: Any = Field(repr=False)
    """`pl.Expr`, one boolean for each row of `trajectories`."""
    name: Name = "filter"

    @property
    def scored(self) -> bool:
        return self.up.scored

    @property
    def of_groups(self) -> bool:
        """Whether the filter compares the attempts of a group, and so judges complete groups."""
        from rollart_flow.pipeline.filters import compares_attempts

        return compares_attempts(self.expr)

    @property
    def expr(self) -> "pl.Expr":
        """The expression, typed."""
        expression: pl.Expr = self.expression
        return expression


@dataclass(frozen=True, eq=False, config=_CONFIG, kw_only=True)
class Reward(Trajectories):
    """Scores each finished trajectory by itself."""

    kind: ClassVar[str] = "reward"

    up: InstanceOf[Trajectories]
    fn: RewardFunction | None = None
    """The reward function; None: the environment's own reward, summed over turns."""
    timeout_s: Seconds = 30.0
    max_concurrent: Count = 64
    """Concurrent calls of the function; fewer if the schedule's reward stage has a lower limit."""
    name: Name = "reward"

    @property
    def scored(self) -> bool:
        return True


@dataclass(frozen=True, eq=False, config=_CONFIG, kw_only=True)
class Buffer(Node):
    """The Delta tables between rollout and training, and the bound on staleness."""

    kind: ClassVar[str] = "buffer"

    up: InstanceOf[Trajectories]
    batch_size: Count
    """Trajectories of one training step, whole groups."""
    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Maximum staleness: versions between a trajectory's start and the engines' when its batch is
    formed."""
    schedule: OfSchedule
    commit_rows: Count = 64
    commit_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 50.0
    """A micro-batch is committed at `commit_rows` rows or after this time, whichever is first."""
    name: Name = "buffer"


@dataclass(frozen=True, eq=False, config=_CONFIG, kw_only=True)
class Train(Node):
    """Trains the policy on each batch and publishes a new version."""

    kind: ClassVar[str] = "train"

    up: InstanceOf[Buffer]
    policy: OfPolicy
    algorithm: OfAlgorithm
    steps: Count
    optimizer: OfOptimizer
    minibatches: Count = 1
    """Optimizer steps that one batch is cut into; still one training step, one version."""
    epochs: Count = 1
    micro_batch_tokens: Count = 16384
    """Tokens of one forward and backward pass."""
    threads: Count = 1
    """Intra-op threads, pinned and recorded, so that replay gives the same bits."""
    mismatch: bool = False
    """Recompute logprobs before a step of several minibatches, for the mismatch columns of `steps`;
    a step of a single minibatch has these columns anyway."""
    checkpoint_every: Count = 10
    """Steps between checkpoints of model, optimizer and position."""
    keep_versions: Annotated[int, Field(ge=2)] = 4
    """Number of newest published versions to keep, in addition to those with a checkpoint."""
    backend: str = "embedded"
    """embedded: one process on a CPU; fsdp2, megatron: `ranks` processes that share the policy."""
    ranks: Count = 1
    """Processes that train together, placed as one gang."""
    tensor_parallel: Count = 1
    """Ranks that each layer is split over (megatron); data parallelism uses the rest of `ranks`."""
    pipeline_parallel: Count = 1
    """Stages of equally many layers, which pass micro-batches to each other (megatron)."""
    sequence_parallel: bool = False
    """Split activations between matrices by position too (megatron on GPUs, untried)."""
    collective_timeout_s: Annotated[float, Field(ge=1)] = COLLECTIVE_TIMEOUT_S
    """Longest wait of a rank for the others [s]. A rank that hangs longer is abandoned, and the run
    continues from the newest checkpoint. Must be at least the time to write a checkpoint."""
    weights: str = "local"
    """Weight store that transports versions to the engines. "local": the run's folder; "mooncake":
    the memory of servers that the run starts (ROLLART section 6.2); "mooncake://HOST:PORT": the
    memory of existing servers; "nccl", "ipc": from the trainer's GPU to vLLM's, in addition to
    "local" (never run on a GPU)."""
    name: Name = "train"


@dataclass(frozen=True, eq=False, config=_CONFIG, kw_only=True)
class Evaluate(GeneratingNode):
    """Measures the policy at versions 0, every, 2 x every, ... and the last."""

    kind: ClassVar[str] = "evaluate"

    domains: tuple[OfDomain, ...] = Field(min_length=1)
    every: Count = 10
    """Versions between two evaluations."""
    episodes: Count = 64
    """Episodes by domain of each metric: greedy for `success`, sampled for `success_sampled`."""
    seed: int = 0
    lora: OfAdapter | None = None
    """LoRA adapter that is applied to every measured version (vLLM), given as its folder and
    identified by its content; None: the policy alone. Only evaluation takes an adapter: tokens for
    training are sampled with the weights that are trained."""
    name: Name = "evaluate"
