"""The real control plane with models of the hardware, under virtual time.

The planes of `control.plane` and the buffer service are the classes that run in production;
engines, environments, rewards, training, transfers and commits are models. The invariant: a run is
a function of scenario, schedule and seed.
"""

import asyncio
import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import compress, islice

from rollart_flow.control.buffer.buffer_service import BufferService
from rollart_flow.control.inference.profiler import AUTO
from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.plane import InferenceClients, PlaneSettings, RolloutPlane
from rollart_flow.control.schedule.declarations import Swap
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.simulation.cluster.branching import row_lengths
from rollart_flow.simulation.cluster.buffer import SimulatedCommitter, SimulatedRow, SimulatedRows
from rollart_flow.simulation.cluster.workers import SharedMachine, SimulatedPlane, make_workers
from rollart_flow.simulation.hardware import EngineModel
from rollart_flow.simulation.models.batching import ContinuousBatch
from rollart_flow.simulation.models.engine import SimulatedEngine
from rollart_flow.simulation.models.environments import RunLengthCodec, ScriptedEnvironment
from rollart_flow.simulation.models.scoring import make_scoring
from rollart_flow.simulation.record import AttemptRecord, Record, StepTimes
from rollart_flow.simulation.scenario import Scenario
from rollart_flow.simulation.virtual_time import run
from rollart_flow.simulation.workloads import Script
from rollart_flow.types import TRAINABLE, AttemptLimits, Sample, Trajectory

DAWN = datetime(2026, 1, 1, tzinfo=UTC)
HOST_SLOTS = 128
"""Environments of one rollout worker, which has its own proxy."""
UNLIMITED = 1 << 40


def wall(seconds: float) -> datetime:
    return DAWN + timedelta(seconds=seconds)


