"""Fits the measurements of a run: launches, engines, training, and how they slow each other down.

The invariant: each figure is computed from rows that show it directly, and is never adjusted to
make a prediction agree with the run.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl

from rollart_flow.simulation.measured import (
    Measured,
    MeasuredEngine,
    MeasuredTraining,
    RecordedGroup,
    Series,
)
from rollart_flow.simulation.report.report import WARMUP
from rollart_flow.simulation.stored.regression import (
    Floats,
    nonnegative,
    open_intervals,
    outside,
    stretched,
)
from rollart_flow.simulation.stored.tables import RunTables, Step
from rollart_flow.simulation.workloads import Script, ScriptedTurn
from rollart_flow.types import TRAINABLE, Outcome

_LEAST_S = 1e-6
"""Lower limit of times that are divisors."""
_FAILED = (Outcome.FAILED, Outcome.TIMED_OUT)
_UNDISTURBED = 0.05
"""Quantile of latencies that stands for a trajectory that waited for no other."""


def measure(tables: RunTables, *, limit: int, slots: int) -> Measured:
    """Fit all figures of a run.

    Args:
        tables: the rows of the run.
        limit: number of groups that may hold a credit at once.
        slots: number of attempts that may run at once.
    """
    training, training_stretch = _training(tables)
    engines, engine_stretch = _engines(tables)
    scored_s, commit_s = _commits(tables)
    return Measured(
        engines=engines,
        groups=tuple(_groups(tables)),
        training=training,
        exchange_s=float(np.mean([step.exchange_s for step in tables.steps])),
        launch_s=_launches(tables, limit=limit, slots=slots),
        scored_s=scored_s,
        commit_s=commit_s,
        training_stretch=training_stretch,
        engine_stretch=engine_stretch,
    )


def _training(tables: RunTables) -> tuple[MeasuredTraining, float]:
    """Times of training steps, and their stretch while attempts run."""
    steps = tables.steps[min(WARMUP, len(tables.steps) - 1) :]
    times = np.array([step.step_s - step.waited_s - step.exchange_s for step in steps])
    tokens = np.array([float(step.tokens) for step in steps])
    shared = _share_with_attempts(tables, steps)
    columns = np.column_stack((np.ones_like(tokens), tokens))
    weights, stretch = stretched(columns, times, shared)
    fitted = (columns @ weights) * (1 + stretch * shared)
    deviations = Series(tuple((times / fitted).tolist()))
    return MeasuredTraining(float(weights[0]), float(weights[1]), deviations), stretch


def _share_with_attempts(tables: RunTables, steps: tuple[Step, ...]) -> Floats:
    """Share of each step's training during which attempts ran and were not suspended."""
    attempts = tables.attempts
    running = outside(
        attempts["started"].to_numpy(), attempts["ended"].to_numpy(), tables.suspended
    )
    ran = open_intervals(*running)
    began = np.array([step.formed for step in steps])
    ended = np.array([step.finished for step in steps])
    share: Floats = (ran(ended) - ran(began)) / np.maximum(ended - began, _LEAST_S)
    return share.clip(0, 1)


def _engines(tables: RunTables) -> tuple[tuple[tuple[MeasuredEngine, int], ...], float]:
    """Inference workers by hardware class, and their stretch while a step trains."""
    turns = tables.turns.filter(pl.col("action_tokens") > 0)
    began = turns["started"].to_numpy()
    ended = began + turns["generate_s"].to_numpy()
    halted = open_intervals(*tables.suspended, most=1)
    times = ended - began - (halted(ended) - halted(began))
    steps = tables.steps
    trained = open_intervals(
        np.array([step.formed for step in steps]), np.array([step.finished for step in steps])
    )
    lengths = np.maximum(ended - began, _LEAST_S)
    shared = np.clip((trained(ended) - trained(began)) / lengths, 0, 1)
    sampled = turns["action_tokens"].to_numpy().astype(float)
    seen = turns["observation_tokens"].to_numpy().astype(float)
    columns = np.column_stack((np.ones_like(sampled), seen, sampled, sampled * _beside(turns)))
    _, stretch = stretched(columns, times, shared)
    engines = []
    for hardware, count in sorted(tables.workers.items()):
        mine = (turns["hardware"] == hardware).to_numpy()
        scaled = columns[mine] * (1 + stretch * shared[mine])[:, None]
        fixed_s, prompt_token_s, pass_s, sequence_s = nonnegative(scaled, times[mine]).tolist()
        pass_s = max(pass_s, _LEAST_S)
        engine = MeasuredEngine(hardware, fixed_s, prompt_token_s, pass_s, sequence_s)
        engines.append((engine, count))
    return tuple(engines), stretch


