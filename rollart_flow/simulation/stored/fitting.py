"""Fits the measurements of a run: launches, engines, training, and how they slow each other down.

The invariants: each figure is computed from rows that show it directly, and is never adjusted to
make a prediction agree with the run; a fitted time never decreases with more work or with a longer
shared time.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from rollart_flow.simulation.measured import (
    Measured,
    MeasuredEngine,
    MeasuredTraining,
    RecordedGroup,
    Series,
)
from rollart_flow.simulation.report.report import WARMUP
from rollart_flow.simulation.stored.tables import Floats, RunTables, Step
from rollart_flow.simulation.workloads import Script, ScriptedTurn
from rollart_flow.types import TRAINABLE, Outcome

_STRETCHES = np.linspace(0.0, 4.0, 81)
"""The stretches that are searched."""


def open_intervals(
    starts: Floats, ends: Floats, *, most: float = np.inf
) -> Callable[[Floats], Floats]:
    """F such that F(b) - F(a) integrates, from a to b, the open intervals, at most `most`."""
    moments = np.sort(np.concatenate((starts, ends)))
    if not len(moments):
        return np.zeros_like
    opened = np.searchsorted(np.sort(starts), moments, side="right")
    closed = np.searchsorted(np.sort(ends), moments, side="right")
    count = np.minimum(opened - closed, most)[:-1]
    area = np.concatenate(([0.0], np.cumsum(count * np.diff(moments))))
    return lambda at: np.interp(at, moments, area)


def outside(starts: Floats, ends: Floats, excluded: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """The parts of the union of intervals that lie outside the union of the excluded ones."""
    moments = np.unique(np.concatenate((starts, ends, *excluded)))
    inside = _open_after(moments, starts, ends) & ~_open_after(moments, *excluded)
    return moments[:-1][inside[:-1]], moments[1:][inside[:-1]]


def _open_after(moments: Floats, starts: Floats, ends: Floats) -> npt.NDArray[np.bool_]:
    """Whether any interval is open just after each moment."""
    opened = np.searchsorted(np.sort(starts), moments, side="right")
    return np.asarray(opened > np.searchsorted(np.sort(ends), moments, side="right"))


def nonnegative(columns: Floats, times: Floats) -> Floats:
    """Weights of 0 or more such that `columns @ weights` is close to `times` [samples].

    Columns [samples, columns] whose weight comes out negative are left out, the most negative
    first.
    """
    fitted = list(range(columns.shape[1]))
    weights = np.zeros(columns.shape[1])
    while fitted:
        found = np.linalg.lstsq(columns[:, fitted], times, rcond=None)[0]
        if (found >= 0).all():
            weights[fitted] = found
            break
        del fitted[int(np.argmin(found))]
    return weights


def stretched(columns: Floats, times: Floats, shared: Floats) -> tuple[Floats, float]:
    """Weights and stretch such that `columns @ weights * (1 + stretch * shared)` is close to times.

    `columns` are [samples, columns]; `shared` is the share of each sample's time in which the
    machine was shared, 0 to 1. The stretch is 0 if the samples do not determine it: if all were
    shared for most of their time, or all for little of it.
    """
    if not (shared.min() < 0.5 < shared.max()):
        return nonnegative(columns, times), 0.0
    best: tuple[float, Floats, float] | None = None
    for stretch in _STRETCHES:
        scaled = columns * (1 + stretch * shared)[:, None]
        weights = nonnegative(scaled, times)
        error = float(((scaled @ weights - times) ** 2).sum())
        if best is None or error < best[0]:
            best = error, weights, float(stretch)
    assert best is not None
    return best[1], best[2]


def stretch_of_waits(computed: Floats, took: Floats, shared: Floats) -> float:
    """Stretch such that `computed * (1 + stretch * shared)` is close to `took`, 0 or more.

    Args:
        computed: CPU time of each sample's thread [s].
        took: its time [s].
        shared: share of that time in which others computed too, 0 to 1 and not 0 in all samples.
    """
    beside = computed * shared
    return max(0.0, float((beside * (took - computed)).sum() / (beside**2).sum()))


_LEAST_S = 1e-6
"""Lower limit of times that are divisors."""
_FAILED = (Outcome.FAILED, Outcome.TIMED_OUT)
_LEAST_SHARED = 0.1
"""Least mean share of training's time that others worked, for its waits to measure them."""
_UNDISTURBED = 0.05
"""Quantile of latencies that stands for a trajectory that waited for no other."""


