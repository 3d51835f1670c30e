"""Task domains, and the script of each attempt.

A script is everything that an attempt would do without interruption: its turns with their lengths
and latencies, drawn in advance. The invariant: a script is a function of the seed and of the
attempt's name alone, so that every schedule meets the same attempts and differences between
schedules are differences of scheduling.

Tokens are written as run lengths: one id of a simulated chain stands for as many tokens as its
value says, so that a chain of 32,768 tokens is a few ids and the control plane moves no bulk.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Protocol

from rollart_flow.errors import SettingsError
from rollart_flow.shares import by_share
from rollart_flow.simulation.latencies import (
    Distribution,
    FixedLatency,
    LatencyMixture,
    LogNormal,
    Uniform,
)
from rollart_flow.types import Task


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One observation, the action that answers it, and the environment's time for the action."""

    observation_tokens: int
    action_tokens: int
    step_s: float


@dataclass(frozen=True, slots=True)
class Script:
    """The course of one attempt without interruptions."""

    reset_s: float
    turns: tuple[ScriptedTurn, ...]
    reward: float
    judged: bool
    """Whether a reward model reads the trajectory."""
    truncated: bool = False
    """Whether the attempt ends at the context limit."""
    fails_at: int | None = None
    """Turn in whose step the environment raises; -1: in reset; None: it never does."""
    _ends: "array[int]" = field(init=False, repr=False, compare=False)
    """Positions in the chain at which the actions of the turns end."""

    def __post_init__(self) -> None:
        lengths = (turn.observation_tokens + turn.action_tokens for turn in self.turns)
        object.__setattr__(self, "_ends", array("q", accumulate(lengths)))

    @property
    def tokens(self) -> int:
        """Length of the chain of observations and actions."""
        return self._ends[-1] if self._ends else 0

    @property
    def action_tokens(self) -> int:
        return sum(turn.action_tokens for turn in self.turns)

    @property
    def environment_s(self) -> float:
        """Time of the reset and of all steps [s]."""
        return self.reset_s + sum(turn.step_s for turn in self.turns)

    def left(self, position: int) -> int:
        """Tokens that the action at a position still has to generate; ValueError without one."""
        index = bisect_right(self._ends, position)
        if index < len(self._ends):
            left = self._ends[index] - position
            if left <= self.turns[index].action_tokens:
                return left
        raise ValueError(f"nothing is generated at token {position} of {self.tokens}")


_SHARED = tuple(range(4_096))


def shared(tokens: int) -> int:
    """Return the same number, as a shared object if it is small: few numbers occur very often."""
    return _SHARED[tokens] if tokens < len(_SHARED) else tokens


_SHORT = FixedLatency(0.1)


@dataclass(frozen=True, slots=True)
class SimulatedDomain:
    """A task domain; SettingsError if its share is not positive.

    Lengths in tokens, latencies in seconds.
    """

    name: str
    turns: Distribution
    prompt: Distribution
    """Length of the first observation."""
    observation: Distribution
    """Length of each later observation."""
    response: Distribution
    """Length of the action of one turn."""
    reset_s: Distribution = _SHORT
    step_s: Distribution = _SHORT
    failure: float = 0.0
    """Share of the attempts whose environment raises in some turn."""
    solved: float = 0.5
    """Mean success over all tasks."""
    agreement: float = 0.5
    """Share of the tasks that all attempts solve, or none."""
    judged: bool = False
    """Whether a reward model reads the trajectory."""
    task_spread: float = 0.25
    """Sigma of the logarithm of the factor that all responses to one task are longer by."""
    cached_share: float = 1.0
    """Share of a trajectory's cached tokens that its next prompt can use: fewer than all where a
    template writes earlier turns anew, or leaves some of them out."""
    share: float = 1.0
    """Share of the tasks, relative to those of the other domains."""

    def __post_init__(self) -> None:
        if not 0 < self.share < float("inf"):
            raise SettingsError(
                f"domain {self.name} has a share of {self.share:g}; it must be positive"
            )


_TOOL_STEP = LogNormal(1.0, 0.8, most=30)
_PAGE_STEP = LogNormal(2.0, 0.8, most=60)
_SHELL_STEP = LogNormal(0.6, 1.0, most=120)
_LAUNCH, _TAIL = LogNormal(22.0, 0.45, most=120), Uniform(150, 400)
_IMAGE_RESET = LatencyMixture(((0.9992, _LAUNCH), (0.0008, _TAIL)))
"""Pulling an image and launching a container: tens of seconds, with a tail of hundreds (ROLLART
section 3.1, Figure 5a) that occurs in about one of ten steps of 128 attempts."""

