"""The real control plane with models of the hardware, under virtual time.

Scheduler, buffer, controller, environment managers and proxies are the classes that run in
production; engines, environments, rewards, training and transfers are models. The invariant: a run
is a function of scenario, schedule and seed.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.inference.generation_timer import GenerationTimer
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.inference.profiler import AUTO, Profiler
from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.rollout.dispatch import Dispatch
from rollart_flow.control.rollout.env_manager import EnvManager, Limits
from rollart_flow.control.rollout.rollout_worker import RolloutWorker
from rollart_flow.control.schedule.controller import AsyncController
from rollart_flow.control.schedule.schedules import Schedule
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.simulation.cluster.equipment import make_engine_group, make_scoring
from rollart_flow.simulation.cluster.shared_machine import SharedMachine
from rollart_flow.simulation.hardware import EngineModel
from rollart_flow.simulation.loop.virtual_time import run
from rollart_flow.simulation.models.batching import ContinuousBatch
from rollart_flow.simulation.models.engine import SimulatedEngine
from rollart_flow.simulation.models.environments import RunLengthCodec, ScriptedEnvironment
from rollart_flow.simulation.record import AttemptRecord, Record, StepTimes
from rollart_flow.simulation.scenario import Scenario
from rollart_flow.simulation.workloads import Script
from rollart_flow.types import TRAINABLE, Assignment, Reason, Sample, Trajectory

DAWN = datetime(2026, 1, 1, tzinfo=UTC)
HOST_SLOTS = 128
"""Environments of one rollout worker, which has its own proxy."""
UNLIMITED = 1 << 40


def wall(seconds: float) -> datetime:
    """Convert loop time to UTC."""
    return DAWN + timedelta(seconds=seconds)


class SimulatedCluster:
    """One run of a scenario under a schedule."""

    def __init__(self, scenario: Scenario, schedule: Schedule, *, seed: int, steps: int) -> None:
        self.scenario = scenario
        self.schedule = schedule
        self.steps = steps
        self.record = Record()
        self._workload = scenario.workload(seed)
        self._scripts: dict[str, Script] = {}
        self._lost: Counter[str] = Counter()
        self._rewards: defaultdict[str, list[float]] = defaultdict(list)
        self._running = 0
        self._scoring = make_scoring(scenario, seed, self._make_engine)
        stages = schedule.stages
        at_once = UNLIMITED if stages is None else stages.reward * len(self._host_slots())
        self._scored_at_once = asyncio.Semaphore(at_once)
        self._engine_group, self._serving = make_engine_group(scenario, self._make_engine)
        self._machine = SharedMachine(scenario.measured, self._engine_group.engines, seed)
        settings = scenario.settings(seed)
        self.buffer = SampleBuffer(
            schedule.bound, scenario.group_size, self.record, selection=schedule.selection
        )
        self.scheduler = RolloutScheduler(
            self._workload.tasks(),
            settings,
            schedule.bound,
            self.record,
            admission=schedule.admission,
        )
        self.controller = AsyncController(
            self.buffer,
            self._engine_group,
            self.scheduler,
            schedule,
            self.record,
            batch_size=scenario.batch_size,
            steps=steps,
        )
        self._limits = Limits(
            max_turns=UNLIMITED,
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
        return SimulatedEngine(name, batch, self._left, self._lost, first_chunks=metered)

    def _left(self, trajectory_id: str, position: int) -> int:
        return self._scripts[trajectory_id].left(position)

    async def run(self) -> Record:
        """Train all steps, and return the record."""
        feed = asyncio.create_task(self._feed_scheduler(), name="feed")
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
            await self.controller.close()
        self._finish()
        return self.record

    def _host_slots(self) -> list[int]:
        """Environments by rollout worker; all share one if they wait for each other."""
        slots = self.scenario.slots(self.schedule)
        if self.schedule.lockstep or not self.schedule.queue_scheduling:
            return [slots]
        full, rest = divmod(slots, HOST_SLOTS)
        return [HOST_SLOTS] * full + [rest] * (rest > 0)

    async def _feed_scheduler(self) -> None:
        cursor = 0
        while True:
            cursor, changes = await self.buffer.changes(cursor)
            for change in changes:
                self.scheduler.apply(change)

    async def _host(self, index: int, slots: int) -> None:
        dispatch = Dispatch.of(self.schedule)
        host = RolloutWorker(f"host-{index}", self.scheduler, dispatch=dispatch)
        proxy = LLMProxy(self._serving, self.record, hw_affinity=self._affinity())
        self._engine_group.tell(proxy)
        try:
            await asyncio.gather(*(self._slot(host, proxy, slot) for slot in range(slots)))
        finally:
            await proxy.close()
            await host.close()

    def _affinity(self) -> Mapping[str, str] | GenerationTimer:
        """Hardware affinity of one rollout worker; profilers count tokens, not ids."""
        given = self.scenario.hw_affinity
        return GenerationTimer(Profiler(self.record), sum) if isinstance(given, str) else given

    async def _slot(self, host: RolloutWorker, proxy: LLMProxy, slot: int) -> None:
        index = 0
        loop = asyncio.get_running_loop()
        while (assignment := await self.scheduler.admit(f"{host.name}/{slot}", index)) is not None:
            index += 1
            script = self._script(assignment)
            await self._machine.start_attempt()
            started = loop.time()
            self._running += 1
            self.record.most_running = max(self.record.most_running, self._running)
            trajectory = await host.run(self._manager(assignment, script, host, proxy))
            self._running -= 1
            self._machine.end_attempt()
            task = asyncio.create_task(self._commit(trajectory, script, host.name, started))
            self._scored.add(task)
            task.add_done_callback(self._committed)

    def _script(self, assignment: Assignment) -> Script:
        script = self._workload.script(
            assignment.group_id, assignment.task.domain, assignment.attempt
        )
        self._scripts[assignment.trajectory_id] = script
        return script

    def _manager(
        self, assignment: Assignment, script: Script, host: RolloutWorker, proxy: LLMProxy
    ) -> EnvManager:
        return EnvManager(
            assignment,
            lambda: ScriptedEnvironment(script),
            RunLengthCodec(),
            proxy,
            self._limits,
            wall,
            admission=self.scheduler,
            host=host.name,
            dispatch=host.dispatch,
        )

    def _committed(self, task: "asyncio.Task[None]") -> None:
        self._scored.discard(task)
        if not self._scored:
            self._none_left.notify()

    async def _commit(
        self, trajectory: Trajectory, script: Script, host: str, started: float
    ) -> None:
        """Score a trajectory, report it to the buffer, and record it."""
        loop = asyncio.get_running_loop()
        ended = loop.time()
        trainable = trajectory.outcome in TRAINABLE and trajectory.policy_version_start is not None
        if trainable:
            async with self._scored_at_once:
                await self._scoring.score(trajectory.trajectory_id, script)
        await asyncio.sleep(self.scenario.commit_s)
        del self._scripts[trajectory.trajectory_id]
        self.record.turns += len(trajectory.turns)
        self.record.attempts[trajectory.trajectory_id] = AttemptRecord(
            trajectory_id=trajectory.trajectory_id,
            group_id=trajectory.group_id,
            domain=trajectory.domain,
            host=host,
            started=started,
            ended=ended,
            committed=loop.time(),
            outcome=trajectory.outcome,
            reason=trajectory.reason,
            version=trajectory.policy_version_start,
            tokens=sum(trajectory.token_ids),
            sampled_tokens=self._sampled_tokens(trajectory),
            script=script,
        )
        tokens = sum(trajectory.token_ids)
        self.buffer.put(Sample.of(trajectory, scored=True, tokens=tokens))
        if trainable and self.scenario.zero_variance_filter:
            self._filter(trajectory, script)

    def _sampled_tokens(self, trajectory: Trajectory) -> int:
        finished = sum(
            count
            for count, action in zip(trajectory.token_ids, trajectory.action_mask, strict=True)
            if action
        )
        return finished + self._lost.pop(trajectory.trajectory_id, 0)

    def _filter(self, trajectory: Trajectory, script: Script) -> None:
        """Refuse a complete group without variance: its advantages are all 0."""
        rewards = self._rewards[trajectory.group_id]
        rewards.append(script.reward)
        if len(rewards) == self.scenario.group_size and len(set(rewards)) == 1:
            self.buffer.evict(trajectory.group_id, Reason.GROUP_FILTERED)

    async def _train(self) -> None:
        loop = asyncio.get_running_loop()
        for step in range(1, self.steps + 1):
            asked = loop.time()
            batch = await self.controller.next_batch(step)
            assert batch is not None, "a batch for every step up to the last"
            self.record.batches[step] = batch
            formed = loop.time()
            lengths = [self.record.attempts[t].tokens for t in batch.trajectory_ids]
            await self._machine.train(self.scenario.training_s(lengths))
            trained = loop.time()
            push = asyncio.create_task(self._push(step), name=f"push({step})")
            self._pushes.add(push)
            push.add_done_callback(self._pushes.discard)
            if not self.schedule.overlapped:
                await push
            pushed = loop.time()
            await self.controller.trained(step, None)
            times = StepTimes(step, asked, formed, trained, pushed, loop.time())
            self.record.steps.append(times)
            self.record.pools.append(self._engine_group.times())
        with waiting("the end of the run"):
            await self.controller.next_batch(self.steps + 1)

    async def _push(self, version: int) -> None:
        """Push a version: beside the next step if the schedule exchanges weights beside training,
        in the step itself if not, as in the baselines of the papers."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._engine_group.push()
        self.controller.published(version, loop.time() - began)

    def _finish(self) -> None:
        record = self.record
        record.seconds = asyncio.get_running_loop().time()
        record.reward_busy_s, record.reward_paid_s = self._scoring.busy_s, self._scoring.paid_s
        record.exposed_pull_s = self._engine_group.exposed_s
        record.weights = self._engine_group.spans


def simulate(scenario: Scenario, schedule: Schedule, *, seed: int = 0, steps: int = 5) -> Record:
    """Run a scenario under a schedule; a function of the arguments.

    Raises:
        DeadlockError: everything waits; the message names the waits.
        RunFailedError: the run cannot continue, for instance because a domain only fails.
    """

    async def main() -> Record:
        return await SimulatedCluster(scenario, schedule, seed=seed, steps=steps).run()

    return run(main(), seed=seed)
