"""The activity of each stage of a run now, derived from the run's tables alone.

`ActivityReader` reads the rows that were added since it read last, so that another look at a long
run costs what is new in it. Its memory does not grow with the length of the run: it holds the
groups that are open or wait in the buffer, and the rows of the last seconds.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from rollart_flow.store import Run, RunStatus, Snapshot
from rollart_flow.telemetry import Progress
from rollart_flow.types import TRAINABLE, EventKind, Split

WINDOW_S = 30.0
"""Seconds over which rates are computed."""
_EPISODE = pl.coalesce("episode_id", "trajectory_id").alias("episode")
_PART = 250_000
"""Rows of all tables that are read at once."""
_SERVING = {
    EventKind.SUSPEND: "suspended",
    EventKind.UPDATE: "suspended",
    EventKind.RESUME: "generating",
}


@dataclass(frozen=True)
class StageActivity:
    """The state of a run at one moment."""

    name: str
    status: str
    step: int
    total_steps: int
    in_flight: int
    """Attempts that were admitted and have not ended, those that wait for a place among them."""
    attempts_per_s: float
    turns_per_s: float
    tokens_per_s: float
    """Sampled tokens of ended attempts, over all engines."""
    engines: int
    engine_state: str
    """generating or suspended."""
    served_version: int
    pending: int
    """Scored attempts in the buffer that no batch holds."""
    trainer: str
    """Activity of the trainer, such as "training step 3" or "waiting for the batch of step 4"."""
    trainer_s: float
    """Seconds since it began that."""
    committed: int
    """Attempts of the training split that have ended so far."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Group:
    """A group that was admitted and was neither trained on nor given up."""

    launched: int
    ended: int = 0
    trainable: int = 0


@dataclass(frozen=True)
class _Ended:
    """The share of one ended attempt in the rates."""

    at: datetime
    turns: int
    tokens: int
    attempts: int


@dataclass(frozen=True)
class _Buffered:
    """An attempt in the buffer."""

    group: str
    domain: str
    reward: float


@dataclass
class _Rewards:
    """Sum and number of the rewards of a domain in a batch."""

    total: float = 0.0
    count: int = 0


