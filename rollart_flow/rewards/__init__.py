"""Reward functions and how they are called. Importing this loads nothing heavy."""

from rollart_flow.rewards.base import RewardFunction, Score, environment_reward
from rollart_flow.rewards.completions import ChatCompletions, Completes
from rollart_flow.rewards.composition import Part, compose
from rollart_flow.rewards.engine_completions import EngineCompletions, PolicyCompletions
from rollart_flow.rewards.judge import Judge
from rollart_flow.rewards.judgements import Judgements
from rollart_flow.rewards.majority import majority
from rollart_flow.rewards.rules import exact, numeric, regex

__all__ = [
    "ChatCompletions",
    "Completes",
    "EngineCompletions",
    "Judge",
    "Judgements",
    "Part",
    "PolicyCompletions",
    "RewardFunction",
    "Score",
    "compose",
    "environment_reward",
    "exact",
    "majority",
    "numeric",
    "regex",
]
