"""The control plane of a run, assembled in one place for real runs, simulations and the fuzzer.

    task source            ControlPlane                               BufferService
   ────────────    ┌───────────────────────────┐   changes     ┌─────────────────────┐
    tasks ───────► │ RolloutScheduler ◄────────┼───────────────┤ SampleBuffer        │
                   │  │ credits  ▲ versions    │   get_batch   │ rows, RowCommitter  │
                   │  │  AsyncController ──────┼─────────────► │                     │
                   │  │          │ phases      │               └────▲───────────┬────┘
                   │  │     EngineGroup        │                    │ put       │ batches
                   └──┼──────────┼─────────────┘               reward          ▼
             attempts │          │ suspend, update, resume          ▲       train
               orders ▼          ▼                                  │           │
      RolloutPlane ─► LLMProxy ─► inference workers ◄── weights ────┼───────────┘
        EnvManager ─► environment ──────────────────── trajectories ┘

The parts of a run usually live in several processes: a `ControlPlane` in its coordinator, a
`RolloutPlane` in each process of rollout workers, and a `BufferService` in the buffer. The ports of
`control.protocols` connect them: clients of actors in a run, the objects themselves in a
simulation, and a lossy network in the fuzzer.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from rollart_flow.control.environment import AsyncEnvironment, Codec
from rollart_flow.control.inference.engine_group import NO_WORKER, EngineGroup
from rollart_flow.control.inference.generation_timer import GenerationTimer
from rollart_flow.control.inference.health import HealthLimits, watch
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.inference.profiler import Profiler
from rollart_flow.control.inference.worker_pool import Recover
from rollart_flow.control.protocols import Admission, Buffered, Emit, EngineCommands, Inference
from rollart_flow.control.recovery import RecoveredControl, recover
from rollart_flow.control.rollout.attempt_manager import AttemptContext, AttemptManager
from rollart_flow.control.rollout.dispatch import FREE, Dispatch
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.control.rollout.rollout_worker import RolloutWorker
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.scheduler.curriculum import Curriculum, Successes, by_difficulty
from rollart_flow.control.scheduler.rollout_polls import RolloutPolls
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.control.training.controller import AsyncController
from rollart_flow.types import Assignment, AttemptLimits, Batch, Task, Trajectory

Tasks = Callable[[int], Iterator[tuple[Task, int] | None]]
"""Source of a run's tasks: for a cursor, the (task, cursor) pairs from there on; None: to come."""


@dataclass(frozen=True, slots=True)
class PlaneSettings:
    """Settings of a run for its control plane."""

    schedule: Schedule
    rollout: RolloutSettings
    steps: int
    curriculum: Curriculum | None = None
    """Curriculum that selects tasks, or None to admit every task."""
    task_seed: int = 0
    """Seed of the curriculum's choices."""


@dataclass(frozen=True, slots=True)
class EngineWorkers:
    """The inference workers that a control plane commands, all of which serve `version`."""

    commands: Sequence[EngineCommands]
    version: int = 0
    suspended: bool = False
    """Whether an earlier control plane left the workers suspended."""
    sliding: Collection[str] = ()
    """Names of workers that share their devices with training (train-rollout multiplexing)."""
    prefill: Collection[str] = ()
    """Names of workers that compute prompts for the others."""


def engine_group(
    engines: EngineWorkers,
    emit: Emit,
    kind: type[EngineGroup] = EngineGroup,
    *,
    shared: bool = False,
) -> EngineGroup:
    """Return the group, of a class `kind`, that commands inference workers."""
    return kind(
        engines.commands,
        engines.version,
        emit,
        shared=shared,
        suspended=engines.suspended,
        sliding=engines.sliding,
        prefill=engines.prefill,
    )


@dataclass(frozen=True, slots=True)
class PlaneState:
    """The state from which a control plane starts; by default that of a new run."""

    trained: int = 0
    """Last recorded step, which is the newest version."""
    control: RecoveredControl = field(default_factory=lambda: recover((), (), {}))
    """State of the scheduler, recovered from the tables."""
    untrained: Batch | None = None
    """Batch of the next step, if it was formed before."""
    incarnation: int = 0
    """Counts the control planes of a run, of which each successor has a higher number."""
    cursor: int = 0
    """Cursor from which the buffer's changes are read."""
    published: int | None = None
    """Newest version that is known to be readable; None if it is the last recorded step."""