class SimulatedCluster:
    """One run of a scenario under a schedule."""

    def __init__(self, scenario: Scenario, schedule: Schedule, *, seed: int, steps: int) -> None:
        self.scenario = scenario
        self.schedule = schedule
        self.steps = steps
        self._seed = seed
        self.record = Record()
        self._workload = scenario.workload(seed)
        self._scripts: dict[str, Script] = {}
        self._lost: Counter[str] = Counter()
        self._running = 0
        self._scoring = make_scoring(scenario, seed, self._make_engine)
        stages = schedule.stages
        at_once = UNLIMITED if stages is None else stages.reward * len(self._host_slots())
        self._scored_at_once = asyncio.Semaphore(at_once)
        self._workers, self._serving = make_workers(scenario, self._make_engine)
        self._machine = SharedMachine(scenario.measured, self._workers.engines, seed)
        rows = SimulatedRows(zero_variance_filter=scenario.zero_variance_filter)
        committer = SimulatedCommitter(scenario.commit_s, self.record)
        self._buffer = BufferService(schedule, scenario.group_size, rows, committer)
        self.plane = SimulatedPlane(
            PlaneSettings(schedule, scenario.settings(seed), steps),
            self._workers.commanded,
            lambda cursor: islice(self._workload.tasks(), cursor, None),
            self._buffer,
            self.record,
        )
        self._limits = AttemptLimits(
            context_tokens=UNLIMITED,
            step_timeout_s=scenario.step_timeout_s,
            trajectory_timeout_s=float("inf"),
        )
        self._pushes: set[asyncio.Task[None]] = set()
        self._scored: set[asyncio.Task[None]] = set()
        self._none_left = Signal()

    def _make_engine(self, name: str, model: EngineModel, *, stored: bool) -> SimulatedEngine:
        batch = ContinuousBatch(model, stored=stored)
        metered = self.scenario.hw_affinity == AUTO
        left = lambda name, position: self._scripts[name].left(position)  # noqa: E731
        shares = {domain.name: domain.cached_share for domain in self.scenario.domains}
        return SimulatedEngine(
            name, batch, left, self._lost, cached_shares=shares, first_chunks=metered
        )

    async def run(self) -> Record:
        feed = asyncio.create_task(self.plane.follow(), name="feed")
        hosts = [asyncio.create_task(self._host(i, n)) for i, n in enumerate(self._host_slots())]
        try:
            await self._train()
            await asyncio.gather(*hosts)
            while self._scored:
                await self._none_left.wait()
        finally:
            tasks = (feed, *hosts, *self._scored, *self._pushes)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.plane.controller.close()
        record = self.record
        record.seconds = asyncio.get_running_loop().time()
        record.reward_busy_s, record.reward_paid_s = self._scoring.busy_s, self._scoring.paid_s
        record.exposed_pull_s = self._workers.transfers.exposed_s
        record.weights = self._workers.transfers.spans
        return record

    def _host_slots(self) -> list[int]:
        """Environments by rollout worker; all share one if they wait for each other."""
        slots = self.scenario.slots(self.schedule)
        if self.schedule.barriers:
            return [slots]
        full, rest = divmod(slots, HOST_SLOTS)
        return [HOST_SLOTS] * full + [rest] * (rest > 0)

    async def _host(self, index: int, slots: int) -> None:
        plane = RolloutPlane(
            f"host-{index}",
            # Profilers count tokens, not ids.
            InferenceClients(
                self._serving, hw_affinity=self.scenario.hw_affinity, count_tokens=sum
            ),
            RunLengthCodec(),
            wall,
            self.record,
            admission=self.plane.scheduler,
            schedule=self.schedule,
        )
        self._workers.tell(plane.proxy)
        try:
            await asyncio.gather(*(self._slot(plane, slot) for slot in range(slots)))
        finally:
            await plane.close()

    async def _slot(self, host: RolloutPlane, slot: int) -> None:
        index = 0
        loop = asyncio.get_running_loop()
        admit = self.plane.scheduler.admit
        while assignments := await admit(f"{host.name}/{slot}", index):
            (assignment,) = assignments
            index += 1
            domain, attempt = assignment.task.domain, assignment.attempt
            script = self._workload.script(assignment.group_id, domain, attempt)
            self._scripts[assignment.trajectory_id] = script
            await self._machine.start_attempt()
            started = loop.time()
            self._running += 1
            self.record.most_running = max(self.record.most_running, self._running)
            make = partial(ScriptedEnvironment, script, self.scenario.outage_s)
            (trajectory,) = await host.run(host.manager(assignment, make, self._limits))
            self._running -= 1
            self._machine.end_attempt()
            task = asyncio.create_task(self._commit(trajectory, script, host.name, started))
            self._scored.add(task)
            task.add_done_callback(self._committed)

    def _committed(self, task: "asyncio.Task[None]") -> None:
        self._scored.discard(task)
        if not self._scored:
            self._none_left.notify()

    async def _commit(
        self, trajectory: Trajectory, script: Script, host: str, started: float
    ) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.time()
        trainable = trajectory.outcome in TRAINABLE and trajectory.policy_version_start is not None
        if trainable:
            async with self._scored_at_once:
                await self._scoring.score(trajectory.trajectory_id, script)
        tokens = sum(trajectory.token_ids)
        lengths = row_lengths(trajectory, self.scenario.branches, self._seed)
        sample = Sample.of(trajectory, scored=True, tokens=sum(lengths))
        row = SimulatedRow(sample=sample, reward=script.reward)
        attempt = AttemptRecord(
            trajectory_id=trajectory.trajectory_id,
            group_id=trajectory.group_id,
            domain=trajectory.domain,
            host=host,
            started=started,
            observed=self._observed(trajectory, script, started, ended),
            ended=ended,
            committed=loop.time(),
            outcome=trajectory.outcome,
            reason=trajectory.reason,
            version=trajectory.policy_version_start,
            tokens=tokens,
            lengths=lengths,
            sampled_tokens=sum(compress(trajectory.token_ids, trajectory.action_mask))
            + self._lost.pop(trajectory.trajectory_id, 0),
            script=script,
        )
        self.record.attempts[trajectory.trajectory_id] = attempt  # a batch may hold it at once
        await self._buffer.put(tuple(replace(row, branch=n) for n in range(len(lengths))))
        del self._scripts[trajectory.trajectory_id]
        self.record.turns += len(trajectory.turns)
        self.record.attempts[trajectory.trajectory_id] = replace(attempt, committed=loop.time())

    def _observed(
        self, trajectory: Trajectory, script: Script, started: float, ended: float
    ) -> float:
        """Return `AttemptRecord.observed`: what was reset ahead has waited before its turns."""
        if not self.schedule.resets_ahead:
            return started + self.scenario.outage_s(started) + script.reset_s
        return ended - math.fsum(turn.generate_s + turn.step_s for turn in trajectory.turns)

    async def _train(self) -> None:
        loop = asyncio.get_running_loop()
        for step in range(1, self.steps + 1):
            asked = loop.time()
            batch = await self.plane.controller.next_batch(step)
            assert batch is not None, "a batch for every step up to the last"
            self.record.batches[step] = batch
            formed = loop.time()
            attempts = self.record.attempts
            lengths = [n for t in batch.trajectory_ids for n in attempts[t].lengths]
            await self._machine.train(self.scenario.training_s(lengths))
            trained = loop.time()
            push = asyncio.create_task(self._push(step), name=f"push({step})")
            self._pushes.add(push)
            push.add_done_callback(self._pushes.discard)
            if self.schedule.swap is not Swap.BESIDE:
                await push
            pushed = loop.time()
            await self._buffer.commit({"steps": (SimulatedRow(step=step),)})
            await self.plane.controller.trained(step, None)
            self.record.steps.append(StepTimes(step, asked, formed, trained, pushed, loop.time()))
            self.record.pools.append(self._workers.times())
        with waiting("the end of the run"):
            await self.plane.controller.next_batch(self.steps + 1)

    async def _push(self, version: int) -> None:
        """Push a version: beside the next step if the schedule exchanges weights beside training,
        in the step itself if not, as in the baselines of the papers."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._workers.transfers.push()
        self.plane.controller.published(version, loop.time() - began)


def simulate(scenario: Scenario, schedule: Schedule, *, seed: int = 0, steps: int = 5) -> Record:
    """Run a scenario under a schedule; a function of the arguments.

    Raises DeadlockError if everything waits, and RunFailedError if e.g. a domain only fails.
    """

    async def main() -> Record:
        return await SimulatedCluster(scenario, schedule, seed=seed, steps=steps).run()

    return run(main(), seed=seed)
