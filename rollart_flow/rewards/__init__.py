"""Reward functions and the way they are called.

Names are imported on first use, so that a reward's process imports little beyond its own function.
`majority` is imported at once, since its module has the same name.
"""

from typing import TYPE_CHECKING

from rollart_flow.exports import lazy_exports
from rollart_flow.rewards.majority import majority

if TYPE_CHECKING:
    from rollart_flow.rewards.base import RewardFunction, Score, environment_reward
    from rollart_flow.rewards.completions import ChatCompletions, Completes
    from rollart_flow.rewards.composition import Part, compose
    from rollart_flow.rewards.judge import Judge, Judgements
    from rollart_flow.rewards.rules import exact, numeric, regex

__all__ = [
    "ChatCompletions", "Completes", "Judge", "Judgements", "Part", "RewardFunction", "Score",
    "compose", "environment_reward", "exact", "majority", "numeric", "regex",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "completions": "ChatCompletions Completes",
        "judge": "Judge Judgements",
        "composition": "Part compose",
        "base": "RewardFunction Score environment_reward",
        "rules": "exact numeric regex",
    },
)
