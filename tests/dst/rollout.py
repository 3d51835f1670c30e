"""The producer of a simulated run: sources, rollout workers, rewards, commits to the buffer."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from rollart_flow.control.environment import AsyncEnvironment
from rollart_flow.control.inference.worker_pool import Recover
from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.plane import ControlPlane, InferenceClients, RolloutPlane
from rollart_flow.control.protocols import Emit
from rollart_flow.episodes import like, whole
from rollart_flow.errors import UnknownClientError
from rollart_flow.types import Assignment, Trajectory
from tests.dst.agent_hosts import HostAgents
from tests.dst.branching import branched
from tests.dst.dialogue_codec import DialogueCodec
from tests.dst.dialogue_environments import DialogueEnvironment
from tests.dst.engines import HARDWARE, FaultyEngine
from tests.dst.environments import FaultyEnvironment, LetterCodec, wall
from tests.dst.network import Address, RemoteAdmission
from tests.dst.process import BufferProcess
from tests.dst.rewards import FaultyReward
from tests.dst.sink import FaultySink
from tests.dst.tasks import Tasks
from tests.dst.world import World

_MANY = 1 << 30
_BLOCK = 3
"""Maximum number of attempts of a block: fewer than a group in some plans, more in others."""


@dataclass(slots=True)
class Host:
    """A process of rollout workers."""

    plane: RolloutPlane
    sink: FaultySink
    agents: HostAgents | None
    attempts: dict[int, Assignment] = field(default_factory=dict)
    """Attempts that run here, or whose trajectories are not acknowledged; all end with it."""
    running: int = 0
    """Number of attempts that run."""
    numbers: Iterator[int] = field(default_factory=count)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Rollout:
    """Runs every attempt that the scheduler admits, and commits its trajectory."""

    def __init__(
        self,
        world: World,
        tasks: Tasks,
        coordinator: Address[ControlPlane],
        buffer: Address[BufferProcess],
        engines: list[FaultyEngine],
        emit: Emit,
        recover: Recover,
    ) -> None:
        self._world = world
        self._tasks = tasks
        self._coordinator = coordinator
        self._buffer = buffer
        self._engines = engines
        self._emit = emit
        self._recover = recover
        self._admission = RemoteAdmission(coordinator, world.network)
        plan = world.plan
        self._reward = FaultyReward(world.chance, plan.faults, plan.reward_timeout_s)
        stages = plan.schedule.stages
        # One limit of the reward operator covers all rollout workers, as it does over Ray.
        self._scored_at_once = asyncio.Semaphore(_MANY if stages is None else stages.reward)
        self._queue: asyncio.Queue[Assignment] = asyncio.Queue()
        self._room = Signal()
        self._acknowledged = Signal()
        self.admitted: dict[str, None] = {}
        """Attempts that a source has received."""
        self._hosts: dict[str, Host] = {}
        self._unacknowledged: dict[str, None] = {}

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the rollout workers."""
        return tuple(self._hosts)

    async def source(self, name: str) -> None:
        """Receive attempts until there are no more."""
        index = 0
        taken: list[list[str]] = []
        while assignments := await self._admit(name, index, taken):
            taken.append([assignment.trajectory_id for assignment in assignments])
            for assignment in assignments:
                self.admitted[assignment.trajectory_id] = None
                self._unacknowledged[assignment.trajectory_id] = None
                self._queue.put_nowait(assignment)
            index += 1
            # Ray Data passes blocks on when the next operator has room.
            while self._queue.qsize() > self._world.plan.slots:
                with waiting(f"room for {name}"):
                    await self._room.wait()

    async def _admit(self, name: str, index: int, taken: list[list[str]]) -> tuple[Assignment, ...]:
        while True:
            try:
                return await self._admission.admit(name, index, _BLOCK)
            except UnknownClientError:
                await self._admission.adopt(name, taken)

    async def all_acknowledged(self) -> None:
        """Wait until every attempt that a source received has a durable row."""
        while self._unacknowledged:
            with waiting(f"the rows of {', '.join(self._unacknowledged)}"):
                await self._acknowledged.wait()

    def start_host(self, name: str) -> None:
        """Start another process that runs attempts."""
        dialogues = self._world.plan.dialogues
        plane = RolloutPlane(
            name,
            InferenceClients(
                self._engines, hw_affinity={"default": HARDWARE}, recover=self._recover
            ),
            LetterCodec() if dialogues is None else DialogueCodec(dialogues),
            wall,
            self._emit,
            admission=self._admission,
            schedule=self._world.plan.schedule,
        )
        programs = self._world.plan.agents
        agents = None if programs is None else HostAgents(self._world, programs, plane)
        sink = FaultySink(self._world, self._buffer)
        host = self._hosts[name] = Host(plane, sink, agents)
        host.tasks.append(self._tasks.start(self._run_host(host), name))

    async def kill_host(self, name: str, down_s: float) -> None:
        """Kill a rollout worker; as over Ray, a new one starts and runs the lost attempts again."""
        host = self._hosts.pop(name)
        host.sink.dead = True
        for task in host.tasks:
            task.cancel()
        self._world.monitor.went_down()
        await asyncio.sleep(down_s)
        self.start_host(f"{name}'")
        for assignment in host.attempts.values():
            self._queue.put_nowait(assignment)
        self._world.monitor.came_back()

    async def _run_host(self, host: Host) -> None:
        slots = range(self._world.plan.slots)
        try:
            await asyncio.gather(*(self._slot(host) for _ in slots))
        finally:
            await host.plane.close()

    async def _slot(self, host: Host) -> None:
        while True:
            assignment = await self._queue.get()
            self._room.notify()
            number = next(host.numbers)
            host.attempts[number] = assignment
            host.running += 1
            branches = await self._attempt(host, assignment)
            host.running -= 1
            name = f"commit of {assignment.trajectory_id}"
            host.tasks.append(self._tasks.start(self._commit(host, number, branches), name))

    async def _attempt(self, host: Host, assignment: Assignment) -> tuple[Trajectory, ...]:
        """Run an attempt of an environment or of a program."""
        if host.agents is not None and host.agents.at(assignment):
            return await host.agents.run(assignment)
        world = self._world
        faults, limits, dialogues = world.plan.faults, world.plan.limits, world.plan.dialogues
        make: Callable[[], AsyncEnvironment] = partial(FaultyEnvironment, world.chance, faults)
        if dialogues is not None and assignment.task.domain in dialogues.domains:
            make = partial(DialogueEnvironment, world.chance, faults, dialogues)
            limits = dialogues.limits(limits)
        branches = await host.plane.run(host.plane.manager(assignment, make, limits))
        if world.chance.random() < faults.branches and branches[0].messages is None:
            return branched(branches, world.chance)
        return branches

    async def _commit(self, host: Host, number: int, branches: Sequence[Trajectory]) -> None:
        """Score and commit an attempt until the buffer acknowledges it; some are sent twice."""
        twice = self._world.chance.random() < self._world.plan.faults.reward_twice
        copies = 2 if twice else 1
        await asyncio.gather(*(self._score_and_put(host, branches) for _ in range(copies)))
        del host.attempts[number]
        self._unacknowledged.pop(branches[0].trajectory_id, None)
        self._acknowledged.notify()

    async def _score_and_put(self, host: Host, branches: Sequence[Trajectory]) -> None:
        async with self._scored_at_once:
            scored = await self._reward.score(whole(branches))
        durable = host.sink.put(like(branches, scored))
        if not host.running:
            host.sink.flush()
        await durable
