"""Algorithms of a policy gradient: frozen settings that load no torch until they run."""

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.grpo import grpo
from rollart_flow.algorithms.staleness import Decayed
from rollart_flow.control.curriculum import Curriculum

__all__ = ["Algorithm", "Curriculum", "Decayed", "grpo"]
