"""Reward functions and how they are called. Importing this loads nothing heavy."""

from rollart_flow.rewards.base import RewardFunction, Score, environment_reward
from rollart_flow.rewards.rules import exact, numeric, regex

__all__ = ["RewardFunction", "Score", "environment_reward", "exact", "numeric", "regex"]
