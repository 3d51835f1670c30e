"""The settings and the faults of a simulated run, as a function of its seed.

The invariant: a run depends on nothing but its plan.
"""

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from random import Random

from rollart_flow.control.schedule.declarations import Barrier, Overdue, Phase
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import SCHEDULES, rollart
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.types import AttemptLimits, Sampling
from tests.dst.agent_plans import AgentPlan, agent_plan
from tests.dst.dialogue_plans import DialoguePlan, dialogue_plan

STOP = 0
"""The token that ends an action."""
_SCHEDULES = SCHEDULES.names()
"""Read once: names that packages add are looked for in all of their files."""
_NEVER = 1_000_000
"""Failures in a row that end a run; far more than a plan causes."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities per call, message, chunk or commit."""

    message_lost: float = 0.0
    message_repeated: float = 0.0
    message_late: float = 0.0
    environment_raises: float = 0.0
    environment_hangs: float = 0.0
    environment_late: float = 0.0
    environment_nonsense: float = 0.0
    chunk_lost: float = 0.0
    chunk_repeated: float = 0.0
    engine_hangs: float = 0.0
    engine_refuses: float = 0.0
    stream_breaks: float = 0.0
    """The stream of a request ends without a finish reason."""
    reward_raises: float = 0.0
    reward_hangs: float = 0.0
    reward_infinite: float = 0.0
    reward_twice: float = 0.0
    """A trajectory is scored, and sent to the buffer, twice."""
    rows_lost: float = 0.0
    """Only some rows of a micro-batch arrive, so that it is sent again."""
    rows_doubled: float = 0.0
    """A row arrives twice with the last part of its micro-batch."""
    rows_split: float = 0.0
    """A micro-batch arrives in two parts."""
    rows_late: float = 0.0
    """A micro-batch, or a part of it, is late."""
    weights_unavailable: float = 0.0
    weights_slow: float = 0.0
    commit_fails_before: float = 0.0
    """The commit fails before it writes."""
    commit_fails_after: float = 0.0
    """The commit fails after it has written, so that the writer does not know."""
    commit_slow: float = 0.0
    filtered: float = 0.0
    """An episode is refused by a filter."""
    branches: float = 0.0
    """An attempt of several turns is cut into several branches."""


class Target(StrEnum):
    """A part of the run that may be killed."""

    HOST = "host"
    ENGINE = "engine"
    """The process of an engine, which is restarted."""
    MACHINE = "machine"
    """An engine, for good."""
    HANG = "hang"
    """An engine that answers nothing until it is restarted."""
    COORDINATOR = "coordinator"
    BUFFER = "buffer"
    TRAINER = "trainer"
    EVERYTHING = "everything"


@dataclass(frozen=True, slots=True)
class Kill:
    """The death of a part of the run."""

    after_s: float
    """Time since the run, or its latest resumption, began [s]."""
    target: Target
    down_s: float = 0.0
    """Time until the restart [s]."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one run, by default without faults."""

    seed: int = 0
    schedule: Schedule = field(default_factory=rollart)
    steps: int = 3
    groups: int = 4
    """Groups of a batch."""
    group_size: int = 4
    redundancy: int = 0
    extra_groups: int = 0
    ahead: int = 0
    """Attempts that may be reset before their group is admitted, if the schedule has any."""
    extra_environments: int = 0
    max_attempts: int | None = None
    hosts: int = 3
    slots: int = 8
    """Attempts that a rollout worker runs at a time."""
    engines: int = 3
    sliding: int = 0
    """Number of engines that share their devices with training."""
    train_s: float = 2.0
    limits: AttemptLimits = field(
        default_factory=lambda: AttemptLimits(
            max_turns=6, context_tokens=120, step_timeout_s=5, trajectory_timeout_s=30
        )
    )
    reward_timeout_s: float = 3.0
    faults: Faults = field(default_factory=Faults)
    kills: tuple[Kill, ...] = ()
    agents: AgentPlan | None = None
    """Programs that are agents in some domains."""
    dialogues: DialoguePlan | None = None
    """Environments of some domains whose attempts branch."""
    stored: bool = False
    """Whether each step draws rows of another stored run beside its batch."""

    @property
    def batch_size(self) -> int:
        """Trajectories of a step."""
        return self.groups * self.group_size

    @property
    def life_s(self) -> float:
        """Virtual seconds after which a run that has not ended makes no progress.

        A group without replacements is abandoned with its first failure, so that faults may leave
        few of them whole.
        """
        return _LONG_LIFE_S if self.max_attempts == self.group_size else _LIFE_S

    @property
    def settings(self) -> RolloutSettings:
        """Settings of the scheduler."""
        return RolloutSettings(
            self.batch_size,
            self.group_size,
            self.redundancy,
            self.extra_groups,
            ahead=self.ahead,
            extra_environments=self.extra_environments,
            max_attempts=self.max_attempts,
            breaker=_NEVER,
            refusals=_NEVER,
            sampling=Sampling(max_tokens=8, stop_token_ids=(STOP,)),
            seed=self.seed,
        )

    @property
    def credits(self) -> int:
        """Groups that may be in flight or wait in the buffer."""
        return self.schedule.bound.capacity(self.batch_size) // self.group_size + self.extra_groups

    @property
    def groups_ahead(self) -> int:
        """Groups that may be opened before they are admitted."""
        if not self.schedule.resets_ahead:
            return 0
        return self.ahead // (self.group_size + self.redundancy)

    def __str__(self) -> str:
        faults = {f.name: getattr(self.faults, f.name) for f in fields(self.faults)}
        shown = [f"{name} {chance:.2g}" for name, chance in faults.items() if chance]
        shown += [str(each) for each in (self.agents, self.dialogues) if each is not None]
        shown += ["draws from another run"] if self.stored else []
        shown += [f"{kill.target} at {kill.after_s:.1f} s" for kill in self.kills]
        return (
            f"{self.schedule.name}, {self.steps} steps of {self.groups} x {self.group_size} "
            f"(redundancy {self.redundancy}, extra groups {self.extra_groups}, "
            f"{self.groups_ahead} ahead), "
            f"{self.hosts} hosts x {self.slots}, {self.engines} engines ({self.sliding} sliding); "
            + (", ".join(shown) or "calm")
        )