SWE = SimulatedDomain(
    "swe", turns=Uniform(30, 50), prompt=LogNormal(2_000, 0.3, most=4_000),
    observation=LogNormal(300, 0.8, most=3_000), response=LogNormal(200, 0.7, most=3_000),
    reset_s=_IMAGE_RESET, step_s=_SHELL_STEP, failure=0.002, solved=0.3,
)  # fmt: skip
WEB = SimulatedDomain(
    "web", turns=Uniform(5, 30), prompt=LogNormal(600, 0.3, most=2_000),
    observation=LogNormal(650, 0.5, most=3_000), response=LogNormal(60, 0.6, most=1_000),
    reset_s=LogNormal(1.0, 0.5, most=20), step_s=_PAGE_STEP, failure=0.001,
)  # fmt: skip
FROZEN_LAKE = SimulatedDomain(
    "frozenlake", turns=Uniform(20, 100), prompt=FixedLatency(500),
    observation=LogNormal(120, 0.2, most=600), response=LogNormal(6, 0.5, most=100),
    reset_s=FixedLatency(0.2), step_s=LogNormal(0.05, 0.6, most=2),
)  # fmt: skip
GEM_MATH = SimulatedDomain(
    "gem-math", turns=Uniform(1, 5), prompt=LogNormal(300, 0.3, most=1_000),
    observation=LogNormal(150, 0.6, most=2_000), response=LogNormal(800, 0.8, most=16_000),
    reset_s=FixedLatency(0.2), step_s=_TOOL_STEP, judged=True,
)  # fmt: skip
GEM_GAME = SimulatedDomain(
    "gem-game", turns=FixedLatency(1), prompt=LogNormal(400, 0.3, most=1_000),
    observation=FixedLatency(1), response=LogNormal(2_200, 0.8, most=24_000),
    reset_s=FixedLatency(0.1), step_s=FixedLatency(0.1),
)  # fmt: skip
DOMAINS = {domain.name: domain for domain in (SWE, WEB, FROZEN_LAKE, GEM_MATH, GEM_GAME)}
"""The domains of ROLLART Table 1, with the turns of the table. Lengths are not published: they are
chosen so that each domain is as section 3.1 describes it (FrozenLake many short turns, bound by
prefill; GEM-Math long chains of thought, bound by decode) within 32,768 tokens; response lengths
have the tail of section 8 (the longest of a step is 5 to 9 times the mean)."""


class Attempts(Protocol):
    """A source of the tasks and the scripts of a run."""

    def tasks(self) -> Iterator[tuple[Task, int]]:
        """An endless sequence of tasks, each with its cursor."""

    def script(self, group_id: str, domain: str, attempt: int) -> Script:
        """The script of an attempt."""


@dataclass(frozen=True)
class Workload:
    """Tasks of the domains by their shares; SettingsError if there are none, or two of one name."""

    domains: tuple[SimulatedDomain, ...]
    seed: int = 0
    context_tokens: int = 32_768
    _by_name: Mapping[str, SimulatedDomain] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {domain.name: domain for domain in self.domains}
        if len(by_name) != len(self.domains) or not by_name:
            raise SettingsError("a workload needs at least one domain, and their names must differ")
        object.__setattr__(self, "_by_name", by_name)

    def tasks(self) -> Iterator[tuple[Task, int]]:
        for cursor, place in enumerate(by_share([domain.share for domain in self.domains])):
            domain = self.domains[place]
            yield Task(f"{domain.name}-{cursor}", domain.name), cursor

    def script(self, group_id: str, domain: str, attempt: int) -> Script:
        kind = self._by_name[domain]
        task = Random(f"{self.seed}/{group_id}")
        chance = Random(f"{self.seed}/{group_id}/{attempt}")
        factor = LogNormal(1.0, kind.task_spread).draw(task)
        return draw_script(kind, chance, self.context_tokens, factor, _difficulty(kind, task))


def _difficulty(domain: SimulatedDomain, task: Random) -> float:
    """Probability that an attempt at a task is solved."""
    if task.random() < domain.agreement:
        return 1.0 if task.random() < domain.solved else 0.0
    return domain.solved


def draw_script(
    domain: SimulatedDomain, chance: Random, context_tokens: int, factor: float, solved: float
) -> Script:
    """Draw one attempt of a domain, cut at the context limit but never without a turn."""
    reset_s = domain.reset_s.draw(chance)
    count = max(1, round(domain.turns.draw(chance)))
    fails_at = chance.randrange(-1, count) if chance.random() < domain.failure else None
    turns: list[ScriptedTurn] = []
    room, truncated = context_tokens, False
    for turn in range(count):
        lengths = domain.observation if turn else domain.prompt
        observed = max(1, round(lengths.draw(chance)))
        if turn == 0:
            observed = min(observed, context_tokens - 1)
        wanted = max(1, round(domain.response.draw(chance) * factor))
        if observed + 1 > room:
            truncated = True
            break
        action = min(wanted, room - observed)
        step_s = domain.step_s.draw(chance)
        turns.append(ScriptedTurn(shared(observed), shared(action), step_s))
        room -= observed + action
        if action < wanted:
            truncated = True
            break
    reward = float(chance.random() < solved)
    return Script(reset_s, tuple(turns), reward, domain.judged, truncated, fails_at)


Domain = SimulatedDomain
"""The name of earlier versions, which scenario files use."""
