"""Fits the measurements of a run: launches, engines, training, and how they slow each other down.

The invariants: each figure is computed from rows that show it directly, and is never adjusted to
make a prediction agree with the run; a fitted time never decreases with more work or with a longer
shared time.
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
    TokenCurve,
)
from rollart_flow.simulation.report.report import WARMUP
from rollart_flow.simulation.stored.regression import (
    Slowdown,
    nonnegative,
    open_intervals,
    outside,
    slowed,
    stretched,
)
from rollart_flow.simulation.stored.tables import Floats, RunTables, Step
from rollart_flow.simulation.workloads import Script, ScriptedTurn
from rollart_flow.types import TRAINABLE, Outcome

_LEAST_S = 1e-6
"""Lower limit of times that are divisors."""
_FAILED = (Outcome.FAILED, Outcome.TIMED_OUT)
_ONE_PROCESS = Slowdown(growth=0.3, waits=1.0)
"""Slowdown of a run in one process whose training shared no time: threads take turns. The medians
of five runs of the demo that shared some, on two cores, are 0.3 and 0.95."""
_UNDISTURBED = 0.05
"""Quantile of latencies that stands for a trajectory that waited for no other."""


def measure(tables: RunTables, work: TokenCurve | None, *, limit: int, slots: int) -> Measured:
    """Fit all figures of a run with credit for `limit` groups and room for `slots` attempts.

    Args: `work` is that of training steps by their tokens; None fits a line.
    """
    training, slowdown = _training(tables, work)
    stretch = slowdown.stretch if tables.one_process else None
    engines, engine_stretch = _engines(tables, stretch)
    launch_stretch = stretch or 0.0
    launch_s = _launches(tables, limit=limit, slots=slots, stretch=launch_stretch)
    scored_s, commit_s = _commits(tables)
    return Measured(
        engines=engines,
        groups=tuple(_groups(tables)),
        training=training,
        exchange_s=float(np.mean([step.exchange_s for step in tables.steps])),
        launch_s=launch_s,
        scored_s=scored_s,
        commit_s=commit_s,
        training_stretch=slowdown.stretch,
        engine_stretch=engine_stretch,
        launch_stretch=launch_stretch,
    )


def _training(tables: RunTables, work: TokenCurve | None) -> tuple[MeasuredTraining, Slowdown]:
    """Times of training steps, and what slows their computation down while attempts run."""
    steps = tables.steps[min(WARMUP, len(tables.steps) - 1) :]
    took = np.array([step.train_s for step in steps])
    rest = [step.step_s - step.waited_s - step.exchange_s - step.train_s for step in steps]
    shared = _share_with_attempts(tables, steps)
    columns = _work_columns(steps, work)
    known = [step.train_cpu_s for step in steps if step.train_cpu_s is not None]
    if len(known) == len(steps):
        weights, seen = slowed(columns, np.array(known), took, shared)
        slowdown = seen or (_ONE_PROCESS if tables.one_process else Slowdown(0.0, 0.0))
    else:
        weights, stretch = stretched(columns, took, shared)
        slowdown = Slowdown(0.0, stretch)
    fitted = (columns @ weights) * (1 + slowdown.stretch * shared)
    deviations = Series(tuple((took / np.maximum(fitted, _LEAST_S)).tolist()))
    line = ((0.0, float(weights[0])), (1.0, float(weights.sum())))
    curve = TokenCurve(line) if work is None else work.times(float(weights[0]))
    return MeasuredTraining(curve, deviations, max(0.0, float(np.mean(rest)))), slowdown


def _work_columns(steps: tuple[Step, ...], work: TokenCurve | None) -> Floats:
    """Return what the time of a step grows with: its work, or a constant and its tokens."""
    if work is not None:
        return np.array([[work.of(step.tokens)] for step in steps])
    return np.array([[1.0, float(step.tokens)] for step in steps])


def _share_with_attempts(tables: RunTables, steps: tuple[Step, ...]) -> Floats:
    """Share of each step's training during which attempts ran and were not suspended."""
    attempts = tables.attempts
    started, over = attempts["started"].to_numpy(), attempts["ended"].to_numpy()
    ran = open_intervals(*outside(started, over, tables.suspended))
    began = np.array([step.formed for step in steps])
    ended = np.array([step.finished for step in steps])
    share: Floats = (ran(ended) - ran(began)) / np.maximum(ended - began, _LEAST_S)
    return share.clip(0, 1)


def _engines(
    tables: RunTables, stretch: float | None
) -> tuple[tuple[tuple[MeasuredEngine, int], ...], float]:
    """Inference workers by hardware class, and their stretch while a step trains, if not given.

    Turns of the warm-up are left out: everything runs for the first time, and takes longer.
    """
    turns = tables.turns.filter(pl.col("action_tokens") > 0)
    turns = turns.with_columns(pl.Series("beside", _beside(turns)))
    warm = turns.filter(pl.col("started") > _warm(tables))
    turns = warm if warm["hardware"].n_unique() == turns["hardware"].n_unique() else turns
    began = turns["started"].to_numpy()
    ended = began + turns["generate_s"].to_numpy()
    halted = open_intervals(*tables.suspended, most=1)
    times = ended - began - (halted(ended) - halted(began))
    shared = _share_with_training(tables, began, ended)
    sampled = turns["action_tokens"].to_numpy().astype(float)
    seen = turns["observation_tokens"].to_numpy().astype(float)
    beside = turns["beside"].to_numpy()
    columns = np.column_stack((np.ones_like(sampled), seen, sampled, sampled * beside))
    if stretch is None:
        stretch = stretched(columns, times, shared)[1]
    engines = []
    for hardware, count in sorted(tables.workers.items()):
        mine = (turns["hardware"] == hardware).to_numpy()
        scaled = columns[mine] * (1 + stretch * shared[mine])[:, None]
        fixed_s, prompt_token_s, pass_s, sequence_s = nonnegative(scaled, times[mine]).tolist()
        pass_s = max(pass_s, _LEAST_S)
        engine = MeasuredEngine(hardware, fixed_s, prompt_token_s, pass_s, sequence_s)
        engines.append((engine, count))
    return tuple(engines), stretch


def _warm(tables: RunTables) -> float:
    """Time at which the steps of the warm-up were over."""
    return tables.steps[min(WARMUP, len(tables.steps) - 1) - 1].finished


def _share_with_training(tables: RunTables, began: Floats, ended: Floats) -> Floats:
    """Share of each interval in which a step trained."""
    moments = np.array([(step.formed, step.finished) for step in tables.steps]).T
    trained = open_intervals(*moments)
    lengths = np.maximum(ended - began, _LEAST_S)
    share: Floats = ((trained(ended) - trained(began)) / lengths).clip(0, 1)
    return share


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


def _launches(tables: RunTables, *, limit: int, slots: int, stretch: float) -> Series:
    """Service times of the source: since the last start, or since there was credit and room.

    They are those of a source beside which nothing trains, if `stretch` is what training adds.
    Launches of the warm-up are left out if there are others.
    """
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
    shared = _share_with_training(tables, free, started[1:])
    seconds = np.maximum(0.0, started[1:] - free) / (1 + stretch * shared)
    known = np.isfinite(seconds)
    warm = known & (started[1:] > _warm(tables))
    return Series(tuple(seconds[warm if warm.any() else known].tolist()))


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
            made = tuple(turns.get(row, ()))  # the environment fails in the last turn, or in reset
            reset_s, some = resets.get(row, ended - started), made or (ScriptedTurn(1, 1, 0.0),)
            found[row] = Script(reset_s, some, 0.0, False, fails_at=len(made) - 1)
    return found
