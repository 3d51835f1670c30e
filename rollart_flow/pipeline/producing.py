"""The nodes that make trajectories: tasks and rollout."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from rollart_flow.control.inference.profiler import AUTO
from rollart_flow.control.scheduler.curriculum import Curriculum
from rollart_flow.engines.registry import check_engine
from rollart_flow.envs.base import Domain
from rollart_flow.envs.registry import domains_of
from rollart_flow.errors import SettingsError
from rollart_flow.fields import Count, Name, NotNegative, Positive, fitted
from rollart_flow.models.policy import Policy
from rollart_flow.pipeline.by_domain import check_domains
from rollart_flow.pipeline.generating import GeneratingNode
from rollart_flow.pipeline.keywords import Converted, nested, part, setting
from rollart_flow.pipeline.node import Node, node, variadic
from rollart_flow.pipeline.sandboxes import SandboxSettings, declared_stand_ins
from rollart_flow.pipeline.sources import read_source
from rollart_flow.types.verdicts import Admitted

if TYPE_CHECKING:
    _Boxes = SandboxSettings  # as for `GeneratingNode`
else:
    _Boxes = object

_CPU = "CPU"


def _read_classes(text: str) -> tuple[str, ...]:
    """Return resource classes from a JSON list of their names, or the name of one."""
    try:
        return tuple(json.loads(text)) if text.startswith("[") else (text,)
    except ValueError:
        return (text,)  # which is no name


class Trajectories(Node):
    """Base of the nodes that output trajectories."""

    @property
    def scored(self) -> bool:
        """Whether the trajectories have passed reward."""
        return False

    @property
    def drawn(self) -> bool:
        """Whether the trajectories are rows of stored runs, which `train` takes as they are."""
        return False

    @property
    def tasks(self) -> "Tasks":
        """The tasks that the trajectories are attempts at."""
        return self.rollout.up

    @property
    def rollout(self) -> "Rollout":
        """The node that makes the trajectories."""
        (up,) = self.upstream
        return self if isinstance(self, Rollout) else cast("Trajectories", up).rollout


@node
class Tasks(Node):
    """Groups of attempts at tasks, which are taken from sources.

    Raises:
        PipelineError: no source is given, a source is of another kind, or a domain is unknown.
    """

    kind: ClassVar[str] = "tasks"

    sources: Converted[Any, tuple[Any, ...]] = part(kw_only=False, many=True)
    """Each a `Domain` or its name such as "frozenlake(brief=True)" (its own tasks), an iterable of
    `Task` or of mappings with task_id, domain and payload, or a `ray.data.Dataset` with these
    columns."""
    domains: Converted[Iterable[Domain | str], tuple[Domain, ...]] = part(default=())
    """Domains that run the tasks of datasets and iterables, if they are not among the sources."""
    group_size: Count = 8
    """Attempts at one task whose rewards are compared."""
    seed: int = 0
    """Seed of the order of tasks."""
    weights: Converted[Mapping[str, float] | None, dict[str, float] | None] = setting(default=None)
    """Relative share of the groups by domain; None: equal shares."""
    admitted: Admitted | None = None
    """Tasks that are trained on, by the checks of `rollart tasks check` in the store when the run
    began: "required": those that were admitted; "known": all but those that were not admitted;
    "any": all. None: "required" for domains with `needs_admission`, and else "known"."""
    curriculum: Curriculum | None = None
    """Admits tasks by their recent solve rate; None: all tasks are admitted."""
    name: Name = "tasks"
    """Name of the node."""

    def _check(self) -> None:
        if not self.sources:
            raise SettingsError("no source; give a domain, a dataset or a list of tasks")
        sources = domains_of(self.sources)
        own = [source for source in sources if isinstance(source, Domain)]
        runs = (*own, *domains_of(self.domains))
        check_unique(runs)
        read = tuple(read_source(source) for source in sources)
        for source in read:
            if isinstance(source, tuple):
                check_domains((task.domain for task in source), _names(runs), "a task")
        if not runs:
            raise SettingsError("no domain runs these tasks; give domains=[...]")
        check_domains(self.weights or (), _names(runs), "weights")
        weights = fitted("weights", dict[str, Positive], self.weights) if self.weights else None
        self._hold("sources", read)
        self._hold("domains", runs)
        self._hold("weights", weights)

    @property
    def domain_names(self) -> tuple[str, ...]:
        return _names(self.domains)


def _names(domains: Iterable[Domain]) -> tuple[str, ...]:
    return tuple(domain.name for domain in domains)


def check_unique(domains: Iterable[Domain]) -> None:
    """Raise SettingsError if two domains have one name, by which rows and settings identify one."""
    seen: set[str] = set()
    for domain in domains:
        if domain.name in seen:
            raise SettingsError(f"two domains are named {domain.name!r}; give one of them")
        seen.add(domain.name)


@node
class Rollout(GeneratingNode, Trajectories, _Boxes):
    """Makes attempts at tasks and outputs each trajectory as soon as it ends.

    Raises:
        PipelineError: a setting is wrong, or `hw_affinity` names an unknown domain, no class, or
            different fallbacks for one class.
        MissingExtraError: a package that the policy's engine or prefill workers need is missing.
    """

    kind: ClassVar[str] = "rollout"
    takes: ClassVar[tuple[str, ...]] = ("tasks",)

    up: Tasks = part(kw_only=False)
    """The tasks to attempt."""
    policy: Policy = part(kw_only=False)
    """The policy that acts."""
    hw_affinity: Converted[
        Mapping[str, str | Sequence[str]] | Literal["auto"] | None,
        dict[str, str | tuple[str, ...]] | Literal["auto"],
    ] = setting(default=None)
    """Resource class by domain, `default` for the others (ROLLART section 3, R1). If several are
    given, the first is used, and the others replace it when it is full or gone. "auto": engine
    workers on every class that the cluster has, and a profiler binds domains to them."""
    redundancy: NotNegative = 0
    """Attempts per group beyond `group_size`; surplus is cancelled (ROLL Flash 5.2)."""
    extra_groups: NotNegative = 0
    """Groups in flight beyond what the batch needs."""
    max_ahead: NotNegative | None = None
    """Attempts whose environments are reset before their group is admitted, if the schedule has
    any, as `rollart_plus` does: so many more environments there may be at a time. None: as many as
    a batch has, but only in the places of attempts that have ended, so that there are never more
    environments than without them. There are always fewer than the places of `max_concurrent`,
    `max_sandboxes` and `init_slots`, which they hold while they wait."""
    max_replacements: Converted[NotNegative | None, int] = setting(default=None)
    """Failed attempts per group that are replaced; None: `group_size`."""
    workers: Count = 1
    """Processes that drive environments and score what they finish."""
    worker_affinity: Converted[str | Sequence[str], tuple[str, ...]] = setting(
        default=_CPU, read=_read_classes
    )
    """Resource class of these processes. If several are given, the first is used, and the others
    replace it when it is full or missing. CPU stands for any node. Environments that work in boxes
    and rewards that are called remotely leave only the calls to these processes."""
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
    engine_timeout_s: Positive = 60.0
    """An engine worker that does not respond for this long [s] is restarted, then removed."""
    sandboxes: SandboxSettings = nested(default_factory=SandboxSettings)
    """The boxes in which environments run code that a model wrote."""
    name: Name = "rollout"
    """Name of the node."""

    def _check(self) -> None:
        if not isinstance(self.hw_affinity, str):
            given = self.hw_affinity or {}
            named = given.keys() - {"default"}
            check_domains(named, self.up.domain_names, "hw_affinity")
            classes = fitted("hw_affinity", dict[str, Name | tuple[Name, ...]], given)
            self._hold("hw_affinity", classes)
        if self.given.get("max_replacements") is None:
            self._hold("max_replacements", self.up.group_size)
        self.stand_ins()
        classes = fitted("worker_affinity", tuple[Name, ...], self.worker_affinity)
        if not classes:
            raise SettingsError("worker_affinity is empty; give a resource class, such as CPU")
        self._hold("worker_affinity", classes)
        boxes = self.sandbox_affinity.keys() - {"default"}
        check_domains(boxes, self.up.domain_names, "sandbox_affinity")
        self._check_by_domain(self.up.domains)
        self._check_context(self.up.domains)
        if self.prefill_affinity is not None and not self.prefill_workers:
            raise SettingsError(
                f"prefill_affinity={self.prefill_affinity} is for no worker; set prefill_workers "
                "too"
            )
        if self.prefill_workers and self.hw_affinity == AUTO:
            raise SettingsError(
                f"hw_affinity={AUTO} finds where prompts and tokens together are quickest, but "
                "prefill_workers computes them apart; name the classes"
            )
        check_engine(self.policy, units=self.engine_units, prefill_workers=self.prefill_workers)

    def resource_class(self, domain: str) -> str:
        """Resource class that generation for a domain is bound to.

        The class is CPU if none is named, and "auto" if the profiler chooses it.
        """
        if isinstance(self.hw_affinity, str):
            return self.hw_affinity
        classes = self.hw_affinity.get(domain, self.hw_affinity.get("default", "CPU"))
        return classes if isinstance(classes, str) else classes[0]

    def stand_ins(self) -> dict[str, tuple[str, ...]]:
        """The fallback classes that `hw_affinity` names, by resource class.

        Raises:
            SettingsError: a domain names no class, or two name different fallbacks for one.
        """
        affinity = {} if isinstance(self.hw_affinity, str) else self.hw_affinity
        return declared_stand_ins("hw_affinity", affinity)


tasks = variadic(Tasks, object)
rollout = Rollout