class ControlPlane:
    """Scheduler, controller and engine group of a run, as its coordinator holds them.

    Args:
        settings: settings of the run.
        engines: inference workers.
        tasks: source of the tasks.
        buffered: the buffer.
        emit: receives the events of all parts.
        state: state from which the plane starts; None for a new run.
    """

    group_kind: ClassVar[type[EngineGroup]] = EngineGroup
    """Class of the engine group; a subclass may observe the commands."""

    def __init__(
        self,
        settings: PlaneSettings,
        engines: EngineWorkers,
        tasks: Tasks,
        buffered: Buffered,
        emit: Emit,
        state: PlaneState | None = None,
    ) -> None:
        self._settings, self._buffered, self._emit = settings, buffered, emit
        state = state or PlaneState()
        self._cursor = state.cursor
        shared = settings.schedule.shared
        self.engines = engine_group(engines, emit, self.group_kind, shared=shared)
        self._successes: Successes | None = None
        self.scheduler = self._scheduler(tasks, state)
        self.polls = RolloutPolls(self.scheduler)
        self.controller = AsyncController(
            buffered,
            self.engines,
            self.scheduler,
            settings.schedule,
            emit,
            batch_size=settings.rollout.batch_size,
            steps=settings.steps,
            first_step=state.trained + 1,
            served=engines.version,
            pending=state.untrained,
            published=state.published,
            suspended=engines.suspended,
        )
        if state.trained >= settings.steps:
            self.scheduler.stop()  # no further batch is requested, which would stop it

    def _scheduler(self, tasks: Tasks, state: PlaneState) -> RolloutScheduler:
        settings, recovered = self._settings, state.control
        chosen = tasks(recovered.next_cursor)
        if (curriculum := settings.curriculum) is not None:
            self._successes = Successes(curriculum.window, recovered.scored)
            chosen = by_difficulty(chosen, curriculum, self._successes, settings.task_seed)
        scheduler = RolloutScheduler(
            chosen,
            settings.rollout,
            settings.schedule.bound,
            self._emit,
            admission=settings.schedule.admission,
            ahead=settings.rollout.most_ahead if settings.schedule.resets_ahead else 0,
            version=self.engines.version,
            incarnation=state.incarnation,
        )
        for task_id in recovered.quarantined:
            scheduler.quarantine(task_id, None)
        scheduler.restore(recovered.groups, recovered.next_cursor)
        return scheduler

    async def follow(self) -> None:
        """Forward the buffer's changes to the curriculum and the scheduler, until cancelled."""
        while True:
            self._cursor, changes = await self._buffered.changes(self._cursor)
            for change in changes:
                if self._successes is not None and change.committed is not None:
                    self._successes.note(change.committed)
                self.scheduler.apply(change)

    async def watch(self, limits: HealthLimits) -> None:
        """Ping the inference workers until none is left, and restart those that hang."""
        await watch(self.engines, self._emit, limits)

    async def revive(self, worker: str) -> tuple[str, ...]:
        """Wait until a lost inference worker serves again, and return the names of its successors.

        No name is returned if none ever will; the run fails if the last worker was lost.
        """
        names = await self.engines.revive(worker)
        if self.engines.lost:
            self.scheduler.fail(NO_WORKER)
        return names


@dataclass(frozen=True, slots=True)
class InferenceClients:
    """The inference workers that a process of rollout workers sends its requests to."""

    workers: Sequence[Inference]
    prefill: Sequence[Inference] = ()
    """Workers that compute prompts for the others; if empty, each computes its own."""
    hw_affinity: Mapping[str, str] | str = field(default_factory=dict)
    """Hardware class by domain, "default" for the others; empty for any; or `profiler.AUTO`."""
    recover: Recover | None = None
    """Brings lost workers back; by default they stay lost."""
    count_tokens: Callable[[Sequence[int]], int] = len
    """Number of tokens for a sequence of ids; in a simulation, one id stands for many tokens."""
    vocabulary: int | None = None
    """Number of the policy's token ids; None if any id is valid."""


class RolloutPlane:
    """Proxy, rollout worker and environment managers of one process of rollout workers.

    Args:
        name: name for the scheduler, unique among all processes of a run, including restarted ones.
        inference: inference workers.
        codec: conversion between text and tokens.
        wall: UTC time of a time of the running loop.
        emit: receives the events of all parts.
        admission: the scheduler; None for evaluation, which needs no permission.
        schedule: schedule by which attempts wait for one another; None if none waits.
    """

    def __init__(
        self,
        name: str,
        inference: InferenceClients,
        codec: Codec,
        wall: Callable[[float], datetime],
        emit: Emit,
        *,
        admission: Admission | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.name, self.emit = name, emit
        self._codec = codec
        self._wall = wall
        self._admission = admission
        given = inference.hw_affinity
        self.proxy = LLMProxy(
            inference.workers,
            emit,
            hw_affinity=GenerationTimer(Profiler(emit), inference.count_tokens)
            if isinstance(given, str)
            else given,
            recover=inference.recover,
            prefill=inference.prefill,
            vocabulary=inference.vocabulary,
        )
        self._dispatch = FREE if schedule is None else Dispatch.of(schedule)
        self._worker: RolloutWorker | None = None
        if admission is not None:
            self._worker = RolloutWorker(name, admission, dispatch=self._dispatch)

    def manager(
        self,
        assignment: Assignment,
        make: Callable[[], AsyncEnvironment],
        limits: AttemptLimits,
        env_version: str = "",
    ) -> EnvManager:
        """Return the manager of one attempt, which is not started."""
        return EnvManager(
            assignment, make, self._codec, self.proxy, limits, self._wall, env_version=env_version,
            admission=self._admission, worker=self.name, dispatch=self._dispatch,
        )  # fmt: skip

    def attempt_context(self, env_version: str = "") -> AttemptContext:
        """Return what the plane gives an attempt that another kind of manager drives."""
        return AttemptContext(
            proxy=self.proxy, wall=self._wall, env_version=env_version, admission=self._admission,
            worker=self.name, dispatch=self._dispatch,
        )  # fmt: skip

    async def run(self, manager: AttemptManager) -> tuple[Trajectory, ...]:
        """Run one attempt to its end and return its unscored branches; see `AttemptManager`."""
        return await (manager.run() if self._worker is None else self._worker.run(manager))

    async def close(self) -> None:
        """Stop to listen for orders, and wait for pending aborts of requests."""
        if self._worker is not None:
            await self._worker.close()
        await self.proxy.close()
