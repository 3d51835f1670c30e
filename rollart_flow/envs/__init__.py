"""Environments, and the domains that pipelines name; each is imported at its first use."""

from typing import TYPE_CHECKING

from rollart_flow.exports import lazy_exports

if TYPE_CHECKING:
    from rollart_flow.envs.alf_world import AlfWorld
    from rollart_flow.envs.arithmetic import Arithmetic
    from rollart_flow.envs.base import Domain, Environment
    from rollart_flow.envs.foreign.nemo_gym import NemoGym
    from rollart_flow.envs.foreign.openenv import OpenEnv
    from rollart_flow.envs.foreign.skyrl_gym import SkyRLGym
    from rollart_flow.envs.foreign.verifiers import Verifiers
    from rollart_flow.envs.frozen_lake import FrozenLake
    from rollart_flow.envs.gem_game import GemGame
    from rollart_flow.envs.gymnasium_text import GymnasiumText
    from rollart_flow.envs.math_python import MathWithPython
    from rollart_flow.envs.minesweeper import Minesweeper
    from rollart_flow.envs.questions.domain import Questions
    from rollart_flow.envs.reasoning import ReasoningGym
    from rollart_flow.envs.shop.domain import Shop
    from rollart_flow.envs.sokoban import Sokoban
    from rollart_flow.envs.swe.harbor.domain import HarborTasks
    from rollart_flow.envs.swe.mutants import SweMutants
    from rollart_flow.envs.swe.rows import SweRows
    from rollart_flow.envs.swe.sample import SweSample
    from rollart_flow.envs.text_world import TextWorld
    from rollart_flow.envs.tools import ToolEnvironment, tool

__all__ = [
    "AlfWorld",
    "Arithmetic",
    "Domain",
    "Environment",
    "FrozenLake",
    "GemGame",
    "GymnasiumText",
    "HarborTasks",
    "MathWithPython",
    "Minesweeper",
    "NemoGym",
    "OpenEnv",
    "Questions",
    "ReasoningGym",
    "Shop",
    "SkyRLGym",
    "Sokoban",
    "SweMutants",
    "SweRows",
    "SweSample",
    "TextWorld",
    "ToolEnvironment",
    "Verifiers",
    "tool",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "alf_world": "AlfWorld",
        "arithmetic": "Arithmetic",
        "base": "Domain Environment",
        "foreign.nemo_gym": "NemoGym",
        "foreign.openenv": "OpenEnv",
        "foreign.skyrl_gym": "SkyRLGym",
        "foreign.verifiers": "Verifiers",
        "frozen_lake": "FrozenLake",
        "gem_game": "GemGame",
        "gymnasium_text": "GymnasiumText",
        "math_python": "MathWithPython",
        "minesweeper": "Minesweeper",
        "questions.domain": "Questions",
        "reasoning": "ReasoningGym",
        "shop.domain": "Shop",
        "sokoban": "Sokoban",
        "swe.harbor.domain": "HarborTasks",
        "swe.mutants": "SweMutants",
        "swe.rows": "SweRows",
        "swe.sample": "SweSample",
        "text_world": "TextWorld",
        "tools": "ToolEnvironment tool",
    },
)
