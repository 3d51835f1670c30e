"""Environments, and the domains that pipelines name. Importing this loads nothing heavy."""

from rollart_flow.envs.arithmetic import Arithmetic
from rollart_flow.envs.base import Domain, Environment
from rollart_flow.envs.frozen_lake import FrozenLake

__all__ = ["Arithmetic", "Domain", "Environment", "FrozenLake"]
