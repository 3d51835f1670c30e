"""The summary of a run, computed from its tables alone."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollart_flow.cli.environments import EnvironmentUse, environment_use
from rollart_flow.cli.progress import PHASES
from rollart_flow.metrics.alarms import RAISED
from rollart_flow.types import EventKind, Outcome, Reason

if TYPE_CHECKING:
    import polars as pl

    from rollart_flow.analysis.delivery import TokenAccount
    from rollart_flow.store import Run, Snapshot

_METRICS = ("success_sampled", "success")
_PASS = "pass@"
_MOST_ALARMS = 5
"""Episodes of alarms that are shown, the last ones."""

_BY_OUTCOME = (
    "select split, domain, outcome, count(*) as n, avg(reward) as reward "
    "from trajectories group by split, domain, outcome"
)


@dataclass(frozen=True)
class Curve:
    """A metric of one domain over the steps after which it was evaluated."""

    domain: str
    metric: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    episodes: int
    """Episodes of the last evaluation."""
    interval: tuple[float, float] | None = None
    """95% confidence interval of the last value; None in runs from before it was stored."""


@dataclass(frozen=True)
class Preferences:
    """Margins and accuracies of the policy's preferences, at the start of steps."""

    margins: tuple[float, ...]
    """Mean implicit reward of the preferred less that of the rejected, by step."""
    accuracies: tuple[float, ...]
    """Fraction of pairs whose preferred trajectory has the higher implicit reward, by step; empty
    without pairs."""


@dataclass(frozen=True)
class Summary:
    """The figures of a run."""

    name: str
    uri: str
    status: str
    error: str | None
    pipeline: str
    parent: str | None
    """Run and step from which it was forked."""
    created_at: str
    steps: int
    trajectories: int
    """Rows of `trajectories`."""
    episodes: int
    """Attempts, each of which has one row or several."""
    curves: tuple[Curve, ...]
    staleness: dict[int, int]
    """Episodes that were trained on, by staleness [versions]."""
    staleness_max: int | None
    """max(policy_version - policy_version_start) over all batches; the proof of a bound on it."""
    lag: dict[int, int]
    """Episodes that were trained on, by lag [versions]."""
    lag_max: int | None
    """max(trained_version - policy_version_start) over all batches; the proof of a bound on it."""
    alpha: float | None
    bounded: str | None
    """Quantity that alpha bounds, "staleness" or "lag"; None if it bounds neither."""
    outcomes: dict[str, int]
    """Attempts of the training split by outcome."""
    seconds: dict[str, float]
    """Seconds by phase of a step, summed over steps; `step` is the whole."""
    trajectories_per_s: float | None
    example: str | None
    """A trajectory of the last batch."""
    environments: EnvironmentUse | None = None
    """Time in environments and boxes; None if nothing was generated."""
    captured: "TokenAccount | None" = None
    """Sampled tokens of captured agents, delivered or not; None without such agents."""
    rescorings: Mapping[str, int] = field(default_factory=dict)
    """Attempts that each rescoring judged, by its name."""
    preferences: Preferences | None = None
    """None if the run did not learn from preferences."""
    warnings: tuple[str, ...] = ()
    """Failures that did not end the run: of the maintenance of its tables, and of trackers; and
    alarms."""

    def as_json(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "curves": [curve.__dict__ for curve in self.curves],
            "rescorings": dict(self.rescorings),
            "preferences": self.preferences and self.preferences.__dict__,
            "environments": self.environments and self.environments.as_json(),
            "captured": self.captured and self.captured.as_json(),
        }

    @property
    def next_commands(self) -> tuple[str, ...]:
        from rollart_flow.store import RunStatus

        name = shlex.quote(self.name)
        commands = []
        if self.status == RunStatus.INTERRUPTED and self.alpha is not None:  # it has a pipeline
            commands.append(f"rollart resume {name}")
        if self.status == RunStatus.FAILED:
            commands.append(f"rollart logs {name}")
        commands.append(f'rollart query {name} "{_BY_OUTCOME}"')
        if self.example is not None:
            commands.append(f"rollart show {name} --trajectory {shlex.quote(self.example)}")
        if self.steps:
            commands.append(f"rollart replay {name} --step {self.steps}")
        commands.append(f"rollart ui {name}")
        return tuple(commands)


def summarize(run: "Run") -> Summary:
    import polars as pl

    from rollart_flow.analysis.delivery import token_account
    from rollart_flow.store.rescored import rescorings

    info, tables = run.info, run.snapshot()
    nodes = info.settings.get("nodes", {}).values()
    buffer: Mapping[str, Any] = next((n for n in nodes if n.get("kind") == "buffer"), {})
    bound = buffer.get("alpha")
    steps = tables.steps.sort("step").select("step", "step_s", *PHASES).collect()
    staleness, lag = (_ages(tables, n) for n in ("policy_version", "trained_version"))
    outcomes = _outcomes(tables)
    total_s = float(steps["step_s"].sum())
    attempts = sum(outcomes.values())
    made = tables.batches.filter(pl.col("source_seq").is_null())
    last = made.sort("step", "position", descending=[True, False])
    example = last.select("trajectory_id").head(1).collect()
    return Summary(
        name=handle(run),
        uri=run.uri,
        status=info.status,
        error=info.error,
        pipeline=info.pipeline,
        parent=None if info.parent is None else f"{info.parent.uri} step {info.parent.step}",
        created_at=info.created_at.isoformat(timespec="seconds"),
        steps=int(steps["step"].max() or 0),  # type: ignore[arg-type]
        trajectories=int(tables.trajectories.select(pl.len()).collect().item()),
        episodes=int(_episodes(tables.trajectories).select(pl.len()).collect().item()),
        curves=_curves(tables),
        staleness=staleness,
        staleness_max=max(staleness, default=None),
        lag=lag,
        lag_max=max(lag, default=None),
        alpha=None if bound is None else float(bound),
        bounded=_bounded(buffer),
        outcomes=outcomes,
        seconds={"step": total_s} | {phase[:-2]: float(steps[phase].sum()) for phase in PHASES},
        trajectories_per_s=attempts / total_s if attempts and total_s else None,
        example=None if example.is_empty() else str(example.item()),
        environments=environment_use(tables),
        captured=token_account(tables),
        rescorings=rescorings(tables),
        preferences=_preferences(tables),
        warnings=_warnings(tables),
    )


