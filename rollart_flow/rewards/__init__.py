"""Reward functions and how they are called.

Names are imported when they are first used: a reward's process starts with what it runs, and
little else. `majority` is imported at once, since its module has the same name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollart_flow.rewards.majority import majority

if TYPE_CHECKING:
    from rollart_flow.rewards.base import RewardFunction, Score, environment_reward
    from rollart_flow.rewards.completions import ChatCompletions, Completes
    from rollart_flow.rewards.composition import Part, compose
    from rollart_flow.rewards.judge import Judge
    from rollart_flow.rewards.judgements import Judgements
    from rollart_flow.rewards.rules import exact, numeric, regex

__all__ = [
    "ChatCompletions",
    "Completes",
    "Judge",
    "Judgements",
    "Part",
    "RewardFunction",
    "Score",
    "compose",
    "environment_reward",
    "exact",
    "majority",
    "numeric",
    "regex",
]

_HOMES = {
    "base": ("RewardFunction", "Score", "environment_reward"),
    "completions": ("ChatCompletions", "Completes"),
    "composition": ("Part", "compose"),
    "judge": ("Judge",),
    "judgements": ("Judgements",),
    "rules": ("exact", "numeric", "regex"),
}
"""Names by the module that defines them."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
