"""The environments of a simulated run whose attempts branch, as a function of its seed.

The invariant: the numbers of the rest of the plan do not depend on what is drawn here.
"""

from dataclasses import dataclass, replace
from random import Random

from rollart_flow.types import AttemptLimits

DIALOGUE_CHANCES = ("sub_agents", "retries", "breaches")
"""Fields that are probabilities of a turn, and do not follow from one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialoguePlan:
    """Environments that show messages and make attempts branch, and the template of the policy."""

    domains: tuple[str, ...]
    """Domains at whose tasks such environments work."""
    converses: bool = True
    """Whether they take actions with tool calls; otherwise they take text."""
    branches_history: bool = True
    """Whether a turn before which the template changes earlier ones begins a branch; this holds of
    all domains, since they have one policy."""
    longest: int = 40
    """Most messages that the template renders again; it refuses longer conversations."""
    max_turns: int = 6
    context_tokens: int = 120
    context: str | None = None
    max_branches: int = 64
    sub_agents: float = 0.0
    """Probabilities per turn: of a sub-agent."""
    returns: float = 0.4
    """Of the end of a sub-agent that runs."""
    retries: float = 0.0
    """Of another try at an earlier turn."""
    breaches: float = 0.0
    """Of an answer that breaks the protocol."""

    def limits(self, others: AttemptLimits) -> AttemptLimits:
        """The limits of an attempt, with the times of the other domains."""
        return replace(
            others,
            max_turns=self.max_turns,
            context_tokens=self.context_tokens,
            context=self.context,
            max_branches=self.max_branches,
        )

    def __str__(self) -> str:
        return f"branches in {', '.join(self.domains)}"


def dialogue_plan(seed: int) -> DialoguePlan | None:
    """The environments of a seed that make attempts branch; None in half of all."""
    chance = Random(f"dialogues {seed}")
    domains = chance.choice((("a",), ("b",), ("a", "b")))
    if chance.random() < 0.5:
        return None
    most = {"sub_agents": 0.4, "retries": 0.4, "breaches": 0.02}
    drawn = {
        name: chance.uniform(0.0, most[name]) for name in DIALOGUE_CHANCES if chance.random() < 0.7
    }
    converses = chance.random() < 0.7
    contexts = ["cut", "cut(at=0.5, keep=0.25)", "summarize(at=0.3)"]
    contexts += ["notes(at=0.5)"] if converses else []
    return DialoguePlan(
        domains=domains,
        converses=converses,
        branches_history=chance.random() < 0.5,
        longest=chance.choice((4, 40)),
        max_turns=chance.choice((3, 6, 12)),
        context_tokens=chance.choice((60, 120, 500)),
        context=chance.choice((None, None, *contexts)),
        max_branches=chance.choice((1, 3, 64, 64)),
        **drawn,
    )
