"""Watches a simulated run and stops it at the first broken promise.

The invariant: the monitor changes nothing. It derives its own state from events, commits, sampled
tokens and acknowledgements, and trusts no class that it watches.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NoReturn

import pyarrow as pa

from rollart_flow.errors import RollartError
from rollart_flow.types import Batch, Chunk, Event, EventKind, GenerationRequest, Sample, Trajectory
from tests.dst.agent_checks import captured_fault, captured_incomplete
from tests.dst.dialogue_checks import misspoken
from tests.dst.dialogue_codec import DialogueCodec
from tests.dst.groups import GroupMonitor
from tests.dst.invariants import batch_faults, incomplete, overstay, overtime
from tests.dst.log import Log
from tests.dst.plans import Plan
from tests.dst.serving import Serving, Worker
from tests.dst.stored import OtherRun, drawn
from tests.dst.tables import Commit, Tables, by_episode
from tests.dst.turn_checks import Token, infidelity

_LOGPROB = 2.0**-20
_PATIENCE_S = 1.5
_LATE_PATIENCE_S = 10.0
"""Time until a cancellation has arrived, if messages are on time, and if some are late."""


class InvariantError(RollartError, AssertionError):
    """A simulated run violated an invariant. The message names it, its violation and the time."""


class SampledTokens:
    """The tokens that engines sample for one request."""

    __slots__ = ("broken", "group_id", "tokens", "trajectory_id")

    def __init__(self, trajectory_id: str, tokens: list[Token]) -> None:
        self.trajectory_id = trajectory_id
        self.group_id = trajectory_id.rsplit("-", 1)[0]
        self.tokens = tokens
        """Tokens of all requests of one run of the attempt."""
        self.broken = False
        """Whether a chunk was lost, so that nothing after it may be used."""


class Monitor:
    """The invariants of a run, over all its lives."""

    def __init__(self, plan: Plan, tables: Tables, log: Log) -> None:
        self._plan = plan
        self._tables = tables
        self._log = log
        self._sessions: defaultdict[str, dict[str, list[Token]]] = defaultdict(dict)
        self._logprobs = 0
        self._acknowledged: dict[str, None] = {}
        self._codec = None if plan.dialogues is None else DialogueCodec(plan.dialogues)
        self._serving = Serving(self.violated)
        self._groups = GroupMonitor(plan, log, self.violated)
        self._patience_s = _LATE_PATIENCE_S if plan.faults.message_late else _PATIENCE_S
        self._drawn: dict[int, pa.Table] = {}
        """Stored rows that each step drew first."""
        self._down = 0
        self._down_since_s = 0.0
        self._outage_s = 0.0
        self.checks = 0
        """Number of checks."""
        self.error: InvariantError | None = None
        """The first violation, even if other code has caught the exception."""
        self._failed: asyncio.Future[None] | None = None

    def begin_life(self) -> asyncio.Future[None]:
        """Start or resume from the tables; a future that is done when a promise is broken."""
        self._failed = asyncio.get_running_loop().create_future()
        self._down, self._outage_s = 0, 0.0
        self._groups.restore(self._tables)
        return self._failed

    def violated(self, invariant: str, what: str) -> NoReturn:
        """End the run.

        Raises:
            InvariantError: always; it names the invariant, the fault and the time.
        """
        error = InvariantError(f"{invariant}: {what} (at {self._log.now_s:.3f} s)")
        if self.error is None:
            self.error = error
            self._log.write("violation", invariant, detail=what)
            if self._failed is not None:
                self._failed.set_result(None)
        raise error

    # Rows of another run.

    def drew(self, step: int, other: OtherRun, rows: pa.Table) -> None:
        """Check the rows that a step drew: pinned ones, and the same whenever it draws."""
        self.checks += 1
        first = self._drawn.setdefault(step, rows)
        if fault := other.fault_of(rows):
            self.violated("drawn rows", f"step {step}: {fault}")
        if not rows.equals(first):
            self.violated("drawn rows", f"step {step} drew {drawn(first)}, then {drawn(rows)}")

    # Outages.

    def went_down(self) -> None:
        """Count a process that died while others wait for its messages."""
        self._down_since_s = self._log.now_s if not self._down else self._down_since_s
        self._down += 1

    def came_back(self) -> None:
        """Count a process that was restarted and has caught up."""
        self._down -= 1
        if not self._down:
            self._outage_s += self._log.now_s - self._down_since_s
            self._groups.disturbed_s = self._log.now_s

    # Tokens and weights.

    def fresh_logprob(self) -> float:
        """A logprob that no other token has."""
        self._logprobs += 1
        return -self._logprobs * _LOGPROB

    def tokens_of(self, request: GenerationRequest) -> SampledTokens:
        """The list to which the tokens of a request are added."""
        session = request.request_id.rpartition("/")[0]
        tokens = self._sessions[request.trajectory_id].setdefault(session, [])
        return SampledTokens(request.trajectory_id, tokens)

    def sampled(self, worker: Worker, sampled: SampledTokens, chunk: Chunk) -> None:
        """Check a chunk that an engine has sampled."""
        self.checks += 1
        self._serving.sampled(worker, chunk)
        if not sampled.broken:
            sampled.tokens += zip(chunk.token_ids, chunk.logprobs, chunk.versions, strict=True)
        if not self._down and sampled.tokens:
            start = sampled.tokens[0][2]
            self._groups.generates(sampled.group_id, sampled.trajectory_id, start, self._patience_s)

    def loading(self, worker: Worker, version: int) -> None:
        """Check an engine that is about to swap its weights."""
        self.checks += 1
        self._serving.loading(worker, version, self._tables.published)

    def served(self, version: int, workers: Sequence[Worker]) -> None:
        """Apply a version that all engines were told to hold."""
        self.checks += 1
        self._serving.serves(version, workers)
        self._groups.served(version)

    # Events and rows.

    def lost(self, events: Iterable[Event]) -> None:
        """Forget events that died with the buffer, which reports them again."""
        self._groups.lost(events)

    def event(self, event: Event) -> None:
        """Check an event."""
        self.checks += 1
        if event.kind is EventKind.RESUME:
            self._serving.resumed(event)
        self._groups.event(event)

    def written(self, commit: Commit) -> None:
        """Check a commit that took effect."""
        self.checks += 1
        for branches in by_episode(commit.rows):
            self._check_episode(branches)
        if commit.batch is not None:
            self._check_batch(commit.batch)
        if commit.step is not None and self._tables.trained.count(commit.step) > 1:
            self.violated("one batch per step", f"step {commit.step} has two rows")

    def _check_episode(self, branches: Sequence[Trajectory]) -> None:
        name = branches[0].episode_id
        for row in branches:
            if self._tables.rows[row.trajectory_id] is not row:
                self.violated("durability", f"{row.trajectory_id} was written twice")
        agents, sessions = self._plan.agents, self._sessions[name].values()
        admitted_s = self._groups.admitted_s(branches[0].group_id)
        if agents is not None and branches[0].domain in agents.domains:
            longest_s = agents.longest_s * self._plan.slots + self._outage_s
            late, wrong = (
                overstay(branches[0], longest_s, admitted_s),
                captured_incomplete(branches),
            )
            unfaithful = captured_fault(branches, sessions, agents)
        else:
            every = (
                overtime(row, self._plan.limits, self._outage_s, admitted_s) for row in branches
            )
            late, wrong = next(filter(None, every), None), incomplete(branches)
            unfaithful = infidelity(branches, sessions) or self._misspoken(branches)
        if late:
            self.violated("isolation", f"{name}: {late}")
        if wrong:
            self.violated("whole episodes", f"{name}: {wrong}")
        if unfaithful:
            self.violated("token fidelity", f"{name}: {unfaithful}")

    def _misspoken(self, branches: Sequence[Trajectory]) -> str | None:
        if self._codec is None:
            return None
        wrong = (misspoken(row, self._codec) for row in branches)
        return next(filter(None, wrong), None)

    def _check_batch(self, batch: Batch) -> None:
        manifests = self._tables.manifests
        if [each.step for each in manifests] != list(range(1, len(manifests) + 1)):
            self.violated("one batch per step", f"steps {[each.step for each in manifests]}")
        for wrong in batch_faults(self._plan, batch, self._tables.branches):
            self.violated("whole fresh batches", f"step {batch.step}: {wrong}")
        for wrong in self._plan.schedule.violations(manifests):
            self.violated(f"the promise of {self._plan.schedule.name}", wrong)
        self._groups.taken(batch)

    def acknowledged(self, branches: Sequence[Trajectory]) -> None:
        """Check that an acknowledged episode is durable."""
        self.checks += 1
        trajectory_id = branches[0].trajectory_id
        self._acknowledged[trajectory_id] = None
        if trajectory_id not in self._tables.rows:
            self.violated("durability", f"{trajectory_id} was acknowledged and is not in the table")

    def indexed(self, sample: Sample, pending: int) -> None:
        """Check the buffer after it added a committed trajectory to its index."""
        self.checks += 1
        self._groups.indexed(sample, pending)

    def handed_out(self, batch: Batch) -> None:
        """Apply a batch that was formed: its groups return their credits."""
        self._groups.returned(batch.group_ids)

    def formed(self, batch: Batch, pending: Iterable[str]) -> None:
        """Check a batch whose manifest is written, and what the buffer still holds."""
        self.checks += 1
        if self._tables.batches.get(batch.step) != batch:
            self.violated("one batch per step", f"step {batch.step} was given another batch")
        self._groups.outlived(batch.policy_version, pending)

    # The end.

    def killed(self) -> None:
        """Check after everything has died that no acknowledged trajectory is lost."""
        self.checks += 1
        for trajectory_id in self._acknowledged:
            if trajectory_id not in self._tables.rows:
                self.violated("durability", f"{trajectory_id} was acknowledged and is lost")

    def finished(self, admitted: Iterable[str], pending: frozenset[str]) -> None:
        """Check a finished run: every step once, every attempt a row, every departure an event."""
        self.killed()
        steps = list(range(1, self._plan.steps + 1))
        if self._tables.trained != steps or sorted(self._tables.batches) != steps:
            self.violated("one batch per step", f"trained on {self._tables.trained}")
        for trajectory_id in admitted:
            if trajectory_id not in self._tables.rows:
                self.violated("one row per attempt", f"{trajectory_id} has none")
        once = sum(map(len, self._tables.branches.values()))
        if len(self._tables.trajectories) != once:
            said = f"{len(self._tables.trajectories)} rows, {once} in the first commits of episodes"
            self.violated("one row per branch", said)
        self._groups.finished(self._tables, pending)
