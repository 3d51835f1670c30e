"""Watches a simulated run and stops it at the first promise that is broken.

The invariant: the monitor only looks. It keeps its own books from what it is shown (events,
commits, drawn tokens, acknowledgements) and believes no class that it watches.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NoReturn

from rollart_flow.errors import InvariantError
from rollart_flow.types import Batch, Chunk, Event, EventKind, GenerationRequest, Sample, Trajectory
from tests.dst.groups import GroupBook
from tests.dst.invariants import Token, batch_faults, infidelity, overtime
from tests.dst.log import Log
from tests.dst.plans import Plan
from tests.dst.serving import Serving, Worker
from tests.dst.tables import Commit, Tables

_LOGPROB = 2.0**-20
_PATIENCE_S = 1.5
_LATE_PATIENCE_S = 10.0
"""Time until a cancellation has reached what it is for, where messages are on time and late."""


class Draws:
    """What engines draw for one request."""

    __slots__ = ("broken", "group_id", "tokens", "trajectory_id")

    def __init__(self, trajectory_id: str, tokens: list[Token]) -> None:
        self.trajectory_id = trajectory_id
        self.group_id = trajectory_id.rsplit("-", 1)[0]
        self.tokens = tokens
        """Of all requests of one run of the attempt."""
        self.broken = False
        """A chunk was lost, so that nothing after it may be taken."""


class Monitor:
    """The invariants of a run, over all its lives."""

    def __init__(self, plan: Plan, tables: Tables, log: Log) -> None:
        self._plan = plan
        self._tables = tables
        self._log = log
        self._sessions: defaultdict[str, dict[str, list[Token]]] = defaultdict(dict)
        self._logprobs = 0
        self._acknowledged: dict[str, None] = {}
        self._serving = Serving(self.violated)
        self._groups = GroupBook(plan, log, self.violated)
        self._patience_s = _LATE_PATIENCE_S if plan.faults.message_late else _PATIENCE_S
        self._down = 0
        self._down_since_s = 0.0
        self._outage_s = 0.0
        self.checks = 0
        """Times that it looked."""
        self.error: InvariantError | None = None
        """The first violation, whoever has caught what was raised."""
        self._failed: asyncio.Future[None] | None = None

    def begin_life(self) -> asyncio.Future[None]:
        """The run starts, or goes on from its tables; what is done once a promise is broken."""
        self._failed = asyncio.get_running_loop().create_future()
        self._down, self._outage_s = 0, 0.0
        self._groups.restore(self._tables)
        return self._failed

    def violated(self, invariant: str, what: str) -> NoReturn:
        """End the run.

        Raises:
            InvariantError: names the invariant, what broke it, and when.
        """
        error = InvariantError(f"{invariant}: {what} (at {self._log.now_s:.3f} s)")
        if self.error is None:
            self.error = error
            self._log.write("violation", invariant, detail=what)
            if self._failed is not None:
                self._failed.set_result(None)
        raise error

    # Outages.

    def went_down(self) -> None:
        """A process died whose messages others wait for."""
        self._down_since_s = self._log.now_s if not self._down else self._down_since_s
        self._down += 1

    def came_back(self) -> None:
        """It was restarted and knows what the others know."""
        self._down -= 1
        if not self._down:
            self._outage_s += self._log.now_s - self._down_since_s
            self._groups.disturbed_s = self._log.now_s

    # Tokens and weights.

    def fresh_logprob(self) -> float:
        """A logprob that no other token has."""
        self._logprobs += 1
        return -self._logprobs * _LOGPROB

    def draws(self, request: GenerationRequest) -> Draws:
        """Where what is drawn for a request is noted."""
        session = request.request_id.rpartition("/")[0]
        tokens = self._sessions[request.trajectory_id].setdefault(session, [])
        return Draws(request.trajectory_id, tokens)

    def drew(self, worker: Worker, draws: Draws, chunk: Chunk) -> None:
        """An engine has drawn a chunk."""
        self.checks += 1
        self._serving.drew(worker, chunk)
        if not self._down:
            self._groups.generates(draws.group_id, draws.trajectory_id, self._patience_s)
        if not draws.broken:
            draws.tokens += zip(chunk.token_ids, chunk.logprobs, chunk.versions, strict=True)

    def loading(self, worker: Worker, version: int) -> None:
        """An engine is about to swap its weights."""
        self.checks += 1
        self._serving.loading(worker, version, self._tables.published)

    def served(self, version: int, workers: Sequence[Worker]) -> None:
        """All engines were told to hold this version."""
        self.checks += 1
        self._serving.serves(version, workers)
        self._groups.served(version)

    # Events and rows.

    def event(self, event: Event) -> None:
        """An event was emitted."""
        self.checks += 1
        if event.kind is EventKind.RESUME:
            self._serving.resumed(event)
        self._groups.event(event)

    def written(self, commit: Commit) -> None:
        """A commit took effect."""
        self.checks += 1
        for row in commit.rows:
            self._check_row(row)
        if commit.batch is not None:
            self._check_batch(commit.batch)
        if commit.step is not None and self._tables.trained.count(commit.step) > 1:
            self.violated("one batch per step", f"step {commit.step} has two rows")

    def _check_row(self, row: Trajectory) -> None:
        name = row.trajectory_id
        if self._tables.rows[name] is not row:
            self.violated("durability", f"{name} was written twice")
        if wrong := infidelity(row, self._sessions[name].values()):
            self.violated("token fidelity", f"{name}: {wrong}")
        if wrong := overtime(row, self._plan.limits, self._outage_s):
            self.violated("isolation", f"{name}: {wrong}")

    def _check_batch(self, batch: Batch) -> None:
        manifests = self._tables.manifests
        if [each.step for each in manifests] != list(range(1, len(manifests) + 1)):
            self.violated("one batch per step", f"steps {[each.step for each in manifests]}")
        for wrong in batch_faults(self._plan, batch, self._tables.rows):
            self.violated("whole fresh batches", f"step {batch.step}: {wrong}")
        for wrong in self._plan.schedule.violations(manifests):
            self.violated(f"the promise of {self._plan.schedule.name}", wrong)
        self._groups.taken(batch)

    def acknowledged(self, trajectory_id: str) -> None:
        """The buffer has said that a trajectory is durable."""
        self.checks += 1
        self._acknowledged[trajectory_id] = None
        if trajectory_id not in self._tables.rows:
            self.violated("durability", f"{trajectory_id} was acknowledged and is not in the table")

    def indexed(self, sample: Sample, pending: int) -> None:
        """The buffer has taken a committed trajectory into account."""
        self.checks += 1
        self._groups.indexed(sample, pending)

    def formed(self, batch: Batch, pending: Iterable[str]) -> None:
        """A batch was handed out; what the buffer still holds."""
        self.checks += 1
        if self._tables.batches.get(batch.step) != batch:
            self.violated("one batch per step", f"step {batch.step} was given another batch")
        self._groups.outlived(batch.policy_version, pending)

    # The end.

    def killed(self) -> None:
        """Everything has died; what must be left all the same."""
        self.checks += 1
        for trajectory_id in self._acknowledged:
            if trajectory_id not in self._tables.rows:
                self.violated("durability", f"{trajectory_id} was acknowledged and is lost")

    def finished(self, admitted: Iterable[str], pending: frozenset[str]) -> None:
        """The run has ended: every step once, every attempt a row, every departure an event."""
        self.killed()
        steps = list(range(1, self._plan.steps + 1))
        if self._tables.trained != steps or sorted(self._tables.batches) != steps:
            self.violated("one batch per step", f"trained on {self._tables.trained}")
        for trajectory_id in admitted:
            if trajectory_id not in self._tables.rows:
                self.violated("one row per attempt", f"{trajectory_id} has none")
        self._groups.finished(self._tables, pending)
