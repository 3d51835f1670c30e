"""Reward functions and the way they are called.

Names are imported on first use, so that a reward's process imports little beyond its own function.
`majority` is imported at once, since its module has the same name.
"""

from typing import TYPE_CHECKING

from rollart_flow.exports import lazy_exports
from rollart_flow.rewards.majority import majority

if TYPE_CHECKING:
    from rollart_flow.rewards.base import RewardFunction, Score, environment_reward
    from rollart_flow.rewards.code.rule import code_tests
    from rollart_flow.rewards.completions import ChatCompletions, Completes
    from rollart_flow.rewards.composition import Part, compose
    from rollart_flow.rewards.hack_watch import HACK_PROMPT, watched
    from rollart_flow.rewards.judge import Judge, Judgements
    from rollart_flow.rewards.math.rule import math_equal
    from rollart_flow.rewards.process import completion_time, process_reward
    from rollart_flow.rewards.rules import exact, numeric, regex

__all__ = [
    "HACK_PROMPT", "ChatCompletions", "Completes", "Judge", "Judgements", "Part",
    "RewardFunction", "Score", "code_tests", "completion_time", "compose", "environment_reward",
    "exact", "majority", "math_equal", "numeric", "process_reward", "regex", "watched",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "completions": "ChatCompletions Completes",
        "judge": "Judge Judgements",
        "composition": "Part compose",
        "base": "RewardFunction Score environment_reward",
        "code.rule": "code_tests",
        "math.rule": "math_equal",
        "process": "completion_time process_reward",
        "rules": "exact numeric regex",
        "hack_watch": "HACK_PROMPT watched",
    },
)