def handle(run: "Run") -> str:
    """Return the shortest reference to this run on the command line: its name or its URI."""
    from rollart_flow.errors import RunNotFoundError
    from rollart_flow.store import resolve

    try:
        return run.info.name if resolve(run.info.name) == run.uri else run.uri
    except RunNotFoundError:
        return run.uri


def _bounded(buffer: Mapping[str, Any]) -> str | None:
    schedule = buffer.get("schedule") or {"bound": {"type": "StalenessPolicy"}}
    return {"StalenessPolicy": "staleness", "LagBound": "lag"}.get(schedule["bound"]["type"])


def _ages(tables: "Snapshot", newest: str) -> dict[int, int]:
    """Count the episodes of all batches by age, from their start to the version `newest`."""
    import polars as pl

    started = tables.trajectories.select("trajectory_id", "policy_version_start")
    age = (pl.col(newest) - pl.col("policy_version_start")).alias("age")
    episode = pl.coalesce("episode_id", "trajectory_id").alias("episode")
    rows = tables.batches.join(started, on="trajectory_id").select("step", episode, age)
    oldest = rows.group_by("step", "episode").agg(pl.col("age").max())
    return dict(oldest.group_by("age").len().sort("age").collect().iter_rows())


def _episodes(trajectories: "pl.LazyFrame") -> "pl.LazyFrame":
    """Return one row for each attempt: its branch 0."""
    import polars as pl

    return trajectories.filter(pl.col("branch").fill_null(0) == 0)


def _outcomes(tables: "Snapshot") -> dict[str, int]:
    """Count the attempts by outcome, as the overview in the browser does by outcome and reason."""
    import polars as pl

    from rollart_flow.views.overview import WASTE
    from rollart_flow.views.view import Page, ViewReader

    rows = ViewReader(tables).read(WASTE, page=Page(rows=len(Outcome) * (len(Reason) + 1))).frame
    counted = rows.group_by("outcome").agg(pl.col("attempts").cast(pl.Int64).sum())
    return dict(counted.sort("attempts", "outcome", descending=[True, False]).iter_rows())


def _preferences(tables: "Snapshot") -> Preferences | None:
    from rollart_flow.metrics.preferences import preferences_by_step

    found = preferences_by_step(tables.batches).collect()
    margins, accuracies = (
        tuple(found[name].drop_nulls().to_list()) for name in ("margin", "accuracy")
    )
    return Preferences(margins, accuracies) if margins else None


def _warnings(tables: "Snapshot") -> tuple[str, ...]:
    import polars as pl

    kinds = (EventKind.MAINTENANCE, EventKind.TRACKER, EventKind.ALARM)
    rows = tables.events.filter(pl.col("kind").is_in([str(kind) for kind in kinds])).sort("seq")
    details = [
        (row["kind"], row["subject"], row["step"], json.loads(row["detail"]))
        for row in rows.collect().iter_rows(named=True)
    ]
    said = [_failure(*each[:2], each[3]) for each in details if each[0] != EventKind.ALARM]
    alarms = [each[1:] for each in details if each[0] == EventKind.ALARM]
    return tuple(dict.fromkeys([*said, *_alarms(alarms)]))


def _failure(kind: str, subject: str, detail: Mapping[str, Any]) -> str:
    if kind == EventKind.TRACKER:
        return f"tracker {subject} ended after {detail['records']} records: {detail['error']}"
    return f"maintenance of the tables failed: {detail['error']}"


def _alarms(events: Iterable[tuple[str, int | None, Mapping[str, Any]]]) -> Iterator[str]:
    """Give a line for each episode of an alarm, in the order in which they began."""
    episodes: list[tuple[str, str, str, str]] = []
    for name, step, detail in events:
        at = "between steps" if step is None else f"at step {step}"
        if detail["state"] == RAISED:
            episodes.append((name, detail["said"], at, ""))
            continue
        for place in reversed(range(len(episodes))):
            if episodes[place][0] == name:
                episodes[place] = (*episodes[place][:3], at)
                break
    shown = episodes[-_MOST_ALARMS:]
    if len(episodes) > len(shown):
        yield f"{len(episodes) - len(shown)} earlier alarms are in the table events"
    for name, said, began, ended in shown:
        yield f"alarm {name} {began}: {said}" + (f"; over {ended}" if ended else "")


def _curves(tables: "Snapshot") -> tuple[Curve, ...]:
    rows = tables.evaluations.sort("domain", "metric", "step").collect()
    return tuple(
        Curve(
            str(domain),
            str(metric),
            tuple(one["step"]),
            tuple(one["value"]),
            int(one["n"][-1]),
            None if one["low"][-1] is None else (one["low"][-1], one["high"][-1]),
        )
        for (domain, metric), one in rows.group_by("domain", "metric", maintain_order=True)
        if str(metric).split("/")[0] in _METRICS or str(metric).startswith(_PASS)
    )