def _beside(turns: pl.DataFrame) -> Floats:
    """Number of sequences that each turn's worker had when the turn began, itself included.

    Later sequences are not counted, since a long turn overlaps more of them.
    """
    count = np.zeros(len(turns))
    for worker in turns["worker"].unique():
        mine = (turns["worker"] == worker).to_numpy()
        began = turns["started"].to_numpy()[mine]
        ended = np.sort(began + turns["generate_s"].to_numpy()[mine])
        count[mine] = np.searchsorted(np.sort(began), began, side="right") - np.searchsorted(
            ended, began, side="right"
        )
    return count


def _launches(tables: RunTables, *, limit: int, slots: int) -> Series:
    """Service times of the source: since the last start, or since there was credit and room."""
    attempts = tables.attempts
    started = attempts["started"].to_numpy()
    ended = np.sort(attempts["ended"].to_numpy())
    groups = attempts["group_id"]
    order = {group: place for place, group in enumerate(groups.unique(maintain_order=True))}
    # A group beyond the limit waits for the credit of one that has left.
    place = np.array([order[group] for group in groups]) - limit
    credit = np.full(len(started), -np.inf)
    waits = (place >= 0) & (place < len(tables.released))
    credit[waits] = tables.released[place[waits]]
    room = np.concatenate((np.full(slots, -np.inf), ended))[: len(started)]
    before = np.concatenate(([-np.inf], started[:-1]))
    free = np.maximum(np.maximum(before, credit), room)[1:]
    seconds = np.maximum(0.0, started[1:] - free)
    return Series(tuple(seconds[np.isfinite(seconds)].tolist()))


def _commits(tables: RunTables) -> tuple[float, Series]:
    """Time from the end of an attempt until it may be committed, and the times of commits [s].

    A commit began when the one before was over and its first trajectory had arrived.
    """
    scored = tables.attempts.filter(pl.col("scored_at").is_not_null())
    latency_s = (scored["committed"] - scored["ended"]).to_numpy()
    scored_s = float(max(0.0, np.quantile(latency_s, _UNDISTURBED)))
    commits = scored.group_by("committed").agg(pl.col("ended").min()).sort("committed")
    ends, first = commits["committed"].to_numpy(), commits["ended"].to_numpy() + scored_s
    before = np.concatenate(([-np.inf], ends[:-1]))
    return scored_s, Series(tuple(np.maximum(0.0, ends - np.maximum(before, first)).tolist()))


def _groups(tables: RunTables) -> Iterator[RecordedGroup]:
    """Groups in the order of admission, with the scripts of attempts that ended by themselves."""
    scripts = _scripts(tables)
    members: dict[tuple[str, str], list[Script]] = {}
    for row, (group, domain) in enumerate(tables.attempts.select("group_id", "domain").iter_rows()):
        if row in scripts:
            members.setdefault((group, domain), []).append(scripts[row])
    return (RecordedGroup(domain, tuple(found)) for (_, domain), found in members.items())


def _scripts(tables: RunTables) -> dict[int, Script]:
    """Scripts by row of `tables.attempts`."""
    turns: dict[int, list[ScriptedTurn]] = {}
    resets: dict[int, float] = {}
    columns = tables.turns.filter(pl.col("action_tokens") > 0).select(
        "attempt", "observation_tokens", "action_tokens", "step_s", "reset_s"
    )
    for attempt, seen, sampled, step_s, reset_s in columns.iter_rows():
        turns.setdefault(attempt, []).append(ScriptedTurn(max(1, seen), sampled, step_s or 0.0))
        resets[attempt] = reset_s
    attempts = tables.attempts.select("outcome", "reward", "started", "ended")
    found = {}
    for row, (outcome, reward, started, ended) in enumerate(attempts.iter_rows()):
        if outcome in TRAINABLE and row in turns:
            truncated = outcome == Outcome.TRUNCATED
            found[row] = Script(resets[row], tuple(turns[row]), reward or 0.0, False, truncated)
        elif outcome in _FAILED:
            found[row] = _failing(turns.get(row, []), resets.get(row, ended - started))
    return found


def _failing(turns: list[ScriptedTurn], reset_s: float) -> Script:
    """The script of an attempt whose environment fails in its last turn, or in reset."""
    made = tuple(turns) or (ScriptedTurn(1, 1, 0.0),)
    return Script(reset_s, made, 0.0, False, fails_at=len(turns) - 1)