def measure(tables: RunTables, *, limit: int, slots: int) -> Measured:
    """Fit all figures of a run with credit for `limit` groups and room for `slots` attempts."""
    training, training_stretch = _training(tables)
    engines, engine_stretch = _engines(tables, training_stretch if tables.one_process else None)
    launch_stretch = training_stretch if tables.one_process else 0.0
    scored_s, commit_s = _commits(tables)
    return Measured(
        engines=engines,
        groups=tuple(_groups(tables)),
        training=training,
        exchange_s=float(np.mean([step.exchange_s for step in tables.steps])),
        launch_s=_launches(tables, limit=limit, slots=slots, stretch=launch_stretch),
        scored_s=scored_s,
        commit_s=commit_s,
        training_stretch=training_stretch,
        engine_stretch=engine_stretch,
        launch_stretch=launch_stretch,
    )


def _training(tables: RunTables) -> tuple[MeasuredTraining, float]:
    """Times of training steps, and their stretch while attempts run."""
    steps = tables.steps[min(WARMUP, len(tables.steps) - 1) :]
    times = np.array([step.step_s - step.waited_s - step.exchange_s for step in steps])
    tokens = np.array([float(step.tokens) for step in steps])
    shared = _share_with_attempts(tables, steps)
    columns = np.column_stack((np.ones_like(tokens), tokens))
    weights, stretch = _stretched_by(_waiting(tables, steps, shared), columns, times, shared)
    fitted = (columns @ weights) * (1 + stretch * shared)
    deviations = Series(tuple((times / fitted).tolist()))
    return MeasuredTraining(float(weights[0]), float(weights[1]), deviations), stretch


def _waiting(tables: RunTables, steps: tuple[Step, ...], shared: Floats) -> float | None:
    """Stretch of training by waits for a core or the interpreter; None if nothing tells it.

    Threads of one process take turns, so that two of them take twice as long: that stands for a
    run whose training shared no time.
    """
    known = [step.train_cpu_s for step in steps if step.train_cpu_s is not None]
    if len(known) < len(steps):
        return None
    alone, took = np.array(known), np.array([step.train_s for step in steps])
    if shared.mean() < _LEAST_SHARED:
        return 1.0 if tables.one_process else None
    return stretch_of_waits(alone, took, shared)


def _stretched_by(
    stretch: float | None, columns: Floats, times: Floats, shared: Floats
) -> tuple[Floats, float]:
    """Return costs and their stretch as `stretched` does; a stretch that is not None is given."""
    if stretch is None:
        return stretched(columns, times, shared)
    return nonnegative(columns * (1 + stretch * shared)[:, None], times), stretch


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
    """Inference workers by hardware class, and their stretch while a step trains, if not given."""
    turns = tables.turns.filter(pl.col("action_tokens") > 0)
    began = turns["started"].to_numpy()
    ended = began + turns["generate_s"].to_numpy()
    halted = open_intervals(*tables.suspended, most=1)
    times = ended - began - (halted(ended) - halted(began))
    shared = _share_with_training(tables, began, ended)
    sampled = turns["action_tokens"].to_numpy().astype(float)
    seen = turns["observation_tokens"].to_numpy().astype(float)
    columns = np.column_stack((np.ones_like(sampled), seen, sampled, sampled * _beside(turns)))
    _, stretch = _stretched_by(stretch, columns, times, shared)
    engines = []
    for hardware, count in sorted(tables.workers.items()):
        mine = (turns["hardware"] == hardware).to_numpy()
        scaled = columns[mine] * (1 + stretch * shared[mine])[:, None]
        fixed_s, prompt_token_s, pass_s, sequence_s = nonnegative(scaled, times[mine]).tolist()
        pass_s = max(pass_s, _LEAST_S)
        engine = MeasuredEngine(hardware, fixed_s, prompt_token_s, pass_s, sequence_s)
        engines.append((engine, count))
    return tuple(engines), stretch


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
            made = tuple(turns.get(row, ()))  # the environment fails in the last turn, or in reset
            reset_s, some = resets.get(row, ended - started), made or (ScriptedTurn(1, 1, 0.0),)
            found[row] = Script(reset_s, some, 0.0, False, fails_at=len(made) - 1)
    return found
