"""The nodes that form batches of new trajectories: buffer, and mix, which adds stored ones."""

from collections.abc import Iterable
from typing import Annotated, ClassVar

from rollart_flow.control.schedule.declarations import Barrier
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import named_schedule, rollart
from rollart_flow.errors import SettingsError
from rollart_flow.fields import Count, Name, NotNegative, Positive, Within, fitted
from rollart_flow.pipeline.keywords import Converted, part, setting
from rollart_flow.pipeline.node import Node, node, variadic
from rollart_flow.pipeline.producing import Trajectories
from rollart_flow.pipeline.stored import SELF, Stored


@node
class Buffer(Node):
    """Commits scored trajectories and forms batches that keep the bound on their age.

    Raises:
        PipelineError: a setting is wrong, or alpha and the schedule disagree.
    """

    kind: ClassVar[str] = "buffer"
    takes: ClassVar[tuple[str, ...]] = ("reward", "filter")

    up: Trajectories = part(kw_only=False)
    """The scored trajectories."""
    batch_size: Count = 64
    """Episodes of one training step; divisible by the group size."""
    alpha: Converted[Annotated[float, Within(0)] | None, float] = setting(default=None)
    """Maximum staleness [versions]: between a trajectory's start and the engines' when its batch is
    formed. With the schedule `flash(alpha)` the maximum lag: between its start and the weights that
    it trains. None: that of the schedule, or 1; 0 alternates rollout and training."""
    schedule: Converted[Schedule | str | None, Schedule] = setting(
        default=None, read=named_schedule
    )
    """How rollout and training interleave, as an object or by name: `rollart(alpha)` by default,
    which is `sync_plus()` for 0; "flash(1)", "sync", "one_off", "areal(2)", "window(8)",
    "staged(8, 32, 16)", "hybrid", each with the switches queue_scheduling and prompt_replication:
    "sync_plus(queue_scheduling=False)". See `control.schedule.schedules`."""
    commit_rows: Count = 128
    """Rows of a micro-batch that is committed at once."""
    commit_ms: Positive = 50.0
    """Longest wait of a row for its micro-batch to fill [ms]."""
    writers: NotNegative = 0
    """Processes that hold the rows and write their files for the buffer's process, which then sees
    no tokens; 0: the buffer's process does it. docs/cluster.md says when they are needed."""
    name: Name = "buffer"
    """Name of the node."""

    def _expect(self, up: object) -> None:
        super()._expect(up)
        if isinstance(up, Trajectories) and up.drawn:
            raise SettingsError("holds no stored trajectories; train(...) takes them without it")

    def _check(self) -> None:
        if not self.up.scored:
            raise SettingsError("unscored trajectories cannot be trained on; add reward(...)")
        group_size = self.up.tasks.group_size
        if self.batch_size % group_size:
            raise SettingsError(
                f"batch_size {self.batch_size} is not divisible by group_size {group_size}; "
                f"take {-(-self.batch_size // group_size) * group_size}"
            )
        alpha, schedule = _bound(self.given.get("alpha"), self.schedule)
        if self.up.tasks.curriculum is not None and schedule.order_checks:
            raise SettingsError(
                f"schedule {schedule.name} keeps to the order of tasks, of which a curriculum "
                "skips some; leave one of them away"
            )
        agents = map(self.up.rollout.agent_in, self.up.tasks.domain_names)
        if Barrier.TURNS in schedule.barriers and any(agents):
            raise SettingsError(
                f"schedule {schedule.name} has barriers between turns, at which the program of an "
                "agent cannot wait; choose another one, such as sync_plus()"
            )
        self._hold("alpha", float(alpha))
        self._hold("schedule", schedule)


def _bound(alpha: float | None, schedule: Schedule | None) -> tuple[float, Schedule]:
    """Alpha and schedule; if only one is given, the other is derived from it."""
    if schedule is None:
        bound = 1.0 if alpha is None else float(alpha)
        return bound, rollart(bound)
    of_schedule = getattr(schedule.bound, "alpha", None)
    if of_schedule is None:
        return 1.0 if alpha is None else alpha, schedule
    if alpha is not None and alpha != of_schedule:
        raise SettingsError(
            f"alpha {alpha:g} conflicts with the schedule's {of_schedule:g}; give one"
        )
    return of_schedule, schedule


@node
class Mix(Node):
    """Batches of a buffer, each with stored trajectories beside the new ones.

    The episodes of the buffer are its batch, as without `mix`; the others are drawn from `stored`
    sources in proportion. The bound of the buffer says nothing of rows of other runs, whose policy
    versions are not those of this run, so that such a source is exempt by name: `exempt=True`.

    Raises:
        PipelineError: a source is not exempt, says its own `batch_size`, or has no weight.
    """

    kind: ClassVar[str] = "mix"
    takes: ClassVar[tuple[str, ...]] = ("buffer",)

    up: Buffer = part(kw_only=False)
    """The buffer that forms the batches of new trajectories."""
    others: tuple[Stored, ...] = part(many=True, init=False)
    """The sources of stored trajectories, each what `stored` returned."""
    weights: Converted[Iterable[float], tuple[float, ...]] = setting()
    """Relative share of the episodes of a batch: the buffer's, then that of each source. With
    (3, 1) a stored episode comes with three new ones."""
    name: Name = "mix"
    """Name of the node."""

    def _check(self) -> None:
        if not self.others:
            raise SettingsError("no stored(...) to mix with the buffer; give at least one")
        for source in self.others:
            if not isinstance(source, Stored):
                raise SettingsError(
                    f"takes buffer(...) and then stored(...), got {getattr(source, 'kind', source)}"
                )
            self._check_source(source)
        shares = fitted("weights", tuple[Positive, ...], tuple(self.weights))
        if len(shares) != 1 + len(self.others):
            raise SettingsError(
                f"weights has {len(shares)} numbers, but should have {1 + len(self.others)}: "
                "that of the buffer, then one for each source"
            )
        self._hold("weights", shares)
        for source, count in zip(self.others, self.counts, strict=True):
            if not count:
                raise SettingsError(
                    f"weights {shares} give {source.name} no episode beside the buffer's "
                    f"{self.up.batch_size}; raise its weight"
                )

    def _check_source(self, source: Stored) -> None:
        if "batch_size" in source.given:
            raise SettingsError(
                f"{source.name}: leave out its batch_size, which follows from weights"
            )
        if not source.exempt and source.runs != (SELF,):
            raise SettingsError(
                f"{source.name}: policy versions of other runs mean nothing under this run's "
                "bound; exempt the source by name, with stored(..., exempt=True)"
            )

    @property
    def counts(self) -> tuple[int, ...]:
        """Episodes of a batch that are drawn from each source."""
        own, *others = self.weights
        return tuple(round(self.up.batch_size * share / own) for share in others)

    @property
    def batch_size(self) -> int:
        """Episodes of one training step, new and stored."""
        return self.up.batch_size + sum(self.counts)

    @property
    def upstream(self) -> tuple[Node, ...]:
        return (self.up, *self.others)


buffer = Buffer
mix = variadic(Mix, Stored)
