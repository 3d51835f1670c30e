"""Algorithms of a policy gradient: frozen settings that load no torch until they run."""

from rollart_flow.algorithms.grpo import GRPO, grpo

__all__ = ["GRPO", "grpo"]