_LIFE_S, _LONG_LIFE_S = 400.0, 3200.0
_STORED = 100
"""One plan of so many draws from another run, whose tables are real and take real time."""

_SEVERE = {
    "environment_hangs": 0.03, "engine_hangs": 0.01, "reward_hangs": 0.04,
    "environment_raises": 0.08, "environment_nonsense": 0.05, "engine_refuses": 0.03,
    "stream_breaks": 0.02, "filtered": 0.15, "branches": 1.0,
}  # fmt: skip
"""Largest probabilities of faults that cost an attempt or much time; others have `_MILD`."""
_MILD = 0.2


def plan_of(seed: int) -> Plan:
    """The plan of a seed, with about half of all kinds of faults and a few kills."""
    chance = Random(seed)
    group_size = chance.choice((1, 2, 2, 3))
    redundancy = chance.choice((0, 0, 1, 2))
    plan = Plan(
        seed=seed,
        schedule=_schedule(chance),
        steps=chance.randint(2, 4),
        groups=chance.choice((1, 2, 2, 3)),
        group_size=group_size,
        redundancy=redundancy,
        extra_groups=chance.choice((0, 0, 1, 2)),
        max_attempts=chance.choice((None, group_size + redundancy)),
        hosts=chance.randint(1, 3),
        slots=chance.randint(2, 5),
        engines=chance.randint(1, 3),
        train_s=chance.choice((0.2, 1.0, 2.0)),
        limits=AttemptLimits(
            max_turns=chance.randint(2, 5),
            context_tokens=chance.choice((25, 120)),
            step_timeout_s=2.0,
            trajectory_timeout_s=chance.choice((6.0, 12.0)),
        ),
        reward_timeout_s=1.0,
    )
    faults, kills = _faults(chance), _kills(chance)
    sliding = chance.choice((0, 0, 1, 2))
    agents = None if Barrier.TURNS in plan.schedule.barriers else agent_plan(seed)
    dialogues = dialogue_plan(seed) if agents is None else None  # those of agents were there first
    sliding = min(sliding, plan.engines - 1)
    draw, schedule = Random(f"{seed}/ahead"), plan.schedule
    ahead = draw.choice((0, 1, 1, 2)) * (group_size + redundancy)
    if draw.random() < 0.3:
        schedule = schedule.switched(reset_ahead=True)
    slots = plan.slots
    if schedule.resets_ahead:  # an attempt that is ready keeps a slot of its host, and an agent's
        slots = max(slots, ahead + 1)
        if agents is not None:
            agents = replace(agents, slots=(max(agents.slots[0], ahead + 1), *agents.slots[1:]))
    return replace(
        plan,
        schedule=schedule,
        ahead=ahead,
        extra_environments=draw.choice((0, ahead)),
        slots=slots,
        faults=faults,
        kills=kills,
        sliding=sliding,
        agents=agents,
        dialogues=dialogues,
        stored=seed % _STORED == 19,
    )


def _schedule(chance: Random) -> Schedule:
    """Any schedule, sometimes with other switches than its own."""
    name = chance.choice(_SCHEDULES)
    make = SCHEDULES.load(name)
    alpha = chance.choice((0, 0.5, 1, 1, 2))
    match name:
        case "rollart" | "flash" | "areal":
            schedule = make(alpha)
        case "rollart_plus":
            schedule = make(alpha or 1)
        case "window":
            schedule = make(chance.randint(1, 4), alpha)
        case "staged":
            schedule = make(*(chance.randint(1, 3) for _ in range(3)), alpha)
        case _:
            schedule = make()
    patient = schedule.overdue is Overdue.AWAIT
    switches = {"queue_scheduling": False, "prompt_replication": False, "patient": not patient}
    if Phase.UPDATE in schedule.before_training:
        switches["overlapped"] = True
    chosen = {switch: value for switch, value in switches.items() if chance.random() < 0.1}
    return schedule.switched(**chosen)


def _faults(chance: Random) -> Faults:
    """No faults in one run of eight; in the others, each kind with a probability of one half."""
    if chance.random() < 0.125:
        return Faults()
    chosen = {
        each.name: chance.uniform(0.0, _SEVERE.get(each.name, _MILD))
        for each in fields(Faults)
        if chance.random() < 0.5
    }
    return Faults(**chosen)


def _kills(chance: Random) -> tuple[Kill, ...]:
    """Up to four kills of single parts; in one run of four, everything dies too."""
    targets = [t for t in Target if t not in (Target.EVERYTHING, Target.HANG)]
    count = chance.choice((0, 0, 1, 2, 3, 4))
    kills = [
        Kill(chance.uniform(0.1, 8.0), chance.choice(targets), chance.choice((0.0, 0.1, 1.0)))
        for _ in range(count)
    ]
    kills += [
        Kill(chance.uniform(0.5, 6.0), Target.EVERYTHING)
        for _ in range(chance.choice((0, 0, 0, 0, 0, 0, 1, 2)))
    ]
    kills += [
        Kill(chance.uniform(0.1, 8.0), Target.HANG) for _ in range(chance.choice((0, 0, 0, 1)))
    ]
    return tuple(kills)
