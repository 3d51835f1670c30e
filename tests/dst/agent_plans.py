"""The attempts of a simulated run whose agents are programs, as a function of its seed.

The invariant: the numbers of the rest of the plan do not depend on what is drawn here.
"""

from dataclasses import dataclass, field
from random import Random

from rollart_flow.gateway.core.agent_manager import StageLimits
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.exchange import CallKind

MOST_ROUNDS = 3
"""Most times that the program of one attempt is run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """Programs, and what they do; by default what is asked of them, one call after the other."""

    domains: tuple[str, ...]
    """Domains at whose tasks programs work; environments do in the others."""
    capture: CaptureLimits = field(default_factory=CaptureLimits)
    context_tokens: int = 400
    slots: tuple[int, int, int] = (2, 3, 1)
    """Places of a process: to open boxes, to run programs, to judge."""
    stages: StageLimits = field(
        default_factory=lambda: StageLimits(init_s=2.0, run_s=4.0, judge_s=2.0, grace_s=0.5)
    )
    turns: int = 5
    """Most turns of the conversation of a program."""
    side_calls: float = 0.0
    """Probabilities per turn: of a call without tools beside the conversation."""
    sub_agents: float = 0.0
    """Of a conversation of another one, which the first waits for."""
    rewrites: float = 0.0
    """Of a history that begins again."""
    retries: float = 0.0
    """Of a request that is given up and sent again."""
    leaves: float = 0.0
    """Of a request that is given up for good."""
    stays: float = 0.0
    """Probabilities per program: that it does not end by itself."""
    fails: float = 0.0
    """That it ends with an exit code."""
    silent: float = 0.0
    """That it makes no call."""
    outgrows: float = 0.0
    """That it reaches a limit of its box."""

    @property
    def longest_s(self) -> float:
        """Longest time of an attempt that waits for no place and no permission [s]."""
        limits = self.stages
        round_s = limits.run_s + 2 * limits.grace_s + limits.judge_s
        return limits.init_s + MOST_ROUNDS * round_s + limits.grace_s

    def __str__(self) -> str:
        return f"programs in {', '.join(self.domains)}"


CHANCES = (
    "side_calls", "sub_agents", "rewrites", "retries", "leaves", "stays", "fails", "silent",
    "outgrows",
)  # fmt: skip
"""Fields that are probabilities; the first five are of turns."""


def agent_plan(seed: int) -> AgentPlan | None:
    """The programs of a seed; None in more than half of all."""
    chance = Random(f"agents {seed}")
    if chance.random() < 0.6:
        return None
    every = frozenset(CallKind)
    drawn = {
        name: chance.uniform(0.0, 0.3 if name in CHANCES[:5] else 0.1)
        for name in CHANCES
        if chance.random() < 0.5
    }
    return AgentPlan(
        domains=chance.choice((("a",), ("b",), ("a", "b"))),
        capture=CaptureLimits(
            max_calls=chance.choice((2, 50, 50)),
            max_tokens=chance.choice((12, 100_000, 100_000)),
            per_request=chance.random() < 0.2,
            trained=chance.choice((every, CaptureLimits().trained, CaptureLimits().trained)),
        ),
        context_tokens=chance.choice((60, 400, 2000)),
        slots=(chance.randint(1, 3), chance.randint(1, 4), chance.randint(1, 2)),
        turns=chance.choice((3, 6, 20)),
        stages=StageLimits(
            init_s=2.0,
            run_s=chance.choice((4.0, 8.0)),
            judge_s=2.0,
            grace_s=chance.choice((0.5, 4.0)),
        ),
        **drawn,
    )
