"""Environments, and the domains that pipelines name; each is imported at its first use."""

from typing import TYPE_CHECKING

from rollart_flow.exports import lazy_exports

if TYPE_CHECKING:
    from rollart_flow.envs.arithmetic import Arithmetic
    from rollart_flow.envs.base import Domain, Environment
    from rollart_flow.envs.frozen_lake import FrozenLake
    from rollart_flow.envs.tools import ToolEnvironment, tool

__all__ = ["Arithmetic", "Domain", "Environment", "FrozenLake", "ToolEnvironment", "tool"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "arithmetic": "Arithmetic",
        "base": "Domain Environment",
        "frozen_lake": "FrozenLake",
        "tools": "ToolEnvironment tool",
    },
)