@dataclass
class ActivityReader:
    """Reads a run again and again, while another process writes it or after its end."""

    run: Run
    _seq: int = 0
    _groups: dict[str, _Group] = field(default_factory=dict)
    _waiting: dict[str, _Buffered] = field(default_factory=dict)
    _rewards: dict[int, dict[str, _Rewards]] = field(default_factory=dict)
    _recent: deque[_Ended] = field(default_factory=deque)
    _committed: int = 0
    _engines: int = 0
    _engine_state: str = "starting"
    _served: int = 0
    _step: int = 0
    _formed: int = 0
    _changed: datetime | None = None
    """When the trainer began what it does."""
    _newest: datetime | None = None

    def __post_init__(self) -> None:
        info = self.run.info
        nodes: Mapping[str, Any] = info.settings.get("nodes", {})
        by_kind = {node.get("kind"): node for node in nodes.values()}
        self._name = info.name
        self._total = int(by_kind.get("train", {}).get("steps", 0))
        self._group_size = int(by_kind.get("tasks", {}).get("group_size", 1))
        self._launched = self._group_size + int(by_kind.get("rollout", {}).get("redundancy", 0))
        self._step = self._served = 0 if info.parent is None else info.parent.step
        self._formed = self._step

    def read(self) -> list[Progress]:
        """Read what is new, and return a message for each new step, evaluation and crash."""
        now = self.run.snapshot()
        found: list[Progress] = []
        for first in range(self._seq + 1, now.seq + 1, _PART):
            part = pl.col("seq").is_between(first, min(first + _PART - 1, now.seq))
            found += self._part(now, part)
        self._seq = now.seq
        return found

    def _part(self, now: Snapshot, part: pl.Expr) -> list[Progress]:
        events = now.events.filter(part).select(
            "seq", "at", "kind", "subject", "policy_version", "detail"
        )
        ended = now.trajectories.filter(part, pl.col("split") == Split.TRAIN).select(
            "seq", "committed_at", "group_id", "domain", "outcome", "reward", "branch",
            _EPISODE,
            turns=pl.col("turns").list.len(),
            tokens=pl.col("action_mask").list.sum(),
        )  # fmt: skip
        batches = now.batches.filter(part).select("seq", "committed_at", "step", _EPISODE)
        engines = now.bindings.filter(part, pl.col("role") == "generation").select("worker")
        tables = (events, ended, batches, now.steps.filter(part), now.evaluations.filter(part))
        read = pl.collect_all([*tables, engines])
        self._engines += read[-1]["worker"].n_unique()
        rows = [
            (row["seq"], kind, row)
            for kind, frame in enumerate(read[:-1])
            for row in frame.iter_rows(named=True)
        ]
        rows.sort(key=lambda each: each[:2])
        messages = (self._event, self._attempt, self._batch, self._trained, _evaluated)
        found = [message for _, kind, row in rows for message in messages[kind](row)]
        return _by_version(found, self._total)

    def _event(self, row: Mapping[str, Any]) -> Iterator[Progress]:
        kind, subject = row["kind"], row["subject"]
        if kind == EventKind.ADMIT:
            self._groups[subject] = _Group(self._launched)
        elif kind == EventKind.RETRY and "replaces" in row["detail"]:
            if group := self._groups.get(subject.rpartition("-")[0]):
                group.launched += 1
        elif kind in (EventKind.EVICT, EventKind.DROP):
            self._waiting.pop(subject, None)
            if kind == EventKind.EVICT:
                self._groups.pop(json.loads(row["detail"]).get("group_id", ""), None)
        elif kind == EventKind.ABANDON:
            self._groups.pop(subject, None)
        elif kind in _SERVING:
            self._engine_state = _SERVING[kind]
            if row["policy_version"] is not None:
                self._served = row["policy_version"]
        elif kind == EventKind.CRASH:
            said = json.loads(row["detail"]).get("error")
            yield Progress.note(f"{subject} died" + (f": {said}" if said else ""))

    def _attempt(self, row: Mapping[str, Any]) -> Iterator[Progress]:
        first = not row["branch"]
        ended = _Ended(row["committed_at"], row["turns"], row["tokens"] or 0, int(first))
        self._recent.append(ended)
        self._newest = row["committed_at"]
        if self._engine_state == "starting":
            self._engine_state = "generating"
        self._committed += first
        if not first:
            return
        group = self._groups.get(row["group_id"])
        if group is not None:
            group.ended += 1
        if row["outcome"] in TRAINABLE and row["reward"] is not None:
            if group is not None:
                group.trainable += 1
            waiting = _Buffered(row["group_id"], row["domain"], row["reward"])
            self._waiting[row["episode"]] = waiting
        yield from ()

    def _batch(self, row: Mapping[str, Any]) -> Iterator[Progress]:
        if row["step"] > self._formed:
            self._formed, self._changed = row["step"], row["committed_at"]
        waiting = self._waiting.pop(row["episode"], None)
        if waiting is not None:
            self._groups.pop(waiting.group, None)
            sums = self._rewards.setdefault(row["step"], {})
            rewards = sums.setdefault(waiting.domain, _Rewards())
            rewards.total += waiting.reward
            rewards.count += 1
        yield from ()

    def _trained(self, row: Mapping[str, Any]) -> Iterator[Progress]:
        self._step, self._changed = row["step"], row["committed_at"]
        self._formed = max(self._formed, self._step)
        sums = self._rewards.pop(row["step"], {})
        yield Progress.step(
            row,
            total_steps=self._total,
            rewards={domain: each.total / each.count for domain, each in sums.items()},
            committed=self._committed,
        )

    def activity(self, at: datetime | None = None) -> StageActivity:
        """Return the state as of what was read.

        Args:
            at: the present; this machine's clock unless given. A run that has ended is described as
                of its last row.
        """
        status = self.run.status
        at = at or datetime.now(UTC)
        if status is not RunStatus.RUNNING:
            at = max((t for t in (self._newest, self._changed) if t is not None), default=at)
        while self._recent and at - self._recent[0].at > timedelta(seconds=WINDOW_S):
            self._recent.popleft()
        began = self._changed
        return StageActivity(
            name=self._name,
            status=str(status),
            step=self._step,
            total_steps=self._total,
            in_flight=self._in_flight() if status is RunStatus.RUNNING else 0,
            attempts_per_s=self._per_s("attempts", at),
            turns_per_s=self._per_s("turns", at),
            tokens_per_s=self._per_s("tokens", at),
            engines=self._engines,
            engine_state=self._engine_state,
            served_version=self._served,
            pending=len(self._waiting),
            trainer=self._trainer() if status is RunStatus.RUNNING else "ended",
            trainer_s=0.0 if began is None else max(0.0, (at - began).total_seconds()),
            committed=self._committed,
        )

    def _trainer(self) -> str:
        if self._formed > self._step:
            return f"training step {self._formed}"
        if self._step == self._total:
            return f"done with step {self._step}"
        return f"waiting for the batch of step {self._step + 1}"

    def _in_flight(self) -> int:
        open_groups = (g for g in self._groups.values() if g.trainable < self._group_size)
        return sum(max(0, group.launched - group.ended) for group in open_groups)

    def _per_s(self, what: str, at: datetime) -> float:
        """Rate over the window, or since its first attempt ended if that is shorter."""
        if not self._recent:
            return 0.0
        spanned = max(1.0, (at - self._recent[0].at).total_seconds())
        return float(sum(getattr(ended, what) for ended in self._recent) / spanned)


def _evaluated(row: Mapping[str, Any]) -> Iterator[Progress]:
    yield Progress.evaluation([row])


def _by_version(messages: list[Progress], total_steps: int) -> list[Progress]:
    """Join the messages of single rows of evaluations into one for each version."""
    joined: dict[object, Progress] = {}
    for number, message in enumerate(messages):
        of_version = message.rows and ("version", message.rows[0]["policy_version"])
        before = joined.get(of_version)
        rows = message.rows if before is None else (*before.rows, *message.rows)
        if of_version:
            joined[of_version] = Progress.evaluation(rows, total_steps=total_steps)
        else:
            joined[number] = message
    return list(joined.values())
