"""Reads the tables of a stored run for a prediction, as seconds since its first attempt.

The invariant: moments of one run are comparable with each other, and a turn lies within its
attempt: the time of an attempt outside of its turns was spent before the first turn.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt
import polars as pl

from rollart_flow.control.schedule.declarations import Phase, Swap
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.errors import SettingsError
from rollart_flow.resources.nodes import is_of_ray
from rollart_flow.store.snapshot import Snapshot
from rollart_flow.types import Split

Floats = npt.NDArray[np.float64]

_MOMENTS = {"created_at": "started", "finished_at": "ended", "committed_at": "committed"}


@dataclass(frozen=True, slots=True)
class Step:
    """One training step."""

    step: int
    step_s: float
    exchange_s: float
    """Sum of suspend, update and resume."""
    waited_s: float
    """Wait for trajectories that were not committed yet."""
    formed: float
    """Time at which the trainer got the batch [s since the start]."""
    finished: float
    tokens: int
    train_s: float
    """Time of the training computation."""
    train_cpu_s: float | None
    """CPU time of its thread; None if the trainer used a device, or the run does not say it."""


@dataclass(frozen=True, slots=True)
class RunTables:
    """The rows of a run that a prediction needs."""

    steps: tuple[Step, ...]
    attempts: pl.DataFrame
    """One row per attempt, by start: group_id, domain, outcome, reward, scored_at, started, ended,
    committed."""
    turns: pl.DataFrame
    """One row per turn: the row of its attempt in `attempts`, observation_tokens, action_tokens,
    generate_s, step_s, started, hardware, worker."""
    suspended: tuple[Floats, Floats]
    """Times at which engines were suspended, and resumed."""
    released: Floats
    """Times at which groups left and returned their credits; ascending."""
    workers: Mapping[str, int]
    """Number of inference workers by hardware class."""
    affinity: Mapping[str, str]
    """Hardware class by domain."""
    trainers: int
    one_process: bool
    """Whether engines and trainer were threads of one process, without Ray."""
    weight_bytes: float


def read_tables(snapshot: Snapshot, name: str, schedule: Schedule, least_steps: int) -> RunTables:
    """Read a run; SettingsError if it lacks required rows, or has fewer than `least_steps`."""
    steps = snapshot.steps.sort("step").collect()
    if len(steps) < least_steps:
        raise SettingsError(
            f"run {name} has {len(steps)} training steps, but a prediction needs {least_steps}"
        )
    attempts = _attempts(snapshot)
    if attempts.filter(pl.col("scored_at").is_not_null()).is_empty():
        raise SettingsError(f"run {name} has no scored attempt")
    origin: datetime = attempts["created_at"].min()  # type: ignore[assignment]
    attempts = attempts.with_columns(_seconds(at, origin).alias(m) for at, m in _MOMENTS.items())
    turns = _turns(attempts)
    events = snapshot.events.with_columns(_seconds("at", origin).alias("moment")).collect()
    batches = snapshot.batches.select("step", "group_id", "trajectory_id").collect()
    phases = _phases(events, steps["step"].to_list(), name)
    bindings = snapshot.bindings.collect()
    generation = bindings.filter(role="generation")
    used = turns.group_by("hardware").agg(pl.col("worker").n_unique())
    return RunTables(
        steps=_steps(steps, batches, attempts, phases, schedule, origin),
        attempts=attempts.drop("turns", "action_mask"),
        turns=turns,
        suspended=(
            np.sort(np.array(list(phases[Phase.SUSPEND].values()))),
            np.sort(np.array(list(phases[Phase.RESUME].values()))),
        ),
        released=_released(events, batches, phases[Phase.SUSPEND]),
        workers=dict(zip(used["hardware"], used["worker"], strict=True)),
        affinity=dict(zip(generation["domain"], generation["granted"], strict=True)),
        trainers=max(1, bindings.filter(role="training")["worker"].n_unique()),
        one_process=not any(map(is_of_ray, bindings["node"])),
        weight_bytes=float(snapshot.weights.select(pl.col("size_bytes").max()).collect().item()),
    )


def _seconds(column: str, origin: datetime) -> pl.Expr:
    return (pl.col(column) - origin).dt.total_microseconds() / 1e6


def _attempts(snapshot: Snapshot) -> pl.DataFrame:
    columns = (
        "group_id domain outcome reward reset_s turns action_mask trajectory_id "
        "created_at finished_at scored_at committed_at"
    )
    trained = snapshot.trajectories.filter(pl.col("split") == str(Split.TRAIN))
    return trained.select(columns.split()).collect().sort("created_at", "trajectory_id")


def _turns(attempts: pl.DataFrame) -> pl.DataFrame:
    """All turns, with the times at which their actions were requested."""
    numbered = attempts.select("started", "ended", "turns").with_row_index("attempt")
    turns = numbered.filter(pl.col("turns").list.len() > 0).explode("turns").unnest("turns")
    masks = attempts["action_mask"].to_arrow()
    lengths = attempts["action_mask"].list.len().cast(pl.Int64).to_numpy()
    sampled = np.concatenate(([0], np.cumsum(masks.flatten().to_numpy(zero_copy_only=False))))
    first = (np.cumsum(lengths) - lengths)[turns["attempt"].to_numpy()]
    ends, starts = first + turns["end"].to_numpy(), first + turns["start"].to_numpy()
    actions = sampled[ends] - sampled[starts]
    turns = turns.with_columns(
        pl.Series("action_tokens", actions, pl.Int64),
        pl.Series("observation_tokens", ends - starts - actions, pl.Int64),
    )
    spent = pl.col("generate_s") + pl.col("step_s")
    before = pl.col("ended") - pl.col("started") - spent.sum().over("attempt")
    return turns.with_columns(
        (pl.col("started") + before.clip(0) + spent.cum_sum().over("attempt") - spent).alias(
            "started"
        ),
        before.clip(0).alias("reset_s"),
    ).drop("ended", "start", "end", "observation", "action", "reward", "finish_reason")


def _phases(events: pl.DataFrame, steps: list[int], name: str) -> dict[Phase, dict[int, float]]:
    """End of each phase by step; of a repeated phase, the last end."""
    found: dict[Phase, dict[int, float]] = {}
    for phase in (Phase.SUSPEND, Phase.UPDATE, Phase.RESUME):
        rows = events.filter(pl.col("kind") == str(phase)).sort("moment")
        found[phase] = dict(zip(rows["step"], rows["moment"], strict=True))
    if lacking := [step for step in steps if step not in found[Phase.SUSPEND]]:
        raise SettingsError(
            f"run {name} has no suspend event of step {lacking[0]}, which a prediction needs"
        )
    return found


def _released(
    events: pl.DataFrame, batches: pl.DataFrame, suspended: Mapping[int, float]
) -> Floats:
    """Times at which groups left: taken for a batch, abandoned or evicted."""
    taken = batches.group_by("group_id").agg(pl.col("step").first()).select(
        "group_id", pl.col("step").replace_strict(suspended, return_dtype=pl.Float64).alias("at")
    )  # fmt: skip
    dropped = events.filter(pl.col("kind").is_in(["evict", "abandon"])).select(
        pl.coalesce(pl.col("detail").str.json_path_match("$.group_id"), pl.col("subject")).alias(
            "group_id"
        ),
        pl.col("moment").alias("at"),
    )
    left = pl.concat([taken, dropped]).group_by("group_id").agg(pl.col("at").min())
    return left["at"].sort().to_numpy()


def _on_cpus(kernels: str) -> bool:
    """Whether the trainer of a step computed on CPUs, by the column `kernels` of `steps`."""
    return bool(json.loads(kernels).get("device") == "cpu")


def _steps(
    steps: pl.DataFrame,
    batches: pl.DataFrame,
    attempts: pl.DataFrame,
    phases: Mapping[Phase, Mapping[int, float]],
    schedule: Schedule,
    origin: datetime,
) -> tuple[Step, ...]:
    formed = Phase.RESUME if Phase.RESUME in schedule.before_training else Phase.SUSPEND
    swapped_first = schedule.swap is Swap.FIRST
    by_step = batches.join(attempts, on="trajectory_id").group_by("step")
    ready = dict(by_step.agg(pl.col("committed").max()).iter_rows())
    steps = steps.with_columns(_seconds("finished_at", origin).alias("finished"))
    found = []
    for row in steps.iter_rows(named=True):
        step = row["step"]
        if swapped_first:
            asked = phases[Phase.RESUME].get(step - 1, row["finished"] - row["step_s"])
            began = asked + row["wait_s"]
        else:
            asked = phases[Phase.SUSPEND][step] - row["suspend_s"] - row["wait_s"]
            began = phases[formed].get(step, phases[Phase.SUSPEND][step])
        found.append(
            Step(
                step=step,
                step_s=row["step_s"],
                exchange_s=row["suspend_s"] + row["update_s"] + row["resume_s"],
                waited_s=float(np.clip(ready[step] - asked, 0, row["wait_s"])),
                formed=began,
                finished=row["finished"],
                tokens=row["tokens"],
                train_s=row["train_s"],
                train_cpu_s=row["train_cpu_s"] if _on_cpus(row["kernels"]) else None,
            )
        )
    return tuple(found)
